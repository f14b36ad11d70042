"""Writing files so that a reader, or a run that is killed, never meets half of one."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path | str, text: str) -> None:
    """Write UTF-8 text to a temporary file in the same folder and rename it over `path`; folders are made as needed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
