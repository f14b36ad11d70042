"""Clipped importance sampling policy optimization."""

from __future__ import annotations

from typing import Any

from lit_agentrl import functional as F
from lit_agentrl.algorithms.credit import GroupRelative
from lit_agentrl.algorithms.policy_gradient import PolicyGradient
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.policies.base import Policy


class CISPO(PolicyGradient):
    """Clips the weight of a token, never its gradient (arXiv 2506.13585).

    Args:
        policy: The policy that is trained.
        cap: `two_sided`: weights in [1 - clip_low, 1 + clip_high], as in the paper; `absolute`: in
            [clip_low, clip_high], as in TRL (arXiv 2510.13786 recommends 5.0).
        clip_high: Upper bound.
        clip_low: Lower bound; default: none, as in the paper.
        advantage_scale: See `GRPO`.
        aggregation: How token terms become one number; see `functional.token_weights`.
        kwargs: See `PolicyGradient`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        cap: F.CispoCap = "two_sided",
        clip_high: float = 0.2,
        clip_low: float | None = None,
        advantage_scale: F.AdvantageScale = "std",
        aggregation: F.AggregationMode = "token-mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            policy,
            advantage=GroupRelative(scale=advantage_scale),
            policy_loss=PolicyLoss(
                function="cispo_loss", options={"cap": cap, "clip_low": clip_low, "clip_high": clip_high}
            ),
            aggregation=aggregation,
            **kwargs,
        )
