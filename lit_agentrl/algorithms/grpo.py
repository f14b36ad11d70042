"""Group-relative policy optimization."""

from __future__ import annotations

from typing import Any

from lit_agentrl import functional as F
from lit_agentrl.algorithms.credit import GroupRelative
from lit_agentrl.algorithms.policy_gradient import PolicyGradient
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.policies.base import Policy


class GRPO(PolicyGradient):
    """Advantages relative to the group, clipped surrogate loss (arXiv 2402.03300).

    Deviations:

    1. No KL term by default: the paper's 0.04 x k3 is left out, as later work does (arXiv 2503.14476, 2503.20783);
       `kl: {}` brings it back.
    2. `aggregation` defaults to the paper's mean over each sequence's tokens, then over sequences; a sequence is all
       that the policy wrote in one episode, whatever the number of turns.
    3. A group whose rewards are all equal gives exactly 0 and its tokens are not computed, though they count in the
       normaliser.

    Args:
        policy: The policy that is trained.
        advantage_scale: `std` divides by the group's standard deviation (ddof 1), `none` does not (Dr. GRPO), `batch`
            divides by that of the whole rollout.
        clip_low: Ratios below 1 - clip_low earn no gradient.
        clip_high: Ratios above 1 + clip_high earn no gradient.
        dual_clip: Bounds the loss of negative advantages by this multiple; `None` is off.
        aggregation: How token terms become one number; see `functional.token_weights`.
        kwargs: See `PolicyGradient`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        advantage_scale: F.AdvantageScale = "std",
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        dual_clip: float | None = None,
        aggregation: F.AggregationMode = "seq-mean-token-mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            policy,
            advantage=GroupRelative(scale=advantage_scale),
            policy_loss=clipped_loss(clip_low, clip_high, dual_clip),
            aggregation=aggregation,
            **kwargs,
        )


def clipped_loss(clip_low: float, clip_high: float, dual_clip: float | None = None) -> PolicyLoss:
    """Return the clipped surrogate of PPO, its bounds checked.

    Raises:
        ValueError: A bound is out of range.
    """
    for key, value in (("clip_low", clip_low), ("clip_high", clip_high)):
        if value < 0:
            raise ValueError(f"model.init_args.{key} is {value}: it must be 0 or more")
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"model.init_args.dual_clip is {dual_clip}: it must be greater than 1, or null")
    return PolicyLoss(
        function="ppo_clip_loss", options={"clip_low": clip_low, "clip_high": clip_high, "dual_clip": dual_clip}
    )
