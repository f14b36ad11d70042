"""Gives freed host memory back to the system: glibc keeps the holes that ragged batches leave, and runs grow."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def _libc() -> Any:
    try:
        libc = ctypes.CDLL("libc.so.6")
        return libc if hasattr(libc, "malloc_trim") else None
    except OSError:  # not glibc
        return None


def return_freed_memory() -> None:
    """Return what has been freed, where the C library can; takes some milliseconds."""
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)
