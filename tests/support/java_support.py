"""What tests of Java simulators share: whether there is a Java, and the Java processes below a process."""

import os
import time
from pathlib import Path

import pytest

from lit_agentrl.envs.java import find_java

needs_java = pytest.mark.skipif(find_java() is None, reason="needs Java: apt-get install openjdk-17-jre-headless")


def java_below(pid):
    """Return the ids of the Java processes that a process has started, itself or through others."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            name, _, rest = Path(f"/proc/{entry}/stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if state != "Z":
            parents[int(entry)] = (int(parent), name)
    return [one for one, (_, name) in parents.items() if name == "java" and _is_below(one, pid, parents)]


def _is_below(one, pid, parents):
    while one in parents:
        one = parents[one][0]
        if one == pid:
            return True
    return False


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, *, timeout_s):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
