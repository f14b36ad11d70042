"""Child processes: frames over their sockets, death with their parent, exit codes in time. Standard library only.

The sandbox's zygote, which has nothing but that library, imports it too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Set

HEADER = struct.Struct("!Q")
"""Length in bytes of what follows."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_MAX_READ = 1 << 16  # more would be mapped and unmapped at every read
_TICK_S = 0.002

# Loaded here: between a fork and an exec is no time for imports.
_libc = ctypes.CDLL(None, use_errno=True)

EXEC_DYING_WITH_PARENT = (
    f"import ctypes, os, sys; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""A program for `python -ISc` that becomes the command of its arguments, to be killed when its own parent ends. For
where somebody else starts the process. Linux only."""


def frame(body: bytes) -> bytes:
    """Return bytes with their length before them."""
    return HEADER.pack(len(body)) + body


def read_frame(read: Callable[[int], bytes]) -> bytes:
    """Read what `frame` made, without the length; see `read_exactly`."""
    (size,) = HEADER.unpack(read_exactly(read, HEADER.size))
    return read_exactly(read, size)


def read_exactly(read: Callable[[int], bytes], count: int) -> bytes:
    """Read so many bytes.

    Args:
        read: Returns at most so many bytes, for example a socket's `recv`; none at the end.
        count: How many.

    Raises:
        EOFError: The end came before.
    """
    data = bytearray()
    while len(data) < count:
        piece = read(min(count - len(data), _MAX_READ))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def die_with_parent(parent: int | None = None, *, by: signal.Signals = signal.SIGKILL) -> bool:
    """Have the kernel kill this process when the thread that forked it ends. Linux only; a change of user id undoes it.

    Args:
        parent: Process id of the parent.
        by: The signal that is sent.

    Returns:
        Whether the parent was still there afterwards; `True` if none was named.

    Raises:
        OSError: The kernel refuses.
    """
    _prctl(_PR_SET_PDEATHSIG, by)
    return parent is None or os.getppid() == parent


def adopt_orphans() -> None:
    """Become the parent of all that this process starts, itself or through others, when their own ends. Linux only.

    Raises:
        OSError: The kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def exit_codes(pids: Set[int], *, timeout_s: float) -> dict[int, int]:
    """Collect the exit codes of those children that end in time, by process id.

    A negative code is the signal that killed the process. Of a process that is no child any more it is 255.
    """
    codes: dict[int, int] = {}
    deadline = time.monotonic() + timeout_s
    while True:
        for pid in pids - codes.keys():
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                codes[pid] = 255
                continue
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
        if len(codes) == len(pids) or time.monotonic() > deadline:
            return codes
        time.sleep(_TICK_S)


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if sys.platform == "linux" and _libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl: {os.strerror(number)}")
