"""The zygote: a small warm Python that forks one process a call, limits it, and ends with the trainer."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from lit_agentrl.agents.tools.sandbox import call, kernel, landlock, root
from lit_agentrl.agents.tools.sandbox.cgroups import ControlGroup
from lit_agentrl.agents.tools.sandbox.protocol import Cause, Limits, receive, send

_FIRST_UID = 0x40000000  # far above accounts and the ranges that containers are given
_NUM_UIDS = 1 << 20
_IDLE_S = 1.0
_LOOK_S = 0.05
_SETUP_S = 20.0  # to be ready to run the code; on a busy machine
_READ = 1 << 16
_BEGAN = b"began\n"
_CPU_SHARE = 0.9  # the kernel counts ticks for the limit and real time for what was used, which may be a little less


def main(descriptor: int, parent: int) -> None:
    """Serve one trainer process until it closes its end or dies.

    Args:
        descriptor: Of the socket to it.
        parent: Its process id; 0 if it is not the parent.
    """
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    try:
        header, _ = receive(connection)
        zygote = Zygote(connection, header, parent)
    except EOFError:
        return
    except BaseException as error:
        send(connection, {"ready": False, "error": f"{type(error).__name__}: {error}"})
        return
    try:
        zygote.serve()
    finally:
        zygote.close()


class Zygote:
    """Holds the prepared file system and control group; see `main`."""

    def __init__(self, connection: socket.socket, options: dict[str, Any], parent: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._connection = connection
        self._parent = parent
        self._limits = Limits(**options["limits"])
        self._unsafe = bool(options["allow_unsafe"])
        self._next_uid = int.from_bytes(os.urandom(2), "big")  # those of several zygotes hardly meet
        self._is_root = os.getuid() == 0
        kernel.adopt_orphans()
        self._proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._readable = root.readable_paths(options["read_only"])
        self._group: ControlGroup | None = None
        if options["control_group"]:
            self._group = ControlGroup(
                options["control_group"],
                memory_bytes=self._limits.memory_mb * 2**20,
                num_tasks=self._limits.num_processes + call.OWN_PROCESSES,
            )
        try:
            self._enter(options["mount_point"])
            for path in options["path"]:
                sys.path.append(path)
            for name in options["preload"]:
                importlib.import_module(name)
        except BaseException:
            self.close()
            raise
        gc.collect()
        gc.freeze()  # no copies of shared pages because the collector marks what is on them
        send(
            connection,
            {
                "ready": True,
                "controllers": sorted(self._group.controllers) if self._group is not None else [],
                "landlock": landlock.landlock_version(),
            },
        )

    def serve(self) -> None:
        """Run jobs one after the other."""
        while True:
            if not select.select([self._connection], [], [], _IDLE_S)[0]:
                if self._parent and os.getppid() != self._parent:
                    return  # dead, though somebody who was forked from it holds the socket
                continue
            try:
                header, blobs = receive(self._connection)
            except (EOFError, ConnectionError):
                return
            source, *contents = blobs
            job = call.Job(
                source=source,
                files=dict(zip(header["files"], contents, strict=True)),
                argv=header["argv"],
                echo=header["echo"],
            )
            answer = self._run(job, float(header["wall_s"]))
            if answer is None:
                return
            send(self._connection, *answer)

    def close(self) -> None:
        """Remove the control group."""
        if self._group is not None:
            self._group.remove()

    def _enter(self, mount_point: str) -> None:
        """Leave the machine's network and file system."""
        try:
            if not self._is_root:
                user, group = os.getuid(), os.getgid()
                kernel.unshare(kernel.CLONE_NEWUSER)
                call.map_user(self._proc, user, group, inner=0)
            kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS)
            root.enter(self._readable, mount_point)
        except OSError:
            if not self._unsafe:
                raise
            os.chdir(mount_point)

    def _run(self, job: call.Job, wall_s: float) -> tuple[dict[str, Any], list[bytes]] | None:
        """Run a job to its end; `None` if the trainer has gone."""
        pairs = {name: os.pipe() for name in ("stdout", "stderr", "report")}
        self._next_uid += 1
        pipes = call.Pipes(**{name: pair[1] for name, pair in pairs.items()})
        child = os.fork()
        if not child:
            self._connection.close()
            for pair in pairs.values():
                os.close(pair[0])
            around = call.Surroundings(
                limits=self._limits,
                readable=self._readable,
                join_group=self._group.join if self._group is not None else _no_group,
                proc=self._proc,
                uid=_FIRST_UID + self._next_uid % _NUM_UIDS if self._is_root else None,
                unsafe=self._unsafe,
            )
            call.start(job, pipes, around)
        for _, end in pairs.values():
            os.close(end)
        run = _Running(child, {pair[0]: name for name, pair in pairs.items()})
        try:
            gone = self._watch(run, wall_s)
        finally:
            run.end()
            self._bury()
        if gone:
            return None
        return self._answer(run)

    def _bury(self) -> None:
        """Wait until no process of a call is left: orphans become ours, the init of a namespace last."""
        with contextlib.suppress(ChildProcessError):
            while True:
                if os.waitpid(-1, os.WNOHANG)[0]:
                    continue
                with contextlib.suppress(OSError):
                    for child in self._children("self"):
                        os.kill(int(child), signal.SIGKILL)
                time.sleep(0.0005)

    def _watch(self, run: _Running, wall_s: float) -> bool:
        """Follow a call until nothing of it can say anything any more; whether the trainer has gone meanwhile."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN | select.POLLHUP)
        for descriptor in run.names:
            poll.register(descriptor, select.POLLIN)
        begin = time.monotonic()
        deadline = begin + _SETUP_S
        max_bytes = self._limits.output_kb * 1024
        watches_memory = self._group is None or "memory" not in self._group.controllers
        while run.names:
            for descriptor, _ in poll.poll(1000 * max(0.0, min(_LOOK_S, deadline - time.monotonic())) + 1):
                if descriptor == self._connection.fileno():
                    run.kill("")  # nothing is sent during a call: the other end is closed
                    return True
                data = os.read(descriptor, _READ)
                name = run.names[descriptor]
                if not data:
                    poll.unregister(descriptor)
                    os.close(descriptor)
                    del run.names[descriptor]
                else:
                    run.texts[name] += data
                    if name == "report" and data.startswith(_BEGAN):
                        deadline = time.monotonic() + wall_s
            if len(run.texts["stdout"]) + len(run.texts["stderr"]) > max_bytes:
                run.kill("output")
            if time.monotonic() > deadline:
                run.kill("wall time")
            if watches_memory and self._resident(run.child) > self._limits.memory_mb * 2**20:
                run.kill("memory")
        run.wall_s = time.monotonic() - begin
        return False

    def _answer(self, run: _Running) -> tuple[dict[str, Any], list[bytes]]:
        report = bytes(run.texts["report"]).removeprefix(_BEGAN).decode(errors="replace")
        words = report.split()
        error, code, cpu_s = "", -signal.SIGKILL, 0.0
        out_of_memory = self._group is not None and self._group.killed_for_memory()
        if words and words[0] == "ended":
            code, cpu_s = int(words[1]), float(words[2])
        elif words:
            error = " ".join(words[1:])
        elif not run.cause and not out_of_memory:
            error = "the call's own processes died"
        cause: Cause = run.cause
        if not cause and out_of_memory:
            cause = "memory"
        elif not cause and code in (-signal.SIGXCPU, -signal.SIGKILL) and cpu_s >= _CPU_SHARE * self._limits.cpu_s:
            cause = "CPU time"
        header = {"code": code, "cause": cause, "error": error, "wall_s": run.wall_s, "cpu_s": cpu_s}
        limit = self._limits.output_kb * 1024
        stdout = bytes(run.texts["stdout"][:limit])
        return header, [stdout, bytes(run.texts["stderr"][: limit - len(stdout)])]

    def _resident(self, child: int) -> int:
        """Return the bytes of memory that a process and all below it have for themselves."""
        total, waiting = 0, [str(child)]
        page = os.sysconf("SC_PAGE_SIZE")
        while waiting:
            process = waiting.pop()
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = self._read(f"{process}/statm").split()
                total += (int(fields[1]) - int(fields[2])) * page
                waiting += self._children(process)
        return total

    def _children(self, process: str) -> list[str]:
        folder = os.open(f"{process}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._proc)
        try:
            tasks = os.listdir(folder)
        finally:
            os.close(folder)
        return [child for task in tasks for child in self._read(f"{process}/task/{task}/children").split()]

    def _read(self, name: str) -> str:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        try:
            return os.read(descriptor, _READ).decode()
        finally:
            os.close(descriptor)


def _no_group() -> None:
    """Stay in the group that the zygote is in."""


@dataclass
class _Running:
    """A call that is running."""

    child: int
    names: dict[int, str]
    cause: Cause = ""
    wall_s: float = 0.0
    texts: dict[str, bytearray] = field(
        default_factory=lambda: {name: bytearray() for name in ("stdout", "stderr", "report")}
    )

    def kill(self, cause: Cause) -> None:
        """Kill it: the init of its namespace dies with the process that is killed here, and all others with that."""
        self.cause = self.cause or cause
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child, signal.SIGKILL)

    def end(self) -> None:
        """Let go of its pipes; kills it if they are still open."""
        if self.names:
            self.kill("")
        for descriptor in self.names:
            os.close(descriptor)
        self.names = {}
