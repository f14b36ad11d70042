"""Group relative policy optimization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_agentrl import functional as F
from lit_agentrl.algorithms.base import OnPolicyAlgorithm
from lit_agentrl.policies.base import Policy
from lit_agentrl.rollouts.batch import RolloutBatch, TokenReason
from lit_agentrl.rollouts.rollout import Rollout


class GRPO(OnPolicyAlgorithm):
    """Advantages relative to the group, clipped surrogate loss (arXiv 2402.03300).

    Deviations:

    1. No KL term: the paper's 0.04 x k3 is left out, as later work does (arXiv 2503.14476, 2503.20783).
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
        aggregation_constant: Divisor of mode `constant`, in tokens.
        mask_truncated: Whether episodes that were cut short (length, turns, context) are left out of the loss and of
            the baselines. By default they are trained with the reward that they got, usually 0: the limits are part
            of the task, and a policy that rambles has to feel it.
        kwargs: See `OnPolicyAlgorithm`.
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
        aggregation_constant: float | None = None,
        mask_truncated: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(policy, **kwargs)
        for key, value in (("clip_low", clip_low), ("clip_high", clip_high)):
            if value < 0:
                raise ValueError(f"model.init_args.{key} is {value}: it must be 0 or more")
        if dual_clip is not None and dual_clip <= 1:
            raise ValueError(f"model.init_args.dual_clip is {dual_clip}: it must be greater than 1, or null")
        if aggregation_constant is not None and aggregation_constant <= 0:
            raise ValueError(f"model.init_args.aggregation_constant is {aggregation_constant}: it must be above 0")
        if (aggregation == "constant") != (aggregation_constant is not None):
            raise ValueError(
                "model.init_args.aggregation_constant belongs to model.init_args.aggregation: constant; set both or "
                "neither"
            )
        self.advantage_scale = advantage_scale
        self.clip_low = clip_low
        self.clip_high = clip_high
        self.dual_clip = dual_clip
        self.aggregation = aggregation
        self.aggregation_constant = aggregation_constant
        self.mask_truncated = mask_truncated

    def check_sizes(self, *, num_groups: int, group_size: int) -> None:
        """Refuse groups of one: their advantage is always 0."""
        super().check_sizes(num_groups=num_groups, group_size=group_size)
        if group_size < 2:
            raise ValueError(
                f"data.init_args.group_size is {group_size}: GRPO compares the members of a group and needs at least 2"
            )

    def credit(self, rollout: Rollout, batch: RolloutBatch) -> None:
        """Give every sampled token the group-relative advantage of its episode."""
        trajectories = rollout.trajectories
        rewards = torch.tensor([t.reward for t in trajectories], dtype=torch.float32)
        groups = torch.tensor([t.group for t in trajectories], dtype=torch.int64)
        failed = torch.tensor([t.status == "failed" for t in trajectories], dtype=torch.bool)
        truncated = torch.tensor([t.status == "truncated" for t in trajectories], dtype=torch.bool)
        masked = truncated & self.mask_truncated
        advantages = self.advantages(rewards, groups, ~(failed | masked))

        of_token = batch.trajectory[batch.segment].clamp_min(0)
        sampled = batch.reason == TokenReason.TRAINED
        batch.advantages = torch.where(sampled, advantages[of_token], 0.0)
        for reason, trajectory_mask in (
            (TokenReason.NO_SIGNAL, advantages == 0),
            (TokenReason.TRUNCATED, masked),
            (TokenReason.FAILED, failed),
        ):
            batch.reason[sampled & trajectory_mask[of_token]] = reason

    def advantages(self, rewards: Tensor, groups: Tensor, valid: Tensor) -> Tensor:
        """Return the advantage of every episode of this rank, [N]; 0 where not valid."""
        whole = None
        if self.advantage_scale == "batch":
            whole = sum(self.gather_objects(F.moments(rewards, valid)), F.Moments())
        return F.group_advantages(rewards, groups, scale=self.advantage_scale, valid=valid, batch_moments=whole)

    def finish_weights(self, batch: RolloutBatch) -> None:
        """Fold the aggregation's normaliser into the weights."""
        self.fold_weights(batch, mode=self.aggregation, constant=self.aggregation_constant)

    def loss(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the clipped surrogate."""
        index, logprobs, entropies = self.policy_logprobs(batch, batch.weight != 0)
        old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs[index]
        advantages = batch.advantages[index]
        token_loss = F.ppo_clip_loss(
            logprobs,
            old,
            advantages,
            torch.ones_like(logprobs),
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
        )
        with torch.no_grad():
            ratio = (logprobs - old).exp()
            clipped = ((ratio > 1 + self.clip_high) & (advantages > 0)) | (
                (ratio < 1 - self.clip_low) & (advantages < 0)
            )
            gap = old - batch.behavior_logprobs[index]
            terms = {
                "entropy": entropies.mean(),
                "ratio": ratio.mean(),
                "clip_fraction": clipped.float().mean(),
                "behavior_gap": gap.abs().mean(),
                "behavior_kl": -gap.mean(),
            }
        return (batch.weight[index] * token_loss).sum(), terms
