"""Value-augmented proximal policy optimization for long chains of thought."""

from __future__ import annotations

from typing import Any

from lit_agentrl import functional as F
from lit_agentrl.algorithms.actor_critic import ActorCritic
from lit_agentrl.algorithms.credit_values import GeneralizedAdvantage
from lit_agentrl.algorithms.grpo import clipped_loss
from lit_agentrl.policies.base import Policy
from lit_agentrl.policies.critic import CriticConfig

_DEFAULT_CRITIC = CriticConfig(warmup_rollouts=1)


class VAPO(ActorCritic):
    """PPO with a lambda that grows with length, a critic on Monte-Carlo returns, and imitation (arXiv 2504.05118).

    Deviations:

    1. The critic's warm-up is counted in rollouts; the paper takes 50 steps of 8192 samples.
    2. Advantages are not whitened, as the paper does not say that they are.
    3. The paper samples 512 prompts 16 times each; here that is the data module's business.

    Args:
        policy: The policy that is trained.
        length_alpha: lambda of the policy's advantages is 1 - 1/(length_alpha x tokens of the episode), and 0 for
            short ones.
        clip_low: Ratios below 1 - clip_low earn no gradient.
        clip_high: Ratios above 1 + clip_high earn no gradient.
        imitation: Factor of the negative log-likelihood of successful episodes.
        critic: What judges states, and how it is trained.
        aggregation: How token terms become one number; see `functional.token_weights`.
        kwargs: See `ActorCritic`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        length_alpha: float = 0.05,
        clip_low: float = 0.2,
        clip_high: float = 0.28,
        imitation: float = 0.1,
        critic: CriticConfig = _DEFAULT_CRITIC,
        aggregation: F.AggregationMode = "token-mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            policy,
            advantage=GeneralizedAdvantage(length_alpha=length_alpha, critic_lam=1.0, whiten=False),
            policy_loss=clipped_loss(clip_low, clip_high),
            imitation=imitation,
            critic=critic,
            aggregation=aggregation,
            **kwargs,
        )
