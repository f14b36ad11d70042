"""From trajectories to the flat batch: ids exactly as sampled, prompts shared, nothing re-tokenised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from lit_agentrl.rollouts.batch import RolloutBatch, SegmentKind, TokenReason
from lit_agentrl.token_ids import common_prefix_length
from lit_agentrl.types import TrajectoryGroup


@dataclass(kw_only=True)
class BatchBuilder:
    """Collects segments; the lists are columns of the batch."""

    token_ids: list[int] = field(default_factory=list)
    position_ids: list[int] = field(default_factory=list)
    segment: list[int] = field(default_factory=list)
    reason: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    trajectory: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)
    ends_at: list[int] = field(default_factory=list)

    def add(
        self,
        *,
        context: Sequence[int],
        sampled: Sequence[int] = (),
        logprobs: Sequence[float] = (),
        version: int = -1,
        parent: int = -1,
        trajectory: int = -1,
        turn: int = -1,
        kind: SegmentKind = SegmentKind.PROMPT,
        chain: int = 0,
    ) -> int:
        """Append a segment of context ids followed by sampled ids, and return its index."""
        if len(sampled) != len(logprobs):
            raise ValueError(f"{len(sampled)} sampled ids have {len(logprobs)} log-probs: trajectory {trajectory}")
        index = len(self.parent)
        start = self.ends_at[parent] if parent >= 0 else 0
        count = len(context) + len(sampled)
        self.token_ids += [*context, *sampled]
        self.position_ids += range(start, start + count)
        self.segment += [index] * count
        self.reason += [TokenReason.CONTEXT] * len(context) + [TokenReason.TRAINED] * len(sampled)
        self.logprobs += [0.0] * len(context) + list(logprobs)
        self.version += [-1] * len(context) + [version] * len(sampled)
        self.parent.append(parent)
        self.trajectory.append(trajectory)
        self.turn.append(turn)
        self.kind.append(kind)
        self.chain.append(chain)
        self.ends_at.append(start + count)
        return index

    def batch(self, *, temperature: float) -> RolloutBatch:
        """Make the tensors. Weights are 0 until credit has been given."""
        integers = torch.int64
        count = len(self.token_ids)
        return RolloutBatch(
            token_ids=torch.tensor(self.token_ids, dtype=integers),
            position_ids=torch.tensor(self.position_ids, dtype=integers),
            segment=torch.tensor(self.segment, dtype=integers),
            weight=torch.zeros(count, dtype=torch.float32),
            reason=torch.tensor(self.reason, dtype=integers),
            behavior_logprobs=torch.tensor(self.logprobs, dtype=torch.float32),
            old_logprobs=None,
            advantages=torch.zeros(count, dtype=torch.float32),
            policy_version=torch.tensor(self.version, dtype=integers),
            parent_segment=torch.tensor(self.parent, dtype=integers),
            trajectory=torch.tensor(self.trajectory, dtype=integers),
            turn=torch.tensor(self.turn, dtype=integers),
            kind=torch.tensor(self.kind, dtype=integers),
            chain=torch.tensor(self.chain, dtype=integers),
            temperature=temperature,
        )


def batch_from_groups(
    groups: Sequence[TrajectoryGroup], *, temperature: float = 1.0, closings: bool = False
) -> RolloutBatch:
    """Turn task groups into one flat batch.

    Trajectories are numbered in order over all groups. Members of a group whose first prompts are equal share one
    prompt segment. A turn whose `parent` is `None` starts a new root. Sampled tokens get the reason `TRAINED`
    and weight 0.

    Args:
        groups: The groups of one rollout.
        temperature: Sampling temperature, with which log-probs are to be computed.
        closings: Whether what would have been the next prompt of a truncated episode gets a segment of its own.
    """
    builder = BatchBuilder()
    number = -1
    for group in groups:
        prompts: dict[tuple[int, ...], int] = {}
        for trajectory in group.trajectories:
            number += 1
            segment_of_turn: list[int] = []
            for index, turn in enumerate(trajectory.turns):
                context = turn.prompt_ids
                if turn.parent is None:
                    if context not in prompts:
                        prompts[context] = builder.add(context=context)
                    parent, context = prompts[context], ()
                else:
                    parent = segment_of_turn[turn.parent]
                segment_of_turn.append(
                    builder.add(
                        context=context,
                        sampled=turn.completion.token_ids,
                        logprobs=turn.completion.logprobs,
                        version=turn.completion.policy_version,
                        parent=parent,
                        trajectory=number,
                        turn=index,
                        kind=SegmentKind.TURN,
                        chain=index,
                    )
                )
            if closings and trajectory.closing_ids and segment_of_turn:
                builder.add(
                    context=trajectory.closing_ids,
                    parent=segment_of_turn[-1],
                    trajectory=number,
                    turn=len(segment_of_turn),
                    kind=SegmentKind.CLOSING,
                    chain=len(segment_of_turn),
                )
    return builder.batch(temperature=temperature)


def batch_from_demonstrations(demonstrations: Sequence[tuple[Sequence[int], Sequence[int]]]) -> RolloutBatch:
    """Turn (ids, mask) pairs into a flat batch; ids where the mask is 1 are to be trained.

    What all demonstrations begin with and none trains (a system prompt) becomes one shared segment.
    """
    for number, (ids, mask) in enumerate(demonstrations):
        if len(ids) != len(mask):
            raise ValueError(f"demonstration {number} has {len(ids)} ids and {len(mask)} mask entries")
    untrained = [ids[: list(mask).index(1)] if 1 in mask else ids for ids, mask in demonstrations]
    shared = common_prefix_length(untrained) if len(demonstrations) > 1 else 0
    builder = BatchBuilder()
    trained: list[bool] = [False] * shared
    prefix = builder.add(context=demonstrations[0][0][:shared]) if shared else -1
    for number, (ids, mask) in enumerate(demonstrations):
        builder.add(context=ids[shared:], parent=prefix, trajectory=number, turn=0, kind=SegmentKind.DEMONSTRATION)
        trained += [bool(flag) for flag in mask[shared:]]
    batch = builder.batch(temperature=1.0)
    batch.reason[torch.tensor(trained, dtype=torch.bool)] = TokenReason.TRAINED
    return batch
