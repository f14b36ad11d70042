"""An environment and reward terms whose numbers are not finite. Imports no torch."""

from __future__ import annotations

import dataclasses
import math

from rl_envs import Parity

from lit_agentrl.types import Action, StepResult, Trajectory

_REWARDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "huge": 1e39}


class Unsound(Parity):
    """Parity, in which right answers earn something that is no number.

    Args:
        what: `nan`, `inf`, `-inf`; `huge` is finite, but not in float32; `part` is a reward part; `sum` are steps of
            which each is finite.
    """

    def __init__(self, what: str, turns: int = 2) -> None:
        super().__init__(turns)
        self.what = what

    def step(self, action: Action) -> StepResult:
        result = super().step(action)
        if self.what == "sum":
            return dataclasses.replace(result, reward=1e308)
        if not result.success:
            return result
        if self.what == "part":
            return dataclasses.replace(result, reward_parts={"even": math.nan})
        return dataclasses.replace(result, reward=_REWARDS[self.what])


def undefined(trajectory: Trajectory) -> float:
    """A reward term that has no value for right answers."""
    return math.nan if trajectory.success else 0.0


def large(trajectory: Trajectory) -> float:
    """A finite term that a weight makes infinite."""
    return 1e308 if trajectory.success else 0.0
