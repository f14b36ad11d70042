"""Preference learning from the policy's own episodes: pairs are made inside task groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from lit_agentrl import functional as F
from lit_agentrl.algorithms.base import OnPolicyAlgorithm
from lit_agentrl.algorithms.dpo import check_variant, compare_with_reference
from lit_agentrl.algorithms.preference import Compared, PreferenceAlgorithm, PreferenceReference, Verdict, above_zero
from lit_agentrl.policies.base import Policy
from lit_agentrl.rollouts.batch import RolloutBatch, TokenReason
from lit_agentrl.rollouts.comparisons import Answer, Comparison, batch_from_comparisons
from lit_agentrl.rollouts.rollout import Rollout
from lit_agentrl.seeding import derive_seed, permutation
from lit_agentrl.types import Trajectory

Pairs: TypeAlias = Mapping[int, Sequence[tuple[int | None, int]]]
"""Pairs (better, worse) by group, as numbers of trajectories; `None` stands for the demonstration."""


class EpisodePreference(PreferenceAlgorithm, OnPolicyAlgorithm):
    """Learns from pairs of episodes. Subclasses say which, and give the loss.

    Args:
        policy: The policy that is trained.
        kwargs: See `PreferenceAlgorithm` and `OnPolicyAlgorithm`.
    """

    def __init__(self, policy: Policy, **kwargs: Any) -> None:
        super().__init__(policy, **kwargs)

    @abstractmethod
    def pairs(self, rollout: Rollout) -> Pairs:
        """Return the pairs of this rank's episodes."""

    def credit(self, rollout: Rollout, batch: RolloutBatch) -> None:
        """Say of every sampled token whether its episode is part of a pair."""
        self._mark(rollout, batch, self.pairs(rollout))

    @staticmethod
    def _mark(rollout: Rollout, batch: RolloutBatch, found: Pairs) -> None:
        paired = {n for pairs in found.values() for pair in pairs for n in pair if n is not None}
        reasons = [
            TokenReason.TRAINED
            if number in paired
            else TokenReason.FAILED
            if trajectory.status == "failed"
            else TokenReason.FILTERED
            for number, trajectory in enumerate(rollout.trajectories)
        ]
        sampled = batch.reason == TokenReason.TRAINED
        owner = batch.trajectory[batch.segment[sampled]]
        batch.reason[sampled] = torch.tensor(reasons, dtype=torch.int64)[owner]

    def finish_weights(self, batch: RolloutBatch) -> None:
        """Fold the number of pairs into the weights."""
        self.fold_comparisons(batch)

    def batches(self, rollout: Rollout, batch: RolloutBatch) -> list[RolloutBatch]:
        """Cut the groups that have pairs, of all ranks, into exactly `batches_per_rollout` batches of pairs.

        The rollout keeps the whole batch, each token of a pair with the weight that its pair has in the first epoch.
        """
        self.sampled_by_policy = True
        pairs = self.pairs(rollout)
        self._mark(rollout, batch, pairs)
        rollout.batch = batch
        groups = sorted(group for ids in self.gather_objects([g for g in pairs if pairs[g]]) for group in ids)
        episodes = rollout.trajectories
        owner = batch.trajectory[batch.segment]
        parts = []
        for epoch in range(self.num_inner_epochs):
            order = permutation(derive_seed(self.run_seed, "minibatches", rollout.index, epoch), len(groups))
            for part in range(self.num_minibatches):
                mine = [g for place in order[part :: self.num_minibatches] if (g := groups[place]) in pairs]
                chosen = [(group, pair) for group in mine for pair in pairs[group]]
                comparisons = [
                    Comparison(
                        chosen=rollout.demonstrations[group]
                        if better is None
                        else Answer.from_trajectory(episodes[better]),
                        rejected=Answer.from_trajectory(episodes[worse]),
                    )
                    for group, (better, worse) in chosen
                ]
                minibatch = batch_from_comparisons(comparisons, temperature=batch.temperature)
                self.finish_weights(minibatch)
                parts.append(minibatch)
                if epoch == 0 and chosen:
                    members = torch.tensor([n for _, pair in chosen for n in pair if n is not None])
                    sampled = torch.isin(owner, members) & (batch.reason == TokenReason.TRAINED)
                    batch.weight[sampled] = minibatch.weight.max()
        return parts


class OnlineDPO(EpisodePreference):
    """DPO on the best against the worst episode of each group (online DPO, arXiv 2402.04792).

    Groups without spread give no pair. Failed episodes are not compared.

    Args:
        policy: The policy that is trained.
        beta: Strength of the pull to the reference.
        variant: See `DPO`.
        label_smoothing: See `DPO`.
        reference: See `PreferenceAlgorithm`.
        kwargs: See `OnPolicyAlgorithm`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        beta: float = 0.1,
        variant: F.PreferenceVariant = "sigmoid",
        label_smoothing: float = 0.0,
        reference: PreferenceReference = "start",
        **kwargs: Any,
    ) -> None:
        super().__init__(policy, reference=reference, **kwargs)
        check_variant(variant, label_smoothing)
        self.beta = above_zero("beta", beta)
        self.variant = variant
        self.label_smoothing = label_smoothing

    def check_sizes(self, *, num_groups: int, group_size: int) -> None:
        """Refuse groups in which there is nothing to compare."""
        super().check_sizes(num_groups=num_groups, group_size=group_size)
        check_group_size(self, group_size)

    def pairs(self, rollout: Rollout) -> Pairs:
        """Return one pair for each group with spread."""
        found = {}
        for group, members in comparable(rollout).items():
            rewards = torch.tensor([trajectory.reward for _, trajectory in members], dtype=torch.float64)
            pair = F.best_worst_pair(rewards)
            if pair is not None:
                found[group] = [(members[pair[0]][0], members[pair[1]][0])]
        return found

    def compare(self, pairs: Compared) -> Verdict:
        """Return the configured variant's loss."""
        return compare_with_reference(pairs, beta=self.beta, variant=self.variant, label_smoothing=self.label_smoothing)


def check_group_size(algorithm: object, group_size: int) -> None:
    """Refuse groups of one.

    Raises:
        ValueError: Names the key.
    """
    if group_size < 2:
        raise ValueError(
            f"data.init_args.group_size is {group_size}: {type(algorithm).__name__} compares the members of a group "
            "and needs at least 2"
        )


def comparable(rollout: Rollout) -> dict[int, list[tuple[int, Trajectory]]]:
    """Return the episodes that can be compared by group, numbered: those that failed or said nothing are left out."""
    groups: dict[int, list[tuple[int, Trajectory]]] = {}
    for number, trajectory in enumerate(rollout.trajectories):
        if trajectory.status != "failed" and trajectory.num_tokens:
            groups.setdefault(trajectory.group, []).append((number, trajectory))
    return groups
