"""One collection phase and what is known about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lit_agentrl.rollouts.batch import RolloutBatch, TokenReason
from lit_agentrl.types import EngineStats, Phase, Trajectory, TrajectoryGroup


@dataclass(kw_only=True)
class Rollout:
    """Episodes collected with one version of the policy."""

    phase: Phase
    index: int
    """Counts the rollouts of the run, for phases other than train the validations since its start."""
    groups: list[TrajectoryGroup]
    engine: EngineStats
    wall_s: float
    batch: RolloutBatch | None = None
    """All tokens, with credit; only in training."""
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def trajectories(self) -> list[Trajectory]:
        """All trajectories, in the order in which the batch numbers them."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]


@dataclass(kw_only=True)
class Progress:
    """What a run has consumed so far: the axes against which runs are compared. Part of every checkpoint."""

    rollouts: int = 0
    episodes: int = 0
    tokens: int = 0
    """Sampled tokens."""
    env_steps: int = 0

    def add(self, rollout: Rollout) -> None:
        """Count a training rollout."""
        self.rollouts += 1
        self.episodes += len(rollout.trajectories)
        self.tokens += sum(t.num_tokens for t in rollout.trajectories)
        self.env_steps += sum(t.env_steps for t in rollout.trajectories)

    def metrics(self) -> dict[str, float]:
        """Return `progress/…`."""
        return {f"progress/{name}": float(getattr(self, name)) for name in ("rollouts", "episodes", "tokens", "env_steps")}


def rollout_metrics(rollout: Rollout) -> dict[str, float]:
    """Return `rollout/…`: means over episodes that did not fail, and what became of the others."""
    everything = rollout.trajectories
    valid = [t for t in everything if t.status != "failed"]
    tokens = sum(t.num_tokens for t in everything)
    engine_s = max(rollout.engine.seconds, 1e-9)
    metrics = {
        "rollout/success": _mean([float(t.success) for t in valid]),
        "rollout/reward": _mean([t.reward for t in valid]),
        "rollout/turns": _mean([float(len(t.turns)) for t in valid]),
        "rollout/completion_tokens": _mean([float(t.num_tokens) for t in valid]),
        "rollout/truncated": _mean([float(t.status == "truncated") for t in everything]),
        "rollout/failed": _mean([float(t.status == "failed") for t in everything]),
        "rollout/tool_calls": _mean([float(t.tool_calls) for t in valid]),
        "rollout/tool_errors": _mean([float(t.tool_errors) for t in valid]),
        "rollout/outputs_cut": float(sum(t.outputs_cut for t in everything)),
        "rollout/seconds": rollout.wall_s,
        "rollout/tokens_per_s": tokens / max(rollout.wall_s, 1e-9),
        "rollout/engine_tokens_per_s": rollout.engine.generated_tokens / engine_s,
        "rollout/engine_share": rollout.engine.seconds / max(rollout.wall_s, 1e-9),
    }
    parts = sorted({name for t in valid for name in t.reward_parts})
    for name in parts:
        metrics[f"rollout/reward_{name}"] = _mean([t.reward_parts.get(name, 0.0) for t in valid])
    spread = [len({t.reward for t in group.trajectories if t.status != "failed"}) > 1 for group in rollout.groups]
    metrics["rollout/groups_with_spread"] = _mean([float(has_spread) for has_spread in spread])
    return metrics


def token_accounting(batch: RolloutBatch, rollout: Rollout) -> dict[str, float]:
    """Return `tokens/<reason>`: what became of every sampled token.

    Raises:
        AssertionError: The counts do not add up to the tokens that were generated; always a bug of ours.
    """
    counts = {
        f"tokens/{reason.name.lower()}": float((batch.reason == reason).sum())
        for reason in TokenReason
        if reason is not TokenReason.CONTEXT
    }
    generated = sum(t.num_tokens for t in rollout.trajectories)
    assert sum(counts.values()) == generated, f"{counts} do not add up to the {generated} tokens generated"
    return {name: count for name, count in counts.items() if count}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
