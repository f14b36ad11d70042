"""Who is still running: processes by parent, command line or environment variable. The dead that nobody has collected
count as gone."""

import time
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    parent: int
    name: str
    command: str


def processes():
    """Return all processes by id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        process = _read(folder)
        if process is not None:
            found[int(folder.name)] = process
    return found


def runs(pid):
    return _read(Path(f"/proc/{pid}")) is not None


def descendants(pid):
    """Return the processes that one has started, itself or through others, by id."""
    everything, found, waiting = processes(), {}, [pid]
    while waiting:
        parent = waiting.pop()
        children = {child: process for child, process in everything.items() if process.parent == parent}
        found |= children
        waiting += children
    return found


def with_command(word):
    """Return the ids of the processes that have a word in their command line."""
    return [pid for pid, process in processes().items() if word in process.command]


def with_variable(name, value):
    """Return the ids of the processes whose environment began with a variable."""
    entry = f"{name}={value}".encode()
    found = []
    for pid in processes():
        try:
            if entry in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def gone_within(seconds, pids):
    """Whether all processes end in time."""
    return happens(lambda: not any(runs(pid) for pid in pids), within_s=seconds)


def happens(condition, *, within_s):
    """Whether something comes true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _read(folder):
    try:
        name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
        state, parent = rest.split()[:2]
        command = (folder / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return None
    return None if state in "ZX" else Process(int(parent), name, command)
