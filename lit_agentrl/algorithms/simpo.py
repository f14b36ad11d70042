"""Simple preference optimization: mean log-probs and a margin, without a reference."""

from __future__ import annotations

from typing import Any

from lit_agentrl import functional as F
from lit_agentrl.algorithms.preference import Compared, PreferenceAlgorithm, Verdict, above_zero
from lit_agentrl.policies.base import Policy
from lit_agentrl.rollouts.comparisons import Side


class SimPO(PreferenceAlgorithm):
    """Wants the mean log-prob of the preferred answer to lead by a margin (SimPO, arXiv 2405.14734).

    Args:
        policy: The policy that is trained.
        beta: Scale of the reward, which is beta x mean log-prob; 2 to 10 in the paper.
        margin: Target lead, in units of the reward; 0.3 to 1.6 in the paper.
        kwargs: See `Algorithm`.
    """

    def __init__(self, policy: Policy, *, beta: float = 2.0, margin: float = 1.0, **kwargs: Any) -> None:
        super().__init__(policy, reference=None, **kwargs)
        if margin < 0:
            raise ValueError(f"model.init_args.margin is {margin}: it must be 0 or more")
        self.beta = above_zero("beta", beta)
        self.margin = margin

    def compare(self, pairs: Compared) -> Verdict:
        """Return SimPO's loss."""
        chosen, rejected = (pairs.total(pairs.logprobs, side) for side in (Side.CHOSEN, Side.REJECTED))
        chosen_lengths, rejected_lengths = pairs.length(Side.CHOSEN), pairs.length(Side.REJECTED)
        return Verdict(
            loss=F.simpo_loss(chosen, rejected, chosen_lengths, rejected_lengths, beta=self.beta, margin=self.margin),
            chosen_reward=self.beta * chosen.detach() / chosen_lengths,
            rejected_reward=self.beta * rejected.detach() / rejected_lengths,
        )
