"""Group-in-group policy optimization."""

from __future__ import annotations

from typing import Any

from lit_agentrl import functional as F
from lit_agentrl.algorithms.credit import GroupInGroup, GroupScale
from lit_agentrl.algorithms.grpo import clipped_loss
from lit_agentrl.algorithms.policy_gradient import PolicyGradient
from lit_agentrl.policies.base import Policy


class GiGPO(PolicyGradient):
    """GRPO with a second baseline over the steps that started from equal states (arXiv 2505.10978).

    The environment has to give `Observation.state_key`; without one this is GRPO.

    Args:
        policy: The policy that is trained.
        omega: Weight of the step advantages.
        gamma: Discount of the step returns, per turn.
        advantage_scale: `std` or `none`, of both advantages.
        clip_low: Ratios below 1 - clip_low earn no gradient.
        clip_high: Ratios above 1 + clip_high earn no gradient.
        aggregation: How token terms become one number; see `functional.token_weights`.
        kwargs: See `PolicyGradient`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        omega: float = 1.0,
        gamma: float = 0.95,
        advantage_scale: GroupScale = "std",
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        aggregation: F.AggregationMode = "seq-mean-token-mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            policy,
            advantage=GroupInGroup(omega=omega, gamma=gamma, scale=advantage_scale),
            policy_loss=clipped_loss(clip_low, clip_high),
            aggregation=aggregation,
            **kwargs,
        )
