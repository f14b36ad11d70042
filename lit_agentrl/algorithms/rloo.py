"""REINFORCE with the other members of the group as baseline."""

from __future__ import annotations

from typing import Any

from lit_agentrl import functional as F
from lit_agentrl.algorithms.credit import LeaveOneOut
from lit_agentrl.algorithms.policy_gradient import PolicyGradient
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.policies.base import Policy


class RLOO(PolicyGradient):
    """Reward minus the mean of the group's other episodes, plain policy gradient (arXiv 2402.14740).

    Deviations:

    1. The paper's KL in the reward is left out; `kl: {coefficient: 0.05, estimator: k1, place: reward}` brings it back.
    2. No ratio, as in the paper; for several optimizer steps a rollout, `PolicyGradient` with
       `policy_loss: {function: sequence_clip_loss}` and `aggregation: seq-mean-token-mean` is TRL's form.

    Args:
        policy: The policy that is trained.
        aggregation: How token terms become one number; see `functional.token_weights`.
        kwargs: See `PolicyGradient`.
    """

    def __init__(self, policy: Policy, *, aggregation: F.AggregationMode = "seq-mean-token-sum", **kwargs: Any) -> None:
        super().__init__(
            policy,
            advantage=LeaveOneOut(),
            policy_loss=PolicyLoss(function="reinforce_loss"),
            aggregation=aggregation,
            **kwargs,
        )
