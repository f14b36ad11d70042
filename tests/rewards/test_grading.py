"""Graders in a process of their own: what loops, crashes or eats memory is told from a wrong answer, within a bound."""

import os
import signal
import subprocess
import sys
import time

import pytest
from process_watch import gone_within

from lit_agentrl.rewards.grading import GraderError, IsolatedGrader


def grade(what):
    if what == "loop":
        while True:
            pass
    if what == "memory":
        return len(bytearray(8 * 2**30))
    if what == "exit":
        os._exit(3)
    if what == "signal":
        os.kill(os.getpid(), signal.SIGUSR1)
    if what == "raise":
        raise KeyError("no such symbol")
    if what == "unpicklable":
        return lambda: None
    if what == "sleep":
        time.sleep(60)
    if what == "descriptors":
        return sorted(int(name) for name in os.listdir("/proc/self/fd"))
    return (what, os.getpid())


@pytest.fixture
def grader():
    made = IsolatedGrader(grade, timeout_s=0.5, memory_mb=256)
    yield made
    made.close()


def test_it_runs_elsewhere_and_is_kept(grader):
    (first, pid), (second, same) = grader("a"), grader("b")
    assert (first, second) == ("a", "b")
    assert pid == same == grader.pid != os.getpid()


def test_a_loop_ends_within_the_time_limit(grader):
    started = time.monotonic()
    with pytest.raises(GraderError, match=r"did not answer within 0\.5 s and was killed"):
        grader("loop")
    assert time.monotonic() - started < 4
    assert grader("after")[0] == "after"


def test_a_killed_process_is_gone(grader):
    pid = grader("a")[1]
    with pytest.raises(GraderError):
        grader("sleep")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# Not SIGSEGV: pygame, once imported, answers it with an abort.
@pytest.mark.parametrize(("how", "code"), [("exit", 3), ("signal", -signal.SIGUSR1)])
def test_a_death_is_told(grader, how, code):
    with pytest.raises(GraderError, match=f"died with exit code {code}$"):
        grader(how)
    assert grader("after")[0] == "after"


@pytest.mark.parametrize(
    ("how", "text"),
    [("raise", "raised KeyError: 'no such symbol'"), ("memory", "raised MemoryError"), ("unpicklable", "raised")],
)
def test_an_error_is_told_and_the_process_kept(grader, how, text):
    pid = grader("a")[1]
    with pytest.raises(GraderError, match=text):
        grader(how)
    assert grader("b")[1] == pid


def test_it_holds_no_inherited_descriptor(grader):
    with open(os.devnull) as extra:  # a worker's socket, say
        assert extra.fileno() > 2
        inherited = [number for number in grader("descriptors") if number > 2]
    assert len(inherited) == 2  # its own socket, and the listing itself


def test_a_forked_copy_asks_a_process_of_its_own(grader):
    pid = grader("a")[1]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, str(grader("b")[1]).encode())
            grader.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reading, 20)) not in (pid, child)
    assert grader("c")[1] == pid


def test_it_dies_with_its_owner(tmp_path):
    program = (
        "import os, time; from lit_agentrl.rewards.grading import IsolatedGrader; g = IsolatedGrader(os.getpid);"
        "print(g(), flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    assert gone_within(5, [pid])
