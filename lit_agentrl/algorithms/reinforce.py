"""The plain policy gradient."""

from __future__ import annotations

from typing import Any

from lit_agentrl import functional as F
from lit_agentrl.algorithms.credit import Baseline, DiscountedReturn
from lit_agentrl.algorithms.policy_gradient import PolicyGradient
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.policies.base import Policy


class REINFORCE(PolicyGradient):
    """Return times log-prob (Williams 1992).

    Deviations:

    1. The return counts per turn, not per token, and is summed over an episode's tokens; episodes are averaged.
    2. `baseline` defaults to the mean of the other episodes, which changes the variance alone.

    Args:
        policy: The policy that is trained.
        gamma: Discount per turn.
        baseline: `batch` or `none`; see `DiscountedReturn`.
        aggregation: How token terms become one number; see `functional.token_weights`.
        kwargs: See `PolicyGradient`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        gamma: float = 1.0,
        baseline: Baseline = "batch",
        aggregation: F.AggregationMode = "seq-mean-token-sum",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            policy,
            advantage=DiscountedReturn(gamma=gamma, baseline=baseline),
            policy_loss=PolicyLoss(function="reinforce_loss"),
            aggregation=aggregation,
            **kwargs,
        )
