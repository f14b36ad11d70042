"""Soft adaptive policy optimization."""

from __future__ import annotations

from typing import Any

from lit_agentrl import functional as F
from lit_agentrl.algorithms.credit import GroupRelative
from lit_agentrl.algorithms.policy_gradient import PolicyGradient
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.policies.base import Policy


class SAPO(PolicyGradient):
    """A soft gate instead of a clip, narrower for negative advantages (arXiv 2511.20347).

    Another algorithm has the same initials (swarm sampling, arXiv 2509.08721); this is not it.

    Args:
        policy: The policy that is trained.
        tau_pos: Sharpness of the gate for positive advantages.
        tau_neg: Sharpness for the others.
        advantage_scale: See `GRPO`.
        aggregation: How token terms become one number; see `functional.token_weights`.
        kwargs: See `PolicyGradient`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        tau_pos: float = 1.0,
        tau_neg: float = 1.05,
        advantage_scale: F.AdvantageScale = "std",
        aggregation: F.AggregationMode = "seq-mean-token-mean",
        **kwargs: Any,
    ) -> None:
        for key, value in (("tau_pos", tau_pos), ("tau_neg", tau_neg)):
            if value <= 0:
                raise ValueError(f"model.init_args.{key} is {value}: it must be above 0")
        super().__init__(
            policy,
            advantage=GroupRelative(scale=advantage_scale),
            policy_loss=PolicyLoss(function="sapo_loss", options={"tau_pos": tau_pos, "tau_neg": tau_neg}),
            aggregation=aggregation,
            **kwargs,
        )
