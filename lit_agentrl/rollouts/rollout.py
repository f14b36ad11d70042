"""One collection phase and what is known about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from lit_agentrl.rollouts.batch import RolloutBatch, TokenReason
from lit_agentrl.rollouts.comparisons import Answer
from lit_agentrl.types import EngineStats, Phase, Trajectory, TrajectoryGroup

Gather: TypeAlias = Callable[[Any], list[Any]]
"""Returns what all ranks handed in, in order of the ranks."""


def only_rank(value: Any) -> list[Any]:
    """Gather over one rank."""
    return [value]


@dataclass(kw_only=True)
class Rollout:
    """Episodes collected with one version of the policy."""

    phase: Phase
    index: int
    """Counts the rollouts of the run, for phases other than train the validations since its start."""
    groups: list[TrajectoryGroup]
    """Those of this rank."""
    engine: EngineStats
    wall_s: float
    batch: RolloutBatch | None = None
    """All tokens, with credit; only in training."""
    metrics: dict[str, float] = field(default_factory=dict)
    demonstrations: dict[int, Answer] = field(default_factory=dict)
    """The environment's own solutions by group, where the algorithm asked for them and they fit the context."""

    @property
    def trajectories(self) -> list[Trajectory]:
        """All trajectories, in the order in which the batch numbers them."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    def to(self, device: Any) -> Self:
        """Return itself; without this, Lightning takes what `predict` returns apart to look for tensors, and fails."""
        return self


@dataclass(kw_only=True)
class Progress:
    """What a run has consumed so far, on all ranks: the axes against which runs are compared. Part of checkpoints."""

    rollouts: int = 0
    episodes: int = 0
    tokens: int = 0
    """Sampled tokens."""
    env_steps: int = 0

    def add(self, rollout: Rollout, *, gather: Gather = only_rank) -> None:
        """Count a training rollout, of which every rank has a part."""
        trajectories = rollout.trajectories
        counts = (
            len(trajectories),
            sum(t.num_tokens for t in trajectories),
            sum(t.env_steps for t in trajectories),
        )
        episodes, tokens, env_steps = (sum(column) for column in zip(*gather(counts), strict=True))
        self.rollouts += 1
        self.episodes += episodes
        self.tokens += tokens
        self.env_steps += env_steps

    def metrics(self) -> dict[str, float]:
        """Return `progress/…`."""
        names = ("rollouts", "episodes", "tokens", "env_steps")
        return {f"progress/{name}": float(getattr(self, name)) for name in names}


def rollout_metrics(rollout: Rollout, *, gather: Gather = only_rank) -> dict[str, float]:
    """Return `rollout/…`: means over episodes that did not fail, and what became of the others.

    A mean over nothing is NaN. The slowest rank counts for `seconds`.
    """
    parts = gather((_totals(rollout), rollout.wall_s, rollout.engine.seconds, rollout.engine.generated_tokens))
    totals: dict[str, tuple[float, int]] = {}
    for rank_totals, *_ in parts:
        for name, (total, count) in rank_totals.items():
            before, counted = totals.get(name, (0.0, 0))
            totals[name] = (before + total, counted + count)
    sums = {name: totals.pop(name)[0] for name in ("outputs_cut", "tool_restarts")}
    metrics = {
        f"rollout/{name}": total / count if count else math.nan
        for name, (total, count) in sorted(totals.items())
        if count or not name.startswith("reward_")
    }
    seconds = max(max(part[1] for part in parts), 1e-9)
    engine_s = max(max(part[2] for part in parts), 1e-9)
    tokens = sum(part[3] for part in parts)
    return metrics | {
        **{f"rollout/{name}": total for name, total in sums.items()},
        "rollout/seconds": seconds,
        "rollout/tokens_per_s": tokens / seconds,
        "rollout/engine_tokens_per_s": tokens / engine_s,
        "rollout/engine_share": engine_s / seconds,
    }


def _totals(rollout: Rollout) -> dict[str, tuple[float, int]]:
    """Return the sum and the count behind every mean, over this rank's episodes."""
    everything = rollout.trajectories
    valid = [t for t in everything if t.status != "failed"]
    values: dict[str, list[float]] = {
        "success": [t.success for t in valid],
        "reward": [t.reward for t in valid],
        "turns": [len(t.turns) for t in valid],
        "completion_tokens": [t.num_tokens for t in valid],
        "tool_calls": [t.tool_calls for t in valid],
        "tool_errors": [t.tool_errors for t in valid],
        "truncated": [t.status == "truncated" for t in everything],
        "failed": [t.status == "failed" for t in everything],
        "outputs_cut": [t.outputs_cut for t in everything],
        "tool_restarts": [t.tool_restarts for t in everything],
        "groups_with_spread": [
            len({t.reward for t in group.trajectories if t.status != "failed"}) > 1 for group in rollout.groups
        ],
    }
    for name in {name for t in valid for name in t.reward_parts}:
        # Over all valid episodes: one that ended before it could earn a part has earned none of it.
        values[f"reward_{name}"] = [t.reward_parts.get(name, 0.0) for t in valid]
    return {name: (math.fsum(column), len(column)) for name, column in values.items()}


def token_accounting(batch: RolloutBatch, rollout: Rollout, *, gather: Gather = only_rank) -> dict[str, float]:
    """Return `tokens/<reason>`: what became of every sampled token.

    Raises:
        AssertionError: The counts do not add up to the tokens that were generated; always a bug of ours.
    """
    counts = {
        reason.name.lower(): int((batch.reason == reason).sum())
        for reason in TokenReason
        if reason is not TokenReason.CONTEXT
    }
    generated = sum(t.num_tokens for t in rollout.trajectories)
    assert sum(counts.values()) == generated, f"{counts} do not add up to the {generated} tokens generated"
    ranks: list[Mapping[str, int]] = gather(counts)
    sums = {name: float(sum(rank[name] for rank in ranks)) for name in counts}
    return {f"tokens/{name}": count for name, count in sums.items() if count}
