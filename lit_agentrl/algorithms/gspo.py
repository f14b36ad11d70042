"""Group sequence policy optimization."""

from __future__ import annotations

from typing import Any

from lit_agentrl import functional as F
from lit_agentrl.algorithms.credit import GroupRelative
from lit_agentrl.algorithms.policy_gradient import PolicyGradient
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.policies.base import Policy


class GSPO(PolicyGradient):
    """Ratio and clip of whole episodes instead of tokens (arXiv 2507.18071).

    The ratio is that of everything that the policy wrote in an episode, over all its turns and contexts.

    Args:
        policy: The policy that is trained.
        clip_low: Width of the band below 1; of another order than that of token ratios.
        clip_high: Width of the band above 1.
        advantage_scale: See `GRPO`.
        aggregation: How token terms become one number; see `functional.token_weights`.
        kwargs: See `PolicyGradient`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        clip_low: float = 3e-4,
        clip_high: float = 4e-4,
        advantage_scale: F.AdvantageScale = "std",
        aggregation: F.AggregationMode = "seq-mean-token-mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            policy,
            advantage=GroupRelative(scale=advantage_scale),
            policy_loss=PolicyLoss(function="gspo_loss", options={"clip_low": clip_low, "clip_high": clip_high}),
            aggregation=aggregation,
            **kwargs,
        )
