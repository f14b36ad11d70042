"""REINFORCE++: advantages whitened over the whole rollout."""

from __future__ import annotations

from typing import Any

from lit_agentrl import functional as F
from lit_agentrl.algorithms.credit import WhitenedReturn
from lit_agentrl.algorithms.grpo import clipped_loss
from lit_agentrl.algorithms.policy_gradient import PolicyGradient
from lit_agentrl.policies.base import Policy


class ReinforcePP(PolicyGradient):
    """Token returns whitened over the rollout, clipped surrogate (REINFORCE++, arXiv 2501.03262).

    Deviations:

    1. The paper's KL in the reward is left out; `kl: {coefficient: 0.01, estimator: k1, place: reward}` brings it back.
    2. Whitening makes the estimator biased: an episode's own return is part of mean and deviation.

    Args:
        policy: The policy that is trained.
        group_baseline: The paper's variant `-baseline`: subtract the mean of the group before whitening.
        gamma: Discount per token.
        clip_low: Ratios below 1 - clip_low earn no gradient.
        clip_high: Ratios above 1 + clip_high earn no gradient.
        aggregation: How token terms become one number; see `functional.token_weights`.
        kwargs: See `PolicyGradient`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        group_baseline: bool = False,
        gamma: float = 1.0,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        aggregation: F.AggregationMode = "token-mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            policy,
            advantage=WhitenedReturn(gamma=gamma, group_baseline=group_baseline),
            policy_loss=clipped_loss(clip_low, clip_high),
            aggregation=aggregation,
            **kwargs,
        )

    def check_sizes(self, *, num_groups: int, group_size: int) -> None:
        """Refuse a group baseline over groups of one."""
        if isinstance(self.advantage, WhitenedReturn) and self.advantage.group_baseline and group_size < 2:
            raise ValueError(
                f"data.init_args.group_size is {group_size}, but model.init_args.group_baseline: true needs at least 2"
            )
        super().check_sizes(num_groups=num_groups, group_size=group_size)
