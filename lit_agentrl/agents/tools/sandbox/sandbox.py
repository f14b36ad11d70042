"""The sandbox as its users see it: Python source in, output and exit code out, nothing else touched."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import lit_agentrl
from lit_agentrl.agents.tools.sandbox.cgroups import sweep
from lit_agentrl.agents.tools.sandbox.protocol import Cause, Limits, receive, send
from lit_agentrl.agents.tools.sandbox.root import WORK
from lit_agentrl.agents.tools.sandbox.support import detect

_START_S = 60.0
_MARGIN_S = 30.0  # beyond the wall time of a call, for setting up and burying on a busy machine
_CLOSE_S = 5.0
_numbers = itertools.count()

_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": WORK,
    "TMPDIR": WORK,
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",
}
_CHECK = f"""
import os, socket
wrong = []
try:
    socket.socket().close()
    wrong.append("a network socket could be made")
except OSError:
    pass
try:
    os.stat("/etc/passwd")
    wrong.append("the machine's files can be seen")
except OSError:
    pass
try:
    open("/outside", "w").close()
    wrong.append("a file could be made outside of the work folder")
except OSError:
    pass
if os.getuid() == 0 or os.getpid() > 9 or os.getcwd() != {WORK!r}:
    wrong.append("user, processes or folder are not its own")
print("; ".join(wrong), end="")
"""


class SandboxError(RuntimeError):
    """The sandbox itself failed; that says nothing about the code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxResult:
    """What came of a call."""

    exit_code: int
    """As a shell has it for a normal end; negative: killed by that signal."""
    cause: Cause
    """Which limit ended it; empty if none did. Running out of address space is a `MemoryError` in the code instead."""
    stdout: bytes
    stderr: bytes
    wall_s: float
    cpu_s: float


