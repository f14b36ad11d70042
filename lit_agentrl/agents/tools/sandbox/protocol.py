"""What the trainer's side and the zygote tell each other: limits, framed messages. Standard library only."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from lit_agentrl.processes import frame, read_exactly, read_frame

Cause: TypeAlias = Literal["", "wall time", "CPU time", "memory", "output"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one call may use. Keys of `agent.init_args.tools` and of environments that run code have these names."""

    wall_s: float = 10.0
    cpu_s: int = 10
    """CPU seconds of each process; all together are bounded by `wall_s` times the cores."""
    memory_mb: int = 512
    """Address space of each process, and resident memory of all together."""
    disk_mb: int = 64
    """Size of the work folder, which is in memory, and of a file in it."""
    num_processes: int = 16
    """Processes and threads at a time."""
    output_kb: int = 1024
    """Standard output and error together; more ends the call."""

    def check(self, key: str) -> None:
        """Check the values.

        Raises:
            ValueError: One is too small; names the key below `key`.
        """
        smallest = {"wall_s": 0.05, "cpu_s": 1, "memory_mb": 32, "disk_mb": 1, "num_processes": 1, "output_kb": 1}
        for name, least in smallest.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 2**31:
                raise ValueError(f"{key}.{name} must be a number of at least {least}, got {value!r}")
            if name != "wall_s" and value != int(value):
                raise ValueError(f"{key}.{name} must be a whole number, got {value!r}")


def send(connection: socket.socket, header: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
    """Send a message: a JSON header and any number of byte strings."""
    head = json.dumps({"header": header, "sizes": [len(blob) for blob in blobs]}).encode()
    connection.sendall(b"".join([frame(head), *blobs]))


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    """Receive a message.

    Raises:
        EOFError: The other end was closed.
    """
    message = json.loads(read_frame(connection.recv))
    return message["header"], [read_exactly(connection.recv, size) for size in message["sizes"]]
