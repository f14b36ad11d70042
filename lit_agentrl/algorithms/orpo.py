"""Odds-ratio preference optimization: supervised fine-tuning and preference in one loss, without a reference."""

from __future__ import annotations

from typing import Any

from lit_agentrl import functional as F
from lit_agentrl.algorithms.preference import Compared, PreferenceAlgorithm, Verdict, above_zero
from lit_agentrl.policies.base import Policy
from lit_agentrl.rollouts.comparisons import Side


class ORPO(PreferenceAlgorithm):
    """Imitates preferred answers and raises their odds over those of the others (ORPO, arXiv 2403.07691).

    Args:
        policy: The policy that is trained.
        odds_weight: Factor of the odds-ratio term.
        kwargs: See `Algorithm`.
    """

    def __init__(self, policy: Policy, *, odds_weight: float = 0.1, **kwargs: Any) -> None:
        super().__init__(policy, reference=None, **kwargs)
        self.odds_weight = above_zero("odds_weight", odds_weight)

    def compare(self, pairs: Compared) -> Verdict:
        """Return ORPO's loss; implicit rewards are mean log-probs times `odds_weight`."""
        chosen, rejected = (pairs.total(pairs.logprobs, side) for side in (Side.CHOSEN, Side.REJECTED))
        chosen_lengths, rejected_lengths = pairs.length(Side.CHOSEN), pairs.length(Side.REJECTED)
        return Verdict(
            loss=F.orpo_loss(chosen, rejected, chosen_lengths, rejected_lengths, weight=self.odds_weight),
            chosen_reward=self.odds_weight * chosen.detach() / chosen_lengths,
            rejected_reward=self.odds_weight * rejected.detach() / rejected_lengths,
        )
