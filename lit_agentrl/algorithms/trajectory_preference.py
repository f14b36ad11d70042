"""Preferences between whole episodes over several turns: ETO and DMPO."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from lit_agentrl import functional as F
from lit_agentrl.algorithms.dpo import compare_with_reference
from lit_agentrl.algorithms.online_preference import EpisodePreference, Pairs, check_group_size, comparable
from lit_agentrl.algorithms.preference import Compared, PreferenceReference, Verdict, above_zero
from lit_agentrl.policies.base import Policy
from lit_agentrl.rollouts.comparisons import SIDE, Side
from lit_agentrl.rollouts.rollout import Rollout


class ETO(EpisodePreference):
    """DPO over the action tokens of a success and a failure at one task (ETO, arXiv 2403.02502).

    On rollouts, each failure of a group is paired with a success of the same group, one to one in order; with
    `demonstrations`, failures that are left over are paired with the environment's own solution.

    Args:
        policy: The policy that is trained.
        beta: Strength of the pull to the reference.
        demonstrations: Whether the environment shows solutions, as in the paper; it needs a `demonstrate` method.
        reference: See `PreferenceAlgorithm`.
        kwargs: See `OnPolicyAlgorithm`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        beta: float = 0.1,
        demonstrations: bool = False,
        reference: PreferenceReference = "start",
        **kwargs: Any,
    ) -> None:
        super().__init__(policy, reference=reference, **kwargs)
        self.beta = above_zero("beta", beta)
        self.needs_demonstrations = demonstrations

    def check_sizes(self, *, num_groups: int, group_size: int) -> None:
        """Refuse groups in which there is nothing to compare."""
        super().check_sizes(num_groups=num_groups, group_size=group_size)
        if not self.needs_demonstrations:
            check_group_size(self, group_size)

    def pairs(self, rollout: Rollout) -> Pairs:
        """Return failures with a success each, or with the demonstration."""
        found = {}
        for group, members in comparable(rollout).items():
            won = [number for number, trajectory in members if trajectory.success]
            lost = [number for number, trajectory in members if not trajectory.success]
            if group not in rollout.demonstrations:
                lost = lost[: len(won)]
            found[group] = list(zip_longest(won[: len(lost)], lost))
        return {group: pairs for group, pairs in found.items() if pairs}

    def compare(self, pairs: Compared) -> Verdict:
        """Return DPO's loss over the tokens that the agent wrote."""
        return compare_with_reference(pairs, beta=self.beta)


class DMPO(ETO):
    """ETO with turns that weigh less the later they come, normalised by length (DMPO, arXiv 2406.14868).

    Args:
        policy: The policy that is trained.
        beta: Strength of the pull to the reference.
        gamma: Discount per turn, in (0, 1]; smaller weighs early turns more.
        demonstrations: See `ETO`.
        reference: See `PreferenceAlgorithm`.
        kwargs: See `OnPolicyAlgorithm`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        beta: float = 0.1,
        gamma: float = 0.9,
        demonstrations: bool = False,
        reference: PreferenceReference = "start",
        **kwargs: Any,
    ) -> None:
        super().__init__(policy, beta=beta, demonstrations=demonstrations, reference=reference, **kwargs)
        if not 0 < gamma <= 1:
            raise ValueError(f"model.init_args.gamma is {gamma}: it must lie in (0, 1]")
        self.gamma = gamma

    def compare(self, pairs: Compared) -> Verdict:
        """Return the loss over weighted turns; implicit rewards are beta times the weighted log-ratios."""
        policy, reference, mask = [], [], []
        for side in (Side.CHOSEN, Side.REJECTED):
            policy.append(_by_turn(pairs, pairs.logprobs, side))
            reference.append(_by_turn(pairs, pairs.reference, side))
            mask.append(_by_turn(pairs, torch.ones_like(pairs.logprobs), side) > 0)
        loss = F.dmpo_loss(
            *policy, *reference, chosen_mask=mask[0], rejected_mask=mask[1], gamma=self.gamma, beta=self.beta
        )
        rewards = [
            (F.dmpo_weights(turns, gamma=self.gamma, dtype=own.dtype) * F.implicit_rewards(own, ref, beta=self.beta))
            .sum(-1)
            .detach()
            for own, ref, turns in zip(policy, reference, mask, strict=True)
        ]
        return Verdict(loss=loss, chosen_reward=rewards[0], rejected_reward=rewards[1])


def _by_turn(pairs: Compared, values: Tensor, side: Side) -> Tensor:
    """Return the sums of [M] values over the turns of one side, [P, K]; K is the largest number of turns."""
    turns = int(pairs.turn.max()) + 1 if pairs.turn.numel() else 1
    count = pairs.weight.numel()
    values = torch.where(pairs.column(SIDE) == side, values, torch.zeros_like(values))
    sums = torch.zeros(count * turns, dtype=values.dtype, device=values.device)
    return sums.index_add(0, pairs.place * turns + pairs.turn, values).view(count, turns)
