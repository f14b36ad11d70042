"""What trainer and workers say to each other: framed pickles over a socket. Imports no torch."""

from __future__ import annotations

import dataclasses
import io
import pickle
import struct
from typing import Any, NamedTuple

from lit_agentrl.agents.tools.base import ToolEntry
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.processes import frame, read_frame
from lit_agentrl.types import EnvTraits, ToolSpec

COMMAND = struct.Struct("!cq")
"""To the fork server: `FORK` (a socket travels along) or `REAP` and a process id."""
FORK, REAP = b"F", b"R"


class Reply(NamedTuple):
    """A worker's answer to one request. Answers keep the order of the requests."""

    ok: bool
    value: Any
    """The result, or the error as text."""
    outputs_cut: int = 0
    """Texts in the result that were longer than allowed."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkerConfig:
    """The first message that a worker receives."""

    env: EnvSpec
    tools: tuple[ToolEntry, ...]
    max_output_chars: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkerInfo:
    """The first message that a worker sends, once its environment stands."""

    traits: EnvTraits
    tool_specs: tuple[ToolSpec, ...]
    demonstrates: bool
    """Whether the environment can show how its tasks are solved."""


def encode(message: Any) -> bytes:
    """Frame one message: length, then pickle."""
    return frame(pickle.dumps(message, protocol=5))


def receive(stream: io.BufferedIOBase) -> Any:
    """Read one message from a blocking stream. Raises `EOFError` when it ends before or within the message."""
    return pickle.loads(read_frame(stream.read))
