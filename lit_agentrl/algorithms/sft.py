"""Supervised fine-tuning on demonstrations."""

from __future__ import annotations

from torch import Tensor

from lit_agentrl.algorithms.base import Algorithm
from lit_agentrl.rollouts.batch import RolloutBatch


class SFT(Algorithm):
    """Maximum likelihood of demonstrated replies; every demonstrated token counts the same.

    Args are those of `Algorithm`.
    """

    def loss(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted negative log-likelihood; weights sum to 1 over the whole batch."""
        index, logprobs, entropies = self.policy_logprobs(batch, batch.weight != 0)
        loss = -(batch.weight[index] * logprobs).sum()
        return loss, {"nll": -logprobs.mean(), "entropy": entropies.mean()}
