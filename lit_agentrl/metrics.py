"""Metrics over episodes, right under several ranks: every state is a sum, so it does not matter which rank saw what.

All are fed with `update(trajectories)`, and `compute()` returns named scalars for `log_dict`. Failed episodes (a worker
died, a grader crashed) say nothing about the policy: they enter no rate and no mean; `SuccessRate` counts them apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from lit_agentrl.reporting.statistics import wilson_interval
from lit_agentrl.types import Trajectory


class SuccessRate(Metric):
    """The share of solved episodes, with its Wilson interval.

    `compute` returns scalars that `log_dict` takes: `success`, `success_low`, `success_high` (interval bounds),
    `episodes` (completed and truncated, the ones that count), `truncated` and `failed`. Without a counted episode the
    rate is NaN and the interval (0, 1).

    Args:
        confidence: Coverage of the interval.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = True
    successes: Tensor  # [] int64
    completed: Tensor  # [] int64
    truncated: Tensor  # [] int64
    failed: Tensor  # [] int64

    def __init__(self, *, confidence: float = 0.95, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        wilson_interval(0, 0, confidence=confidence)  # refuses a wrong confidence here rather than after an epoch
        self.confidence = confidence
        for name in ("successes", "completed", "truncated", "failed"):
            self.add_state(name, default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, trajectories: Sequence[Trajectory]) -> None:
        """Count episodes."""
        for trajectory in trajectories:
            if trajectory.status == "failed":
                self.failed += 1
                continue
            self.successes += int(trajectory.success)
            if trajectory.status == "truncated":
                self.truncated += 1
            else:
                self.completed += 1

    def compute(self) -> dict[str, Tensor]:
        """Return rate, interval and counts over all ranks."""
        episodes = self.completed + self.truncated
        successes, count = int(self.successes), int(episodes)
        low, high = wilson_interval(successes, count, confidence=self.confidence)
        return {
            "success": self._scalar(successes / count if count else math.nan),
            "success_low": self._scalar(low),
            "success_high": self._scalar(high),
            "episodes": episodes,
            "truncated": self.truncated.clone(),
            "failed": self.failed.clone(),
        }

    def _scalar(self, value: float) -> Tensor:
        return torch.tensor(value, device=self.device)


class EpisodeLength(Metric):
    """Mean length of an episode: `compute` returns `turns` and `tokens` (sampled tokens), NaN without episodes."""

    full_state_update = False
    is_differentiable = False
    higher_is_better = None
    turns: Tensor  # [] int64
    tokens: Tensor  # [] int64
    episodes: Tensor  # [] int64

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in ("turns", "tokens", "episodes"):
            self.add_state(name, default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, trajectories: Sequence[Trajectory]) -> None:
        """Add up lengths; failed episodes end anywhere and are left out."""
        for trajectory in trajectories:
            if trajectory.status != "failed":
                self.turns += len(trajectory.turns)
                self.tokens += trajectory.num_tokens
                self.episodes += 1

    def compute(self) -> dict[str, Tensor]:
        """Return the means over all ranks."""
        return {"turns": self.turns / self.episodes, "tokens": self.tokens / self.episodes}


class _KeyedSums(Metric):
    """Pairs of a sum and a count per name, where ranks may know different names.

    The state is one matrix with a row per name. Before it is reduced, the ranks agree on the names, so that equal rows
    mean equal names; the reduction itself is then an ordinary sum. (List states that are concatenated would do too, but
    torchmetrics gathers a wrong dtype from a rank that has seen nothing.)
    """

    # Rows are appended as names turn up, so `forward` cannot merge two states by adding them.
    full_state_update = True
    is_differentiable = False
    sums: Tensor  # [K, 2] float32: sum and count

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.names: list[str] = []
        """Row of each name; outlives `reset`, rows that count nothing are not reported."""
        self.add_state("sums", default=torch.zeros(0, 2), dist_reduce_fx="sum")

    def _add(self, values: Mapping[str, Sequence[float]]) -> None:
        """Add values under their names."""
        known = set(self.names)
        self.names.extend(name for name in values if name not in known)
        rows = [(math.fsum(values[name]), len(values[name])) if name in values else (0.0, 0) for name in self.names]
        added = torch.tensor(rows, dtype=self.sums.dtype, device=self.sums.device).reshape(-1, 2)
        added[: len(self.sums)] += self.sums
        self.sums = added

    def _totals(self) -> dict[str, tuple[float, int]]:
        """Return sum and count of every name that has a count, in order of the names."""
        rows = zip(self.names, self.sums.tolist(), strict=False)  # fewer rows than names after a reset
        return {name: (total, int(count)) for name, (total, count) in sorted(rows) if count}

    def sync(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any | None = None,
        should_sync: bool = True,
        distributed_available: Callable[..., Any] | None = None,
    ) -> None:
        """Agree on the names, then reduce as usual."""
        available = distributed_available or self.distributed_available_fn
        if should_sync and not self._is_synced and available is not None and available():
            self._align(process_group or self.process_group)
        super().sync(dist_sync_fn, process_group, should_sync, distributed_available)

    def _align(self, process_group: Any | None) -> None:
        """Give every rank the same names in the same order."""
        gathered: list[list[str]] = [[] for _ in range(torch.distributed.get_world_size(process_group))]
        torch.distributed.all_gather_object(gathered, self.names, group=process_group)
        union = sorted(set().union(*gathered))
        aligned = self.sums.new_zeros(len(union), 2)
        place = {name: row for row, name in enumerate(union)}
        for name, values in zip(self.names, self.sums, strict=False):
            aligned[place[name]] = values
        self.names, self.sums = union, aligned


class RewardParts(_KeyedSums):
    """The mean of every named part of the reward, over the episodes that have the part.

    `compute` returns one scalar per part, under the part's name. Ranks may have seen different parts.
    """

    def update(self, trajectories: Sequence[Trajectory]) -> None:
        """Add up reward parts; failed episodes have none that mean anything."""
        values: dict[str, list[float]] = {}
        for trajectory in trajectories:
            if trajectory.status != "failed":
                for name, value in trajectory.reward_parts.items():
                    values.setdefault(name, []).append(float(value))
        self._add(values)

    def compute(self) -> dict[str, Tensor]:
        """Return the mean of each part over all ranks."""
        return {
            name: torch.tensor(total / count, device=self.device) for name, (total, count) in self._totals().items()
        }


class _PerTask(_KeyedSums):
    """Successes and samples per task, wherever the samples of a task were drawn."""

    higher_is_better = True

    def update(self, trajectories: Sequence[Trajectory]) -> None:
        """Count samples by task; failed episodes are no samples."""
        values: dict[str, list[float]] = {}
        for trajectory in trajectories:
            if trajectory.status != "failed":
                task = trajectory.task
                values.setdefault(f"{task.family}/{task.split}/{task.id}", []).append(float(trajectory.success))
        self._add(values)

    def _samples(self) -> list[tuple[int, int]]:
        """Return successes and samples of each task."""
        return [(round(total), count) for total, count in self._totals().values()]


class AvgAtK(_PerTask):
    """avg@k: the success rate of each task over its samples, averaged over tasks.

    Unlike `SuccessRate`, a task that lost samples to failures weighs as much as the others. `compute` returns
    `avg_at_k` (NaN without tasks) and `tasks`.
    """

    def compute(self) -> dict[str, Tensor]:
        """Return the mean over the tasks of all ranks."""
        rates = [successes / count for successes, count in self._samples()]
        return {
            "avg_at_k": torch.tensor(math.fsum(rates) / len(rates) if rates else math.nan, device=self.device),
            "tasks": torch.tensor(len(rates), device=self.device),
        }


class PassAtK(_PerTask):
    """pass@k: the chance that at least one of k samples solves the task, averaged over tasks (arXiv 2107.03374).

    With n >= k samples of which c succeed, `1 - C(n - c, k) / C(n, k)` is unbiased. `compute` returns `pass_at_{k}`
    (NaN without tasks), `tasks`, and `tasks_short`: tasks with fewer than k samples, for which no unbiased estimate
    exists and which are left out.

    Args:
        k: Number of samples that may be tried.
    """

    def __init__(self, k: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        self.k = k

    def compute(self) -> dict[str, Tensor]:
        """Return the mean over the tasks of all ranks."""
        samples = self._samples()
        chances = [pass_at_k(successes, count, self.k) for successes, count in samples if count >= self.k]
        return {
            f"pass_at_{self.k}": torch.tensor(
                math.fsum(chances) / len(chances) if chances else math.nan, device=self.device
            ),
            "tasks": torch.tensor(len(chances), device=self.device),
            "tasks_short": torch.tensor(len(samples) - len(chances), device=self.device),
        }


def pass_at_k(successes: int, count: int, k: int) -> float:
    """Return the unbiased estimate of pass@k for one task (arXiv 2107.03374, equation 1).

    Raises:
        ValueError: If not 0 <= successes <= count, or not 1 <= k <= count.
    """
    if not (0 <= successes <= count and 1 <= k <= count):
        raise ValueError(f"pass_at_k: k={k}, successes={successes} and count={count} do not fit together")
    return 1.0 - math.comb(count - successes, k) / math.comb(count, k)
