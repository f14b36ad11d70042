"""Proximal policy optimization with a critic, over tokens or turns."""

from __future__ import annotations

from typing import Any

from lit_agentrl import functional as F
from lit_agentrl.algorithms.actor_critic import ActorCritic
from lit_agentrl.algorithms.credit_values import GeneralizedAdvantage, Step
from lit_agentrl.algorithms.grpo import clipped_loss
from lit_agentrl.policies.base import Policy


class PPO(ActorCritic):
    """Generalized advantages from a critic, clipped surrogate loss (arXiv 1707.06347, over turns arXiv 2512.17008).

    Deviations:

    1. Advantages are whitened over the rollout, which the paper leaves open; `whiten: false` takes it back.
    2. No KL term by default; the recipe of arXiv 2203.02155 is `kl: {coefficient: 0.05, estimator: k1, place: reward}`.
    3. Actor and critic have optimizers' settings of their own and are clipped apart, so that the value loss has no say
       in the size of the policy's step.
    4. Time passes with the agent's own tokens (or turns): observations cost no discount and their values do not count.

    Args:
        policy: The policy that is trained.
        gamma: Discount per step.
        lam: Weight of long returns against the critic's values.
        step: `token`, or `turn`.
        bootstrap: Whether the value after the last token stands for what a truncated episode would have earned.
        whiten: Shift and scale the advantages of a rollout to mean 0 and deviation 1.
        clip_low: Ratios below 1 - clip_low earn no gradient.
        clip_high: Ratios above 1 + clip_high earn no gradient.
        dual_clip: Bounds the loss of negative advantages by this multiple; `None` is off.
        aggregation: How token terms become one number; see `functional.token_weights`.
        kwargs: See `ActorCritic`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        gamma: float = 1.0,
        lam: float = 0.95,
        step: Step = "token",
        bootstrap: bool = True,
        whiten: bool = True,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        dual_clip: float | None = None,
        aggregation: F.AggregationMode = "token-mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            policy,
            advantage=GeneralizedAdvantage(gamma=gamma, lam=lam, step=step, bootstrap=bootstrap, whiten=whiten),
            policy_loss=clipped_loss(clip_low, clip_high, dual_clip),
            aggregation=aggregation,
            **kwargs,
        )
