"""Decoupled clip and dynamic sampling policy optimization."""

from __future__ import annotations

from typing import Any

import torch

from lit_agentrl import functional as F
from lit_agentrl.algorithms.grpo import GRPO
from lit_agentrl.policies.base import Policy
from lit_agentrl.rollouts.rollout import Rollout


class DAPO(GRPO):
    """GRPO with clip-higher, all tokens counted alike, and only groups that have spread (arXiv 2503.14476).

    Groups whose rewards are all equal are dropped and replaced by further tasks until the rollout is full. Soft
    overlong punishment is `overlong`, for which there is no length that would suit every task.

    Args:
        policy: The policy that is trained.
        clip_low: Ratios below 1 - clip_low earn no gradient.
        clip_high: Ratios above 1 + clip_high earn no gradient.
        aggregation: How token terms become one number; see `functional.token_weights`.
        max_refills: Rounds of further tasks per rollout. When they are used up, the rollout is as large as it is.
        kwargs: See `GRPO`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        clip_low: float = 0.2,
        clip_high: float = 0.28,
        aggregation: F.AggregationMode = "token-mean",
        max_refills: int = 4,
        **kwargs: Any,
    ) -> None:
        super().__init__(policy, clip_low=clip_low, clip_high=clip_high, aggregation=aggregation, **kwargs)
        if max_refills < 0:
            raise ValueError(f"model.init_args.max_refills is {max_refills}: it must be 0 or more")
        self.max_refills = max_refills

    def kept_groups(self, rollout: Rollout) -> list[int]:
        """Return the groups whose rewards are not all equal; failed episodes are not compared."""
        spread = F.groups_with_spread(
            self.shaped_rewards(rollout),
            torch.tensor([t.group for t in rollout.trajectories]),
            valid=self.valid_episodes(rollout),
        )
        return sorted({t.group for t, keep in zip(rollout.trajectories, spread.tolist(), strict=True) if keep})
