"""Kahneman-Tversky optimization: answers that were judged one by one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_agentrl import functional as F
from lit_agentrl.algorithms.preference import (
    REF_LOGPROBS,
    Compared,
    PreferenceAlgorithm,
    PreferenceReference,
    Verdict,
    above_zero,
)
from lit_agentrl.policies.base import Policy
from lit_agentrl.rollouts.batch import RolloutBatch
from lit_agentrl.rollouts.comparisons import SIDE, Side

_BASELINE = "kl_baseline"


class KTO(PreferenceAlgorithm):
    """Moves answers away from a baseline, up or down as they were judged; needs no pairs (KTO, arXiv 2402.01306).

    The baseline is the mean of log(policy/reference) over answers to other prompts. It is computed over the global
    batch before the step, so that it depends on neither micro-batches nor ranks.

    Args:
        policy: The policy that is trained.
        beta: Strength of the pull to the reference.
        desirable_weight: Of the losses of desirable answers. The paper advises weights that make desirable and
            undesirable answers weigh between 1:1 and 4:3 together.
        undesirable_weight: Of the others.
        reference: See `PreferenceAlgorithm`.
        kwargs: See `Algorithm`.
    """

    needs_pairs = False
    needs_mismatched = True

    def __init__(
        self,
        policy: Policy,
        *,
        beta: float = 0.1,
        desirable_weight: float = 1.0,
        undesirable_weight: float = 1.0,
        reference: PreferenceReference = "start",
        **kwargs: Any,
    ) -> None:
        super().__init__(policy, reference=reference, **kwargs)
        self.beta = above_zero("beta", beta)
        self.desirable_weight = above_zero("desirable_weight", desirable_weight)
        self.undesirable_weight = above_zero("undesirable_weight", undesirable_weight)

    def prepare(self, batch: RolloutBatch) -> None:
        """Write the reference's log-probs and the baseline, the same number for all tokens."""
        super().prepare(batch)
        mismatched = batch.columns[SIDE] == Side.MISMATCHED
        nothing = torch.zeros_like(batch.behavior_logprobs)
        own = self.logprobs_of(batch, mismatched, otherwise=nothing)
        total = (own - batch.columns[REF_LOGPROBS])[mismatched].double().sum()
        answers = torch.unique(batch.trajectory[batch.segment[mismatched]]).numel()
        total, count = self.sum_over_ranks(torch.stack([total, total.new_tensor(answers)])).tolist()
        batch.columns[_BASELINE] = torch.full((batch.num_tokens,), max(total / count, 0.0) if count else 0.0)

    def compare(self, pairs: Compared) -> Verdict:
        """Return KTO's loss; each comparison is one answer."""
        logprobs, reference = pairs.total(pairs.logprobs), pairs.total(pairs.reference)
        desirable = pairs.length(Side.CHOSEN) > 0
        loss = F.kto_loss(
            logprobs,
            reference,
            desirable,
            pairs.column(_BASELINE)[:1].to(logprobs.dtype),
            beta=self.beta,
            desirable_weight=self.desirable_weight,
            undesirable_weight=self.undesirable_weight,
        )
        reward = F.implicit_rewards(logprobs, reference, beta=self.beta).detach()
        zero = torch.zeros_like(reward)
        return Verdict(
            loss=loss,
            chosen_reward=torch.where(desirable, reward, zero),
            rejected_reward=torch.where(desirable, zero, reward),
        )

    def figures(self, compared: Compared, verdict: Verdict) -> dict[str, Tensor]:
        """Return sums over one kind of answers per answer of both kinds; `finish_means` makes them means."""
        desirable = compared.length(Side.CHOSEN) > 0
        reward = verdict.chosen_reward + verdict.rejected_reward
        baseline = compared.column(_BASELINE)[:1].to(reward.dtype)
        right = torch.where(desirable, reward > self.beta * baseline, reward < self.beta * baseline)
        figures = super().figures(compared, verdict)
        return figures | {
            "desirable": desirable.float().mean(),
            "reward_accuracy": right.float().mean(),
            "kl_baseline": baseline.mean(),
        }

    def finish_means(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        """Turn the figures of each kind of answers into means over that kind; NaN where there is none of it."""
        shares = {"chosen": means["desirable"], "rejected": 1 - means["desirable"]}
        for kind, share in shares.items():
            for name in (f"{kind}_reward", f"{kind}_logprob"):
                means[name] = means[name] / share
        means["reward_margin"] = means["chosen_reward"] - means["rejected_reward"]
        return means
