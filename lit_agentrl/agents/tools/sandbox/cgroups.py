"""A control group for the calls of one sandbox: memory and processes of all together. Standard library only."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_REMOVE_TRIES = 50


def sweep(name: str, *, root: Path = _ROOT) -> None:
    """Remove the empty groups that a process left when it was killed."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            with contextlib.suppress(OSError):
                (root / kinds / path.lstrip("/") / name).rmdir()


class ControlGroup:
    """Groups below the caller's own, made where that is allowed; version 1 and 2.

    Held through descriptors, so that it also works for a process that has left the file system.

    Args:
        name: Name of the new groups.
        memory_bytes: Limit of resident memory, page cache and file systems in memory included.
        num_tasks: Limit of processes and threads.
        root: Where control groups are mounted.
        own: Text of `/proc/self/cgroup`.
    """

    def __init__(
        self, name: str, *, memory_bytes: int, num_tasks: int, root: Path = _ROOT, own: str | None = None
    ) -> None:
        self.controllers: set[str] = set()
        self._name = name
        self._parents: list[int] = []
        self._groups: list[int] = []
        self._seen_kills = 0
        with contextlib.suppress(OSError):
            lines = (own if own is not None else Path("/proc/self/cgroup").read_text()).splitlines()
            for line in lines:
                _, kinds, path = line.split(":", 2)
                self._make(root, kinds, path.lstrip("/"), memory_bytes, num_tasks)

    def join(self) -> None:
        """Move the calling process in."""
        for group in self._groups:
            _write(group, "cgroup.procs", "0")

    def killed_for_memory(self) -> bool:
        """Whether the kernel has killed a process for memory since this was last asked."""
        kills = 0
        for group in self._groups:
            for file in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    fields = dict(line.split() for line in _read(group, file).splitlines())
                    kills += int(fields.get("oom_kill", 0))
        before, self._seen_kills = self._seen_kills, kills
        return kills > before

    def remove(self) -> None:
        """Remove the groups; nobody may be in them any more."""
        for parent, group in zip(self._parents, self._groups, strict=True):
            os.close(group)
            for _ in range(_REMOVE_TRIES):
                try:
                    os.rmdir(self._name, dir_fd=parent)
                except FileNotFoundError:
                    break
                except OSError:  # the last process is not quite gone
                    time.sleep(0.01)
                else:
                    break
            os.close(parent)
        self._parents, self._groups, self.controllers = [], [], set()

    def _make(self, root: Path, kinds: str, path: str, memory_bytes: int, num_tasks: int) -> None:
        limits = {
            # without swap, or a limit of resident memory would only move the rest to the disk
            "memory": {"memory.limit_in_bytes": memory_bytes, "memory.memsw.limit_in_bytes": memory_bytes},
            "pids": {"pids.max": num_tasks},
        }
        folder = root / kinds / path
        wanted = [kind for kind in kinds.split(",") if kind in limits]
        if not kinds:
            if not (folder / "cgroup.controllers").is_file():
                return  # mounted somewhere beside version 1, where it holds nothing of use
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_text("+memory +pids")
            limits["memory"] = {"memory.max": memory_bytes, "memory.swap.max": 0}
            wanted = ["memory", "pids"]
        if not wanted or self.controllers.issuperset(wanted):
            return
        try:
            (folder / self._name).mkdir()
            parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            group = os.open(self._name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
        except OSError:
            return
        self._parents.append(parent)
        self._groups.append(group)
        for kind in wanted:
            main, *others = limits[kind].items()
            with contextlib.suppress(OSError):
                _write(group, main[0], str(main[1]))
                self.controllers.add(kind)
            for file, value in others:  # about swap, which the kernel may not count
                with contextlib.suppress(OSError):
                    _write(group, file, str(value))


def _write(folder: int, name: str, text: str) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _read(folder: int, name: str) -> str:
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(descriptor, 65_536).decode()
    finally:
        os.close(descriptor)
