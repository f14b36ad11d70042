"""On-policy distillation: the policy writes, a teacher says how it would have gone on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lit_agentrl import functional as F
from lit_agentrl.algorithms.credit import AdvantageEstimator, Episodes
from lit_agentrl.algorithms.policy_gradient import PolicyGradient
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.policies.base import Policy
from lit_agentrl.policies.hf import HFPolicy
from lit_agentrl.rollouts.batch import RolloutBatch, TokenReason
from lit_agentrl.rollouts.rollout import Rollout

_DEFAULT_LOSS = PolicyLoss(function="reinforce_loss")


@dataclass(frozen=True, kw_only=True)
class TeacherGap(AdvantageEstimator):
    """How much likelier a teacher finds each token than the policy does, and what the reward says beside it.

    Args:
        weight: Of the teacher's word.
        reward: Credit for rewards, added; default: none.
    """

    weight: float = 1.0
    reward: AdvantageEstimator | None = None
    needs_values = True

    @property
    def reads_penalties(self) -> bool:  # type: ignore[override]
        """Whether a KL in the reward has an effect."""
        return self.reward is not None and self.reward.reads_penalties

    def advantages(self, episodes: Episodes) -> Tensor:
        """Return one number per token."""
        assert episodes.values is not None
        advantages = self.weight * episodes.values
        return advantages if self.reward is None else advantages + self.reward.advantages(episodes)


class Distillation(PolicyGradient):
    """Lowers KL(policy ‖ teacher) on what the policy itself writes (MiniLLM, arXiv 2306.08543; GKD, 2306.13649).

    The advantage of a token is log π_teacher - log π, detached: the one-sample estimate of the reverse KL's gradient
    at each state. What later tokens cost is not charged to earlier ones, which makes the variance low and the gradient
    that of the per-token divergence, not of the divergence between whole episodes.

    Args:
        policy: The policy that is trained.
        teacher: Folder or name of a causal language model with the policy's own vocabulary; for a run's policy, what
            `export` wrote.
        weight: Of the teacher's word against the reward's.
        reward: Credit for rewards, such as `lit_agentrl.algorithms.credit.GroupRelative`; default: none.
        policy_loss: Loss per token.
        aggregation: How token terms become one number; see `functional.token_weights`.
        kwargs: See `PolicyGradient`.
    """

    gives_values = True

    def __init__(
        self,
        policy: Policy,
        *,
        teacher: str,
        weight: float = 1.0,
        reward: AdvantageEstimator | None = None,
        policy_loss: PolicyLoss = _DEFAULT_LOSS,
        aggregation: F.AggregationMode = "token-mean",
        **kwargs: Any,
    ) -> None:
        if weight <= 0:
            raise ValueError(f"model.init_args.weight is {weight}: it must be above 0")
        if reward is not None and reward.needs_values:
            raise ValueError(
                f"model.init_args.reward: {type(reward).__name__} reads a critic, which {type(self).__name__} has not"
            )
        super().__init__(
            policy,
            advantage=TeacherGap(weight=weight, reward=reward),
            policy_loss=policy_loss,
            aggregation=aggregation,
            **kwargs,
        )
        self.teacher_name = teacher
        # In a list, so that it is neither trained, nor wrapped, nor part of checkpoints.
        self._teacher: list[Policy] = []

    def check_sizes(self, *, num_groups: int, group_size: int) -> None:
        """Refuse groups that are too small for the credit of rewards."""
        super().check_sizes(num_groups=num_groups, group_size=group_size)
        assert isinstance(self.advantage, TeacherGap)
        reward = self.advantage.reward
        if reward is not None and group_size < reward.min_group_size:
            raise ValueError(
                f"data.init_args.group_size is {group_size}: model.init_args.reward: {type(reward).__name__} compares "
                f"the members of a group and needs at least {reward.min_group_size}"
            )

    def configure_model(self) -> None:
        """Make the weights, and load the teacher.

        Raises:
            ValueError: There is no such teacher, or it has another vocabulary.
        """
        super().configure_model()
        if self._teacher:
            return
        teacher = HFPolicy(self.teacher_name)
        try:
            teacher.build()
        except (ValueError, OSError) as error:
            raise ValueError(f"model.init_args.teacher is {self.teacher_name!r}: {error}") from error
        teacher.requires_grad_(False).eval()
        assert teacher.tokenizer is not None
        assert self.policy.tokenizer is not None
        if teacher.tokenizer.get_vocab() != self.policy.tokenizer.get_vocab():
            raise ValueError(
                f"model.init_args.teacher is {self.teacher_name!r}: it has another vocabulary than the policy, so its "
                "log-probs are of other tokens; choose a teacher with the same tokenizer"
            )
        self._teacher = [teacher]

    def state_values(self, rollout: Rollout, batch: RolloutBatch) -> dict[str, Tensor]:
        """Return log π_teacher - log π of every sampled token."""
        (teacher,) = self._teacher
        dtype = self.policy.causal_lm.dtype
        teacher.to(self.device, dtype)
        sampled = batch.reason == TokenReason.TRAINED
        own = self.old_logprobs(batch)
        shown = self.logprobs_of(batch, sampled, otherwise=own, policy=teacher)
        gap = torch.where(sampled, shown - own, 0.0)
        counts = self.gather_objects((float(gap.sum()), int(sampled.sum())))
        batch.metrics["rollout/teacher_kl"] = -sum(s for s, _ in counts) / max(sum(n for _, n in counts), 1)
        return {"values": gap}
