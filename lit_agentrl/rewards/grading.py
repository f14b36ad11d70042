"""Graders that may loop or crash: run in a process of their own, killed at a time limit, and never a wrong answer."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lit_agentrl.processes import die_with_parent, exit_codes, frame, read_frame

_MAX_ERROR_CHARS = 300
_WALL_FACTOR = 4
_GRACE_S = 0.05
_TICK_S = 0.02  # CPU time is counted in hundredths of a second


class GraderError(RuntimeError):
    """A grader looped or crashed. The episode has failed; its answer was neither right nor wrong."""


class IsolatedGrader:
    """A function that grades in a forked process, one call at a time; the process is kept for the next call.

    Forking costs milliseconds, whatever the function's modules took to import. The process dies with the one that
    started it, holds none of its sockets, and is replaced after it was killed.

    Args:
        function: Called with what the grader is called with. Arguments and result have to be picklable.
        timeout_s: CPU seconds that one call may take; by the clock, four times as many, for where the machine is busy.
        memory_mb: Address space that the process may take on top of what it was forked with.
    """

    def __init__(self, function: Callable[..., Any], *, timeout_s: float = 5.0, memory_mb: int = 1024) -> None:
        self._function = function
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._pid: int | None = None
        self._owner = 0
        self._used_cpu_s = 0.0
        self._socket: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """Id of the process that would be asked next, if there is one."""
        return self._pid if self._owner == os.getpid() else None

    def __call__(self, *arguments: Any) -> Any:
        """Grade.

        Raises:
            GraderError: The function raised, took too long, ran out of memory, or its process died.
        """
        if self.pid is None:
            self._start()
        connection, pid = self._socket, self._pid
        assert connection is not None
        assert pid is not None
        limit = _Limit(pid, self._timeout_s, self._used_cpu_s)
        try:
            connection.settimeout(limit.wall_left_s())
            connection.sendall(frame(pickle.dumps(arguments)))
            succeeded, value, self._used_cpu_s = pickle.loads(read_frame(_patient(connection, limit)))
        except TimeoutError:
            self.close()
            raise GraderError(f"the grader did not answer within {self._timeout_s:g} s and was killed") from None
        except (EOFError, ConnectionError, pickle.UnpicklingError):
            code = self.close()
            raise GraderError(f"the grader's process died with exit code {code}") from None
        except BaseException:  # an interrupt between question and answer: the next call must not get this answer
            self.close()
            raise
        if not succeeded:
            raise GraderError(f"the grader raised {value}")
        return value

    def close(self) -> int | None:
        """Kill the process, if there is one, and return its exit code (negative: killed by that signal)."""
        pid, self._pid = self.pid, None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if pid is None:
            return None
        codes = exit_codes({pid}, timeout_s=_GRACE_S)  # one that has ended or is about to keeps its own code
        if pid not in codes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            codes = exit_codes({pid}, timeout_s=math.inf)
        return codes[pid]

    def _start(self) -> None:
        if self._socket is not None:  # a copy, inherited through a fork of our own process: the child is not ours
            self._socket.close()
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                _serve(theirs.fileno(), self._function, self._memory_mb, parent)
                code = 0
            finally:
                os._exit(code)
        theirs.close()
        self._pid, self._owner, self._socket, self._used_cpu_s = pid, parent, ours, 0.0


def _serve(descriptor: int, function: Callable[..., Any], memory_mb: int, parent: int) -> None:
    """Answer calls until the other end is closed."""
    if not die_with_parent(parent):
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    highest = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(3, descriptor)  # an inherited socket would keep a dead worker's connection open
    os.closerange(descriptor + 1, min(highest, 65_536))
    _limit_memory(memory_mb)
    connection = socket.socket(fileno=descriptor)
    while True:
        try:
            arguments = pickle.loads(read_frame(connection.recv))
        except (EOFError, ConnectionError):
            return
        try:
            answer = pickle.dumps((True, function(*arguments), time.process_time()))
        except BaseException as error:
            text = " ".join(str(error).split())[:_MAX_ERROR_CHARS]
            answer = pickle.dumps((False, f"{type(error).__name__}: {text}", time.process_time()))
        connection.sendall(frame(answer))


def _limit_memory(memory_mb: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class _Limit:
    """How long a process may still compute for one call."""

    def __init__(self, pid: int, timeout_s: float, used_cpu_s: float) -> None:
        self._pid = pid
        self._end_cpu_s = used_cpu_s + timeout_s
        self._end = time.monotonic() + _WALL_FACTOR * timeout_s
        self._wait_s = timeout_s  # before that there is nothing to find out, and looking costs

    def wall_left_s(self) -> float:
        """Return the seconds by the clock that are left.

        Raises:
            TimeoutError: None are.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def wait_s(self) -> float:
        """Return for how long to wait before asking again."""
        return min(self._wait_s, self.wall_left_s())

    def look(self) -> None:
        """Find out how much CPU time is left.

        Raises:
            TimeoutError: None is, or the time by the clock is used up.
        """
        left = self._end_cpu_s - self._used_s()
        if left <= 0:
            raise TimeoutError
        self._wait_s = left + _TICK_S

    def _used_s(self) -> float:
        try:
            fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # no such file system: what it had by the clock has to do
            return self._end_cpu_s
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _patient(connection: socket.socket, limit: _Limit) -> Callable[[int], bytes]:
    """Return a `recv` that waits for as long as the process may still compute."""

    def read(count: int) -> bytes:
        while True:
            connection.settimeout(limit.wait_s())
            try:
                return connection.recv(count)
            except TimeoutError:
                limit.look()

    return read
