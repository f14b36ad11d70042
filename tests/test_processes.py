"""Child processes: frames, death with the parent, exit codes."""

import io
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from process_watch import gone_within, runs

from lit_agentrl.processes import (
    EXEC_DYING_WITH_PARENT,
    adopt_orphans,
    die_with_parent,
    exit_codes,
    frame,
    read_exactly,
    read_frame,
)

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 1000])
def test_frames_are_read_back_one_by_one(body):
    stream = io.BytesIO(frame(body) + frame(b"next"))
    assert (read_frame(stream.read), read_frame(stream.read)) == (body, b"next")


def test_what_comes_in_pieces_is_put_together():
    pieces = [b"ab", b"c", b"d"]
    assert read_exactly(lambda count: pieces.pop(0)[:count], 4) == b"abcd"


@pytest.mark.parametrize("data", [b"", frame(b"abc")[:5], frame(b"abc")[:-1]])
def test_an_end_within_a_frame_is_told(data):
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(data).read)


def test_exit_codes_come_in_time_or_not_at_all():
    def forked(body):
        pid = os.fork()
        if not pid:
            body()
            os._exit(3)
        return pid

    ended, killed, lasting = forked(lambda: None), forked(lambda: os.kill(os.getpid(), 9)), forked(signal.pause)
    try:
        begin = time.monotonic()
        assert exit_codes({ended, killed}, timeout_s=20) == {ended: 3, killed: -9}
        assert exit_codes({lasting}, timeout_s=0.05) == {}
        assert time.monotonic() - begin < 10
    finally:
        os.kill(lasting, signal.SIGKILL)
    assert exit_codes({lasting, ended}, timeout_s=20) == {lasting: -9, ended: 255}


FORKS = """
import os, signal
from lit_agentrl.processes import die_with_parent
parent = os.getpid()
pid = os.fork()
if not pid:
    print(os.getpid(), die_with_parent(parent), die_with_parent(parent + 1), flush=True)
    signal.pause()
signal.pause()
"""
EXECUTES = f"""
import subprocess, sys
command = ["/bin/sh", "-c", "echo $$ True False; exec sleep 60"]
subprocess.run([sys.executable, "-ISc", {EXEC_DYING_WITH_PARENT!r}, *command])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
@pytest.mark.parametrize("program", [FORKS, EXECUTES], ids=["forked", "executed"])
def test_a_child_is_killed_with_its_parent(program):
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        child, there, elsewhere = parent.stdout.readline().split()
        assert (there, elsewhere) == ("True", "False")
        assert runs(int(child))
    finally:
        parent.kill()
        parent.wait()
    assert gone_within(5, [int(child)])
    parent.stdout.close()


def test_a_child_that_is_too_late_is_told():
    ours, theirs = socket.socketpair()
    if not os.fork():
        middle = os.getpid()
        if not os.fork():
            while os.getppid() == middle:
                time.sleep(0.01)
            theirs.send(b"late" if not die_with_parent(middle) else b"in time")
        os._exit(0)
    os.wait()
    theirs.close()
    assert ours.recv(16) == b"late"
    ours.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process choose to be a parent")
def test_orphans_are_adopted():
    ours, theirs = socket.socketpair()
    adopter = os.fork()
    if not adopter:
        adopt_orphans()
        if not os.fork():
            middle = os.getpid()
            if not os.fork():
                while os.getppid() == middle:
                    time.sleep(0.01)
                theirs.send(str(os.getppid()).encode())
            os._exit(0)
        os.wait()
        os.wait()
        os._exit(0)
    os.waitpid(adopter, 0)
    theirs.close()
    assert int(ours.recv(16)) == adopter
    ours.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's end")
def test_the_signal_at_the_parents_end_can_be_another():
    ours, theirs = socket.socketpair()
    if not (parent := os.fork()):
        if not os.fork():
            signal.signal(signal.SIGUSR1, lambda *_: theirs.send(b"told"))
            die_with_parent(by=signal.SIGUSR1)
            theirs.send(b"ready")
            signal.pause()
            os._exit(0)
        signal.pause()
    theirs.close()
    assert ours.recv(16) == b"ready"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert ours.recv(16) == b"told"
    ours.close()
