"""Landlock: which paths a process may touch from now on, itself and all that it starts. Standard library only."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Sequence

from lit_agentrl.agents.tools.sandbox.kernel import syscall

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_VERSION_FLAG = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_ALL_VERSION_1 = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15  # since versions 2, 3 and 5
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_BIND_TCP, _CONNECT_TCP = 1, 2  # since version 4
_SCOPE_ABSTRACT_SOCKET, _SCOPE_SIGNAL = 1, 2  # since version 6


class _RulesetAttr(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("descriptor", ctypes.c_int32))


def landlock_version() -> int:
    """Return the version that the kernel offers; 0 if none."""
    try:
        return syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    except OSError:
        return 0


def restrict(*, read: Sequence[str], write: Sequence[str]) -> None:
    """Forbid all other paths, all TCP, and signals and abstract sockets that lead outside, as far as the kernel can.

    `no_new_privs` must be set. Paths that do not exist are passed over.

    Args:
        read: Files and folders that may be read and executed.
        write: Files and folders that may be changed, too.

    Raises:
        OSError: The kernel has no Landlock.
    """
    version = landlock_version()
    handled = _ALL_VERSION_1
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        handled |= right if version >= since else 0
    attr = _RulesetAttr(
        fs=handled,
        net=_BIND_TCP | _CONNECT_TCP if version >= 4 else 0,
        scoped=_SCOPE_ABSTRACT_SOCKET | _SCOPE_SIGNAL if version >= 6 else 0,
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = syscall(_CREATE_RULESET, ctypes.byref(attr), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path in read:
            _allow(ruleset, path, handled & (_EXECUTE | _READ_FILE | _READ_DIR))
        for path in write:
            _allow(ruleset, path, handled & ~_IOCTL_DEV)
        syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= _ON_FILES
        attr = _PathBeneathAttr(access=access, descriptor=descriptor)
        syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), ctypes.byref(attr), ctypes.c_uint32(0))
    finally:
        os.close(descriptor)
