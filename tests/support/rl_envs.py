"""Environments that give a policy of random weights something to be rewarded for. Imports no torch."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from lit_agentrl.types import (
    Action,
    Demonstration,
    EnvTraits,
    Message,
    Observation,
    Split,
    StepResult,
    Task,
    ToolSpec,
)


class Parity:
    """Says a number back for every reply; the last reply is right if all bytes of the episode add up to an even number.

    Args:
        turns: Replies per episode.
        sleep_s: Every operation takes a random time up to this.
        kill_once: The process kills itself in the second step of an episode, unless this file exists.
        fails: Episodes whose bytes add up to a multiple of 3 end with an error.
        exclusive: As the trait says.
    """

    def __init__(
        self,
        turns: int = 2,
        sleep_s: float = 0.0,
        kill_once: str = "",
        fails: bool = False,
        exclusive: bool = False,
    ) -> None:
        self.traits = EnvTraits(deterministic=True, exclusive=exclusive)
        self.turns, self.sleep_s, self.kill_once, self.fails = turns, sleep_s, kill_once, fails
        self.steps = self.total = 0

    def sample_task(self, seed: int, split: Split) -> Task:
        return Task(id=f"{split}-{seed}", family="parity", split=split, seed=seed, data={"words": seed % 5 + 1})

    def reset(self, task: Task) -> Observation:
        self._sleep()
        self.steps = self.total = 0
        return Observation(messages=(Message.of("user", "number " * task.data["words"]),))

    def step(self, action: Action) -> StepResult:
        self._sleep()
        self.steps += 1
        self.total += sum(action.message.text.encode())
        if self.kill_once and self.steps == 2 and not Path(self.kill_once).exists():
            Path(self.kill_once).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.steps < self.turns:
            return StepResult(observation=Observation(messages=(Message.of("user", str(self.total)),)))
        if self.fails and self.total % 3 == 0:
            raise RuntimeError("the grader crashed")
        even = self.total % 2 == 0
        parts = {"even": float(even)}
        return StepResult(observation=None, reward=float(even), reward_parts=parts, terminated=True, success=even)

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec]) -> Demonstration:
        words = Message.of("user", "number " * task.data["words"])
        return Demonstration(task=task, messages=(words, Message.of("assistant", "b")), tools=tuple(tools))

    def close(self) -> None:
        pass

    def _sleep(self) -> None:
        time.sleep(random.random() * self.sleep_s)
