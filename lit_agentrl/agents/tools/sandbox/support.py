"""What this machine offers to keep code in: found out by trying, once a process."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

_TIMEOUT_S = 30
_PROBE = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
found = []
def works(flags, user=None):
    child = os.fork()
    if not child:
        if user is not None and os.getuid() == 0:
            os.setresuid(user, user, user)
        os._exit(1 if libc.unshare(flags) else 0)
    return os.waitpid(child, 0)[1] == 0
user = 0 if os.getuid() == 0 else 0x10000000
# the namespaces of the zygote, then those of a call
if works(user | 0x20000 | 0x40000000 | 0x8000000 | 0x4000000) and works(0x10000000 | 0x20000 | 0x20000000, 0x40000000):
    found.append("namespaces")
if libc.syscall(ctypes.c_long(444), None, ctypes.c_size_t(0), ctypes.c_uint32(1)) > 0:
    found.append("landlock")
# refused for its null pointer only where filters are known
if platform.machine() in ("x86_64", "aarch64") and libc.prctl(22, 2, 0, 0, 0) and ctypes.get_errno() == 14:
    found.append("seccomp")
print(*found)
"""
_NEEDED = {
    "namespaces": "user, mount, PID and network namespaces (on some systems: sysctl "
    "kernel.unprivileged_userns_clone=1, user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0)",
    "landlock": "Landlock (Linux 5.13 or newer, with landlock in the kernel's lsm list)",
    "seccomp": "seccomp filters on x86_64 or aarch64",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Support:
    """What there is."""

    namespaces: bool
    landlock: bool
    seccomp: bool
    bwrap: str | None
    """Path of bubblewrap."""

    @property
    def missing(self) -> tuple[str, ...]:
        """What a protected call needs and this machine lacks, in words."""
        return tuple(words for name, words in _NEEDED.items() if not getattr(self, name))


@functools.cache
def detect() -> Support:
    """Find out, in a process of its own, what the kernel allows.

    Raises:
        ValueError: This is not Linux.
    """
    if sys.platform != "linux":
        raise ValueError(f"code of models runs on Linux only, not on {sys.platform}: leave out what runs it")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PROBE],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        env={"PATH": os.defpath},
        check=False,
    )
    found = done.stdout.split()
    return Support(
        namespaces="namespaces" in found,
        landlock="landlock" in found,
        seccomp="seccomp" in found,
        bwrap=shutil.which("bwrap"),
    )
