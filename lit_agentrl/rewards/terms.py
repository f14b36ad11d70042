"""Reward terms: functions of a finished trajectory, added to what the environment gave.

A term is any function `(trajectory: Trajectory) -> float`. It is named in the configuration by its import path, with a
weight: `data.init_args.rewards: {lit_agentrl.rewards.terms.tool_errors: -0.1}`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from lit_agentrl.protocols import EpisodeFailedError
from lit_agentrl.types import Trajectory

RewardTerm: TypeAlias = Callable[[Trajectory], float]
_KEY = "data.init_args.rewards"


def tool_errors(trajectory: Trajectory) -> float:
    """Return how many tool calls went wrong; give it a negative weight."""
    return float(trajectory.tool_errors)


def tool_calls(trajectory: Trajectory) -> float:
    """Return how many tools were called."""
    return float(trajectory.tool_calls)


def sampled_tokens(trajectory: Trajectory) -> float:
    """Return how many tokens the policy wrote; give it a small negative weight."""
    return float(trajectory.num_tokens)


class RewardTerms:
    """Weighted terms, resolved once.

    Args:
        weights: Weight by import path.

    Raises:
        ValueError: A path leads to no function, two functions share a name, or a weight is not finite.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._terms: dict[str, tuple[RewardTerm, float]] = {}
        for path, weight in weights.items():
            name = path.rpartition(".")[2]
            if name in self._terms:
                raise ValueError(f"{_KEY}: two terms are named {name!r}; rename one of the functions")
            if not math.isfinite(weight):
                raise ValueError(f"{_KEY}.{path}: the weight is {weight}; it must be finite")
            self._terms[name] = (_resolve(path), weight)

    def add_to(self, trajectory: Trajectory) -> None:
        """Add every term to the trajectory's reward and reward parts; parts are logged unweighted.

        Raises:
            EpisodeFailedError: A term raised or returned no finite number: that is no wrong answer of the policy.
        """
        for name, (term, weight) in self._terms.items():
            try:
                value = float(term(trajectory))
            except Exception as error:
                raise EpisodeFailedError(f"reward {name} raised {type(error).__name__}: {error}") from error
            if not math.isfinite(value):
                raise EpisodeFailedError(f"reward {name} is {value} in episode {trajectory.id}")
            total = trajectory.reward + weight * value
            if not math.isfinite(total):
                raise EpisodeFailedError(
                    f"reward {name} ({value}, weight {weight}) makes the reward of episode {trajectory.id} {total}"
                )
            trajectory.reward = total
            trajectory.reward_parts[name] = trajectory.reward_parts.get(name, 0.0) + value


def _resolve(path: str) -> RewardTerm:
    module_name, _, name = path.rpartition(".")
    try:
        term = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError):
        shipped = ", ".join(f"{__name__}.{term.__name__}" for term in (tool_errors, tool_calls, sampled_tokens))
        raise ValueError(f"{_KEY}: there is no function {path!r}; shipped are {shipped}") from None
    if not callable(term):
        raise ValueError(f"{_KEY}: {path!r} is no function of a trajectory")
    resolved: RewardTerm = term
    return resolved
