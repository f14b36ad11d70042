"""The file system that calls see: Python and what it links to, read-only, a few devices, nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from lit_agentrl.agents.tools.sandbox import kernel

WORK = "/sandbox"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
_KEPT_FLAGS = {
    os.ST_NOSUID: kernel.MS_NOSUID,
    os.ST_NODEV: kernel.MS_NODEV,
    os.ST_NOEXEC: kernel.MS_NOEXEC,
    os.ST_NOATIME: kernel.MS_NOATIME,
    os.ST_NODIRATIME: kernel.MS_NODIRATIME,
    os.ST_RELATIME: kernel.MS_RELATIME,
}


def readable_paths(extra: Iterable[str]) -> list[str]:
    """Return what calls may read: the interpreter's own installation, shared libraries, and the extra paths."""
    executable = os.path.realpath(sys.executable)
    prefix = os.path.realpath(sys.base_prefix)
    own = [prefix] if prefix not in ("/", "/usr", "/usr/local") else []
    if not executable.startswith(f"{prefix}/") or not own:
        own.append(executable)
    wanted = [path for path in (*_LIBRARIES, *own, *map(os.path.abspath, extra)) if os.path.exists(path)]
    found: list[str] = []
    for path in sorted(dict.fromkeys(wanted), key=len):
        # What is inside of something that is there already comes with it; links keep their place in the tree.
        if not any(path.startswith(f"{other}/") for other in found if not os.path.islink(other)):
            found.append(path)
    return found


def enter(paths: Iterable[str], mount_point: str) -> None:
    """Replace this process's whole file system. Needs a mount namespace of its own.

    Args:
        paths: Files and folders that stay, at the same place, read-only.
        mount_point: An existing empty folder.

    Raises:
        OSError: The kernel does not allow it.
    """
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("root", mount_point, "tmpfs", flags, "size=1m,nr_inodes=4096,mode=755")
    for path in paths:
        target = f"{mount_point}{path}"
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), target)
        else:
            _bind(path, target, devices=False)
    os.makedirs(f"{mount_point}/dev", exist_ok=True)
    for device in DEVICES:
        if os.path.exists(device):
            _bind(device, f"{mount_point}{device}", devices=True)
    os.symlink(WORK, f"{mount_point}/dev/shm")
    os.symlink(WORK, f"{mount_point}/tmp") if not os.path.lexists(f"{mount_point}/tmp") else None
    os.makedirs(f"{mount_point}{WORK}")
    kernel.mount("root", mount_point, None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | flags)
    kernel.pivot_into(mount_point)


def _bind(source: str, target: str, *, devices: bool) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        Path(target).touch()
    kernel.mount(source, target, None, kernel.MS_BIND | kernel.MS_REC)
    now = os.statvfs(target).f_flag
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_NOSUID
    flags |= 0 if devices else kernel.MS_RDONLY | kernel.MS_NODEV
    for held, flag in _KEPT_FLAGS.items():  # a user namespace may not take these away
        flags |= flag if now & held and not (devices and held == os.ST_NODEV) else 0
    kernel.mount(source, target, None, flags)
