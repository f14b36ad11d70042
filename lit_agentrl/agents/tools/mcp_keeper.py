"""Runs a server and leaves no process of it behind, whoever ends first. Standard library only: it starts at once.

The server's standard input is this program's own; its output and errors pass through here. Everything that the server
starts becomes a child of this program when its parent ends, so all of it can be found; it is killed when the server
ends, when this program is told to end, and when the process that started it is gone, be it by `kill -9`. Where the
kernel is not Linux, only the process group is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lit_agentrl.processes import adopt_orphans, die_with_parent

_HOME = str(Path(__file__).parents[3])
_TICK_MS = 200
_END_S = 3.0
_TAIL = 2000
_CHUNK = 1 << 16
_LAST_READS = 64  # of what is left in the pipes when the server has ended; what it has started may write for ever
_NOT_RUN, _TOO_LONG = 127, 125


class _Stopped(BaseException):
    """This program was told to end."""


def kept(command: Sequence[str], *, parent: int, max_message: int) -> list[str]:
    """Return the arguments with which Python runs a command under a keeper.

    Args:
        command: Program and arguments.
        parent: Process id of whoever starts it.
        max_message: Bytes that a line of the server's output may have; a longer one ends it.
    """
    program = (
        f"import sys; sys.path.append({_HOME!r}); from lit_agentrl.agents.tools.mcp_keeper import keep; "
        f"sys.exit(keep(sys.argv[1:], parent={parent}, max_message={max_message}))"
    )
    return ["-ISc", program, *command]


def keep(command: list[str], *, parent: int, max_message: int) -> int:
    """Run a server and return its exit code, 128 and more for signals; see `kept`."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer
    code, tail = 128 + signal.SIGTERM, bytearray()
    try:
        try:
            adopt_orphans()
            if die_with_parent(parent, by=signal.SIGTERM):
                code = _run(command, parent, max_message, tail)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except _Stopped:  # at whatever line, of the `finally` too
        pass
    _end_all()
    with contextlib.suppress(OSError):
        os.write(2, tail.lstrip() + f"\nit ended with code {code}\n".encode())
    return code


def _run(command: list[str], parent: int, max_message: int, tail: bytearray) -> int:
    """Start a server and return its exit code when it ends."""
    output, errors = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        _become(command, output[1], errors[1])
    os.close(output[1])
    os.close(errors[1])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the server's input is the server's
    return _watch(child, parent, output[0], errors[0], max_message, tail)


def _become(command: list[str], output: int, errors: int) -> NoReturn:
    """Turn into the server."""
    try:
        die_with_parent()
        for number in (signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be run: {error.strerror}\n".encode())
    finally:
        os._exit(_NOT_RUN)


def _watch(child: int, parent: int, output: int, errors: int, max_message: int, tail: bytearray) -> int:
    """Hand on what the server writes until it ends; return its exit code."""
    poll = select.poll()
    for descriptor in (output, errors):
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    length, rest = 0, _LAST_READS
    code: int | None = None
    while True:
        ready = poll.poll(_TICK_MS if code is None else 0)
        for descriptor, _ in ready:
            data = os.read(descriptor, _CHUNK)
            if not data:
                poll.unregister(descriptor)
            elif descriptor == errors:
                tail += data
                del tail[:-_TAIL]
            else:
                newline = data.rfind(b"\n")
                length = length + len(data) if newline < 0 else len(data) - newline - 1
                if length > max_message:
                    tail += f"\na message of more than {max_message} bytes".encode()
                    return _TOO_LONG
                _write(data)
        rest -= code is not None
        if code is not None and (not ready or not rest):
            return code
        if code is None:
            ended, status = os.waitpid(child, os.WNOHANG)
            code = _exit_code(status) if ended else None
        if os.getppid() != parent:
            raise _Stopped


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(1, view) :]
        except BrokenPipeError:  # nobody reads any more: the end is near
            return


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _end_all() -> None:
    """Kill all that is below this program: children of the dead come up as children of ours."""
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline:
        children = _children()
        if children is None:
            os.killpg(0, signal.SIGKILL)
        for child in children or ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def _children() -> list[int] | None:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return None


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once: what follows must not be interrupted
    raise _Stopped