class Sandbox:
    """Runs Python source where it can reach nothing: no network, no files of the machine, no other processes.

    A zygote (a small Python that shares nothing with this process) forks each call into namespaces of its own with a
    user of its own, an empty work folder in memory, Landlock, a seccomp filter and resource limits. Where bubblewrap is
    installed, the zygote itself runs inside it. What holds and what does not is in docs/sandbox.md. One call at a time;
    calls of several threads wait for each other. When a call returns, no process of it is left.

    Args:
        limits: Of each call.
        read_only: Further paths that calls may read, at the same place.
        path: Folders for the calls' `sys.path`; they have to be readable.
        preload: Modules that the zygote imports, so that calls have them for nothing.
        allow_unsafe: Run even where the machine cannot protect itself, with what protection there is.
        use_bwrap: Whether bubblewrap is used; `None`: where it is installed.
        use_control_group: Whether control groups are used where they can be made.
        key: Configuration key that this is built from; begins the errors.

    Raises:
        ValueError: A limit is not accepted, or protection is missing and `allow_unsafe` is not set.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        read_only: Sequence[str] = (),
        path: Sequence[str] = (),
        preload: Sequence[str] = (),
        allow_unsafe: bool = False,
        use_bwrap: bool | None = None,
        use_control_group: bool = True,
        key: str = "sandbox",
    ) -> None:
        self.limits = limits or Limits()
        self.limits.check(key)
        for entry in read_only:
            full = os.path.abspath(entry)
            if f"{full}/".startswith((f"{WORK}/", "/dev/")) or full == "/":
                raise ValueError(f"{key}.read_only: {entry!r} cannot be shown to the code")
        support = detect()
        if support.missing and not allow_unsafe:
            raise ValueError(
                f"{key}: this machine cannot protect itself from code that a model wrote; it lacks "
                f"{' and '.join(support.missing)}. {key}.allow_unsafe: true runs it all the same"
            )
        if use_bwrap and support.bwrap is None:
            raise ValueError(f"{key}.use_bwrap: bubblewrap is not installed; leave it out, or: apt install bubblewrap")
        self._bwrap = support.bwrap if use_bwrap or use_bwrap is None else None
        self._protected = not support.missing
        self._options = {
            "limits": asdict(self.limits),
            "read_only": [os.path.abspath(entry) for entry in read_only],
            "path": list(path),
            "preload": list(preload),
            "allow_unsafe": allow_unsafe,
        }
        self._key = key
        self._use_control_group = use_control_group
        self._lock = threading.RLock()
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._folder = ""
        self._group = ""
        self.controllers: tuple[str, ...] = ()
        """What a control group limits for all processes of a call together, once the zygote runs."""

    @property
    def pid(self) -> int | None:
        """Process id of the zygote (of bubblewrap, if that is around it), if one runs."""
        return self._process.pid if self._process is not None and self._owner == os.getpid() else None

    def run(
        self,
        source: str,
        *,
        files: Mapping[str, bytes] | None = None,
        argv: Sequence[str] = ("main.py",),
        echo: bool = False,
        wall_s: float | None = None,
    ) -> SandboxResult:
        """Run Python source as the main module.

        Args:
            source: The program.
            files: Contents by path relative to the work folder, which is also where the program starts.
            argv: `sys.argv`; the first is the name in tracebacks.
            echo: Also print the value of the last line if that is an expression.
            wall_s: Another limit of seconds by the clock than the sandbox's own.

        Raises:
            ValueError: A file's path leaves the work folder, or the files are larger than it.
            SandboxError: The sandbox itself failed. The next call gets a fresh one.
        """
        contents = dict(files or {})
        for name in contents:
            pure = PurePosixPath(name)
            if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in name:
                raise ValueError(f"the file {name!r} would be outside of the work folder")
        if sum(map(len, contents.values())) > self.limits.disk_mb * 2**20:
            raise ValueError(f"{self._key}.disk_mb: the files take more than {self.limits.disk_mb} MB")
        seconds = self.limits.wall_s if wall_s is None else wall_s
        header = {"files": list(contents), "argv": list(argv), "echo": echo, "wall_s": seconds}
        with self._lock:
            answer, blobs = self._ask(header, [source.encode(errors="replace"), *contents.values()], seconds)
        if answer["error"]:
            raise SandboxError(f"the sandbox could not run the code: {answer['error']}")
        return SandboxResult(
            exit_code=answer["code"],
            cause=answer["cause"],
            stdout=blobs[0],
            stderr=blobs[1],
            wall_s=answer["wall_s"],
            cpu_s=answer["cpu_s"],
        )

    def close(self) -> None:
        """End the zygote and whatever runs in it. A later call starts a new one."""
        with self._lock:
            connection, self._socket = self._socket, None
            process, self._process = self._process, None
            if connection is not None:
                connection.close()
            if process is None or self._owner != os.getpid():
                return
            try:
                process.wait(timeout=_CLOSE_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            shutil.rmtree(self._folder, ignore_errors=True)
            if self._group:
                sweep(self._group)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of the interpreter anything may be gone already
            self.close()

    def _ask(
        self, header: dict[str, Any], blobs: Sequence[bytes], seconds: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        if self.pid is None:
            self._start()
        connection = self._socket
        assert connection is not None
        try:
            connection.settimeout(seconds + _MARGIN_S)
            send(connection, header, blobs)
            return receive(connection)
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise SandboxError(f"the zygote died or hangs ({type(error).__name__})") from None
        except BaseException:  # an interrupt between question and answer: the next call must not get this answer
            self.close()
            raise

    def _start(self) -> None:
        if self._socket is not None:  # a copy, inherited through a fork of our own process: the zygote is not ours
            self._socket.close()
        self._owner = os.getpid()
        ours, theirs = socket.socketpair()
        self._socket = ours
        home = str(Path(lit_agentrl.__file__).parents[1])
        mount_point = self._folder = tempfile.mkdtemp(prefix="lit_agentrl_sandbox_")
        parent = 0 if self._bwrap else os.getpid()
        program = (
            f"import sys; sys.path.append({home!r}); from lit_agentrl.agents.tools.sandbox.zygote import main; "
            f"sys.path.remove({home!r}); main({theirs.fileno()}, {parent})"
        )
        # The real one: a virtual environment's link to it does not exist where calls run.
        command = [os.path.realpath(sys.executable), "-s", "-S", "-P", "-c", program]
        if self._bwrap:
            command = [*_bwrap_command(self._bwrap, mount_point), *command]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=_ENVIRONMENT,
                    cwd="/",
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C is for the trainer
                )
            self._group = f"lit_agentrl_{os.getpid()}_{next(_numbers)}" if self._use_control_group else ""
            ours.settimeout(_START_S)
            send(ours, self._options | {"mount_point": mount_point, "control_group": self._group})
            answer, _ = receive(ours)
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise SandboxError(f"the zygote could not be started ({type(error).__name__}: {error})") from None
        except BaseException:
            self.close()
            raise
        finally:
            # A mount that is already there keeps what is below; without one, calls write into this folder.
            if self._protected:
                shutil.rmtree(mount_point, ignore_errors=True)  # gone already where the start failed
        if not answer["ready"]:
            self.close()
            raise SandboxError(f"the zygote could not be started: {answer['error']}")
        self.controllers = tuple(answer["controllers"])
        if self._protected:
            self._check()

    def _check(self) -> None:
        """Try, before anything else runs, whether the main promises hold."""
        header = {"files": [], "argv": ["check.py"], "echo": False, "wall_s": _START_S}
        answer, blobs = self._ask(header, [_CHECK.encode()], _START_S)
        wrong = answer["error"] or (blobs[0] + blobs[1]).decode(errors="replace")
        if (wrong or answer["code"]) and not self._options["allow_unsafe"]:
            self.close()
            raise SandboxError(f"the sandbox does not hold: {wrong or answer['cause'] or answer['code']}")


def _bwrap_command(bwrap: str, mount_point: str) -> list[str]:
    """Return the command that runs the zygote in bubblewrap: all of the machine's files read-only, no network."""
    return [
        bwrap,
        *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
        *("--bind-try", "/sys/fs/cgroup", "/sys/fs/cgroup"),
        *("--bind", mount_point, mount_point),
        *("--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-pid", "--"),
    ]
