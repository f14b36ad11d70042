"""The edges of the framework. Whoever implements one of these needs to know nothing else of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from lit_agentrl.types import (
    Action,
    Completion,
    Demonstration,
    EngineStats,
    EnvTraits,
    GenerationRequest,
    Observation,
    Split,
    StepResult,
    Task,
    ToolOutput,
    ToolSpec,
)


@runtime_checkable
class Environment(Protocol):
    """A task library with a state. Lives in a worker process; must not import torch.

    One instance runs one episode at a time. Whatever it raises fails the episode, with the text as its cause; it is
    never a reward.
    """

    traits: EnvTraits

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the task that belongs to a seed. Splits never share a task, whatever the seeds."""
        ...

    def reset(self, task: Task) -> Observation:
        """Start an episode."""
        ...

    def step(self, action: Action) -> StepResult:
        """Carry out one action of the agent."""
        ...

    def close(self) -> None:
        """Free what the instance holds."""
        ...


@runtime_checkable
class Demonstrator(Protocol):
    """An environment that can also show how a task is solved (optional; needed for a warm start)."""

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec]) -> Demonstration:
        """Return a solved episode for the task, using only the given agent tools (there may be none)."""
        ...


class EnvHandle(Protocol):
    """One environment slot in a worker process, seen from the agent's coroutine."""

    async def reset(self, task: Task) -> Observation:
        """Start an episode. Raises `EpisodeFailedError` when the worker is lost."""
        ...

    async def step(self, action: Action) -> StepResult:
        """Carry out one action. Raises `EpisodeFailedError` when the worker is lost."""
        ...

    @property
    def outputs_cut(self) -> int:
        """Texts of the running episode that were longer than allowed and were cut."""
        ...

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolOutput:
        """Run one of the agent's tools next to the environment; its errors come back as text."""
        ...


class Engine(Protocol):
    """Draws completions. Requests of many agents are batched; see `lit_agentrl.engines.local`."""

    stats: EngineStats

    def sync(self, version: int) -> None:
        """Take over the policy's current weights under this version number; drops what older weights computed."""
        ...

    def reset(self) -> None:
        """Begin a rollout, on an event loop of its own."""
        ...

    def episode(self) -> AbstractAsyncContextManager[None]:
        """Count the body as a live episode."""
        ...

    def outside(self) -> AbstractAsyncContextManager[None]:
        """Count the body as waiting for an environment or a tool."""
        ...

    async def generate(self, request: GenerationRequest) -> Completion:
        """Draw one completion."""
        ...


class EpisodeFailedError(Exception):
    """The episode cannot go on and is no reward: a worker died or hung, or the environment raised."""
