"""Who is still running: processes found by a word in their command line."""

import time
from pathlib import Path


def processes_with(word):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def gone_within(seconds, pids):
    """Whether all processes end in time; the dead that nobody has collected count as ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(_runs(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def descendants(pid):
    found, waiting = [], [pid]
    while waiting:
        for path in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            children = [int(child) for child in path.read_text().split()]
            found += children
            waiting += children
    return found


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
