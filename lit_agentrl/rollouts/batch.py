"""The training batch: flat, one entry per token, with the tree of segments beside it.

A segment is a run of tokens with one parent: the prompt that a group shares, or a turn that continues the one before.
A padded `[B, T]` tensor is a view of this (`PaddedView`); so are other packings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Self

import torch
from torch import Tensor


class TokenReason(IntEnum):
    """What became of a token. Every sampled token has exactly one; the closed list makes the accounting complete."""

    CONTEXT = 0
    """Not sampled by the policy: prompt, observation, tool output."""
    TRAINED = 1
    NO_SIGNAL = 2
    """The advantage is exactly 0 and no other term needs the token: it counts in the normaliser, costs no compute."""
    FAILED = 3
    """The episode failed: no reward, no baseline."""
    TRUNCATED = 4
    """The episode was cut short and the algorithm masks such episodes."""
    FILTERED = 5
    """Dropped by the algorithm's own choice of groups or samples."""
    SEARCH = 6
    """Chosen by a search: not a sample of the policy."""
    OFF_POLICY = 7
    """Too far from the policy that is trained."""


class SegmentKind(IntEnum):
    """What a segment holds."""

    PROMPT = 0
    TURN = 1
    DEMONSTRATION = 2
    CLOSING = 3
    """What a truncated episode would have read next."""


@dataclass(kw_only=True)
class RolloutBatch:
    """Tokens of many trajectories and how they hang together. N tokens, S segments; segments are contiguous."""

    token_ids: Tensor
    """[N] int64"""
    position_ids: Tensor
    """[N] int64: position in the row from the root on."""
    segment: Tensor
    """[N] int64, non-decreasing."""
    weight: Tensor
    """[N] float32: factor of the token's term in the loss, which is a plain sum, normalisers folded in; 0: masked."""
    reason: Tensor
    """[N] int64: a `TokenReason`."""
    behavior_logprobs: Tensor
    """[N] float32: log-prob under the distribution that the token was drawn from; 0 where it was not drawn."""
    old_logprobs: Tensor | None
    """[N] float32: the trainer's own log-prob at rollout time. `None`: the current ones (one step a rollout)."""
    advantages: Tensor
    """[N] float32"""
    policy_version: Tensor
    """[N] int64: version that drew the token, -1 where it was not drawn."""
    parent_segment: Tensor
    """[S] int64: -1 for a root; a parent always comes before its children."""
    trajectory: Tensor
    """[S] int64: index into the rollout's trajectories, -1 for a prompt that several share."""
    turn: Tensor
    """[S] int64: -1 for a prompt."""
    kind: Tensor
    """[S] int64: a `SegmentKind`."""
    chain: Tensor
    """[S] int64: order of the segments of one trajectory, for recurrence."""
    origin: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """[N] int64: the token's place in the batch of the whole rollout; kept through every selection."""
    columns: dict[str, Tensor] = field(default_factory=dict)
    """[N] each: what else an algorithm knows of every token (log-probs of a reference, values, returns)."""
    further_weights: dict[str, Tensor] = field(default_factory=dict)
    """[N] each: what `weight` is for the policy's term, for the others (values); zeroed in selections as it is."""
    temperature: float = 1.0
    metrics: dict[str, float] = field(default_factory=dict)
    """What is to be logged with this batch: the figures of the rollout, on its first batch."""

    def __post_init__(self) -> None:
        # As lists, because they are read one by one; on a GPU each such read of a tensor would wait for the device.
        self._ends: list[int] = torch.bincount(self.segment, minlength=self.num_segments).cumsum(0).tolist()
        self._parents: list[int] = self.parent_segment.tolist()
        if self.origin.numel() != self.num_tokens:
            self.origin = torch.arange(self.num_tokens, device=self.token_ids.device)

    @property
    def num_tokens(self) -> int:
        """Tokens, context included."""
        return self.token_ids.numel()

    @property
    def num_segments(self) -> int:
        """Segments."""
        return self.parent_segment.numel()

    def to(self, device: torch.device | str) -> Self:
        """Return the batch on a device."""
        moved: dict[str, Any] = {
            f.name: value.to(device)
            for f in dataclasses.fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        for name in ("columns", "further_weights"):
            moved[name] = {key: column.to(device) for key, column in getattr(self, name).items()}
        return dataclasses.replace(self, **moved)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values from which `from_state_dict` makes the same batch."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Self:
        """Undo `state_dict`."""
        return cls(**state)

    def span(self, segment: int) -> slice:
        """Return where a segment's tokens lie."""
        return slice(self._ends[segment - 1] if segment else 0, self._ends[segment])

    def leaves(self) -> list[int]:
        """Return the segments that no other continues; each is the end of one row."""
        parents = set(self._parents)
        return [index for index in range(self.num_segments) if index not in parents]

    def last_tokens(self) -> Tensor:
        """Return the last token of each trajectory's last segment, bool [N]; trajectories without tokens have none."""
        last: dict[int, int] = {}
        for segment, trajectory in enumerate(self.trajectory.tolist()):
            span = self.span(segment)
            if trajectory >= 0 and span.stop > span.start:
                last[trajectory] = span.stop - 1
        ends = torch.zeros(self.num_tokens, dtype=torch.bool, device=self.token_ids.device)
        ends[list(last.values())] = True
        return ends

    def path(self, segment: int) -> list[int]:
        """Return the segments from the root to this one."""
        path = []
        while segment >= 0:
            path.append(segment)
            segment = self._parents[segment]
        return path[::-1]

    def row_length(self, leaf: int) -> int:
        """Return the tokens from the root to the end of a segment."""
        return sum(self.span(segment).stop - self.span(segment).start for segment in self.path(leaf))

    def select(self, segments: Sequence[int]) -> Self:
        """Return the batch of these segments and their ancestors.

        Tokens of ancestors that were not asked for come along as context: their weight is 0, so that a token is trained
        in one selection only.
        """
        asked = set(segments)
        kept = sorted({ancestor for segment in segments for ancestor in self.path(segment)})
        renumbered = {old: new for new, old in enumerate(kept)}
        device = self.token_ids.device
        spans = [self.span(segment) for segment in kept]
        tokens = _ranges(spans).to(device)
        lengths = torch.tensor([s.stop - s.start for s in spans], dtype=torch.int64, device=device)
        index = torch.tensor(kept, dtype=torch.int64, device=device)
        owned = torch.tensor([segment in asked for segment in kept], dtype=torch.bool, device=device)
        parents = [renumbered.get(self._parents[segment], -1) for segment in kept]
        segment = torch.repeat_interleave(torch.arange(len(kept), device=device), lengths)
        return dataclasses.replace(
            self,
            token_ids=self.token_ids[tokens],
            position_ids=self.position_ids[tokens],
            segment=segment,
            weight=self.weight[tokens] * owned[segment],
            reason=self.reason[tokens],
            behavior_logprobs=self.behavior_logprobs[tokens],
            old_logprobs=None if self.old_logprobs is None else self.old_logprobs[tokens],
            advantages=self.advantages[tokens],
            policy_version=self.policy_version[tokens],
            parent_segment=torch.tensor(parents, dtype=torch.int64, device=device),
            trajectory=self.trajectory[index],
            turn=self.turn[index],
            kind=self.kind[index],
            chain=self.chain[index],
            origin=self.origin[tokens],
            columns={name: column[tokens] for name, column in self.columns.items()},
            further_weights={name: w[tokens] * owned[segment] for name, w in self.further_weights.items()},
        )

    def select_trajectories(self, trajectories: Sequence[int]) -> Self:
        """Return the batch of these trajectories, with the prompts that they share."""
        wanted = set(trajectories)
        return self.select([s for s, trajectory in enumerate(self.trajectory.tolist()) if trajectory in wanted])

    def micro_batches(
        self, max_tokens: int, *, wanted: Tensor | None = None, whole_trajectories: bool = False
    ) -> Iterator[Self]:
        """Cut the batch into pieces of at most `max_tokens` padded tokens, or of one row.

        Rows without a wanted token are left out. Rows of like length share a piece. A token that several rows share
        keeps its weight in the first of them.

        Args:
            max_tokens: Rows times longest row of a piece.
            wanted: [N] bool; default: tokens with a weight.
            whole_trajectories: Keep all rows of a trajectory in one piece, which may then be larger.
        """
        wanted = self.weight != 0 if wanted is None else wanted
        trained_segments = set(self.segment[wanted].tolist())
        rows = []
        taken: set[int] = set()
        for leaf in self.leaves():
            owned = [s for s in self.path(leaf) if s not in taken]
            taken.update(owned)
            if trained_segments.intersection(owned):
                rows.append((self.row_length(leaf), leaf, owned))
        rows.sort(key=lambda row: (row[0], row[1]), reverse=True)
        piece: list[int] = []
        rows_in_piece, longest = 0, 0
        for unit in self._units(rows) if whole_trajectories else [[row] for row in rows]:
            length = max(length for length, _, _ in unit)
            longest = max(longest, length)
            if rows_in_piece and longest * (rows_in_piece + len(unit)) > max_tokens:
                yield self.select(piece)
                piece, rows_in_piece, longest = [], 0, length
            piece.extend(segment for _, _, owned in unit for segment in owned)
            rows_in_piece += len(unit)
        if piece:
            yield self.select(piece)

    def _units(self, rows: list[tuple[int, int, list[int]]]) -> list[list[tuple[int, int, list[int]]]]:
        """Put rows of one trajectory together, in the order of the longest of them."""
        owners = self.trajectory.tolist()
        units: dict[int, list[tuple[int, int, list[int]]]] = {}
        for row in rows:
            units.setdefault(owners[row[1]], []).append(row)
        return list(units.values())

    def padded(self, wanted: Tensor, *, pad_id: int = 0) -> PaddedView:
        """Lay the rows out as a rectangle.

        Args:
            wanted: [N] bool, tokens whose log-probs are needed.
            pad_id: Id that fills the gaps; any, it is masked.
        """
        device = self.token_ids.device
        rows = [_ranges([self.span(segment) for segment in self.path(leaf)]) for leaf in self.leaves()]
        width = max((row.numel() for row in rows), default=0)
        flat_index = torch.full((len(rows), width), -1, dtype=torch.int64)
        for number, row in enumerate(rows):
            flat_index[number, : row.numel()] = row
        flat_index = flat_index.to(device)
        real = flat_index >= 0
        at = flat_index.clamp_min(0)
        # A root's first token has nothing before it to be predicted from.
        hits = real & wanted[at] & (self.position_ids[at] > 0)
        row_of, column_of = hits.nonzero(as_tuple=True)
        token_index = flat_index[row_of, column_of]
        first = _first_occurrence(token_index)
        return PaddedView(
            input_ids=torch.where(real, self.token_ids[at], pad_id),
            attention_mask=real.long(),
            position_ids=torch.where(real, self.position_ids[at], 0),
            rows=row_of[first],
            columns=column_of[first],
            sources=column_of[first] - 1,
            token_index=token_index[first],
        )


def _ranges(spans: Sequence[slice]) -> Tensor:
    """Return the indices of some slices, one after the other, int64."""
    return torch.cat([torch.arange(0), *(torch.arange(span.start, span.stop) for span in spans)])


def _first_occurrence(values: Tensor) -> Tensor:
    """Return the positions at which each value is seen for the first time, in order."""
    order = torch.argsort(values, stable=True)
    ordered = values[order]
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return order[is_first].sort().values


@dataclass(frozen=True, kw_only=True)
class PaddedView:
    """Rows of a batch as a rectangle, right-padded, and where the wanted tokens lie in it."""

    input_ids: Tensor
    """[B, T] int64"""
    attention_mask: Tensor
    """[B, T] int64, 1 = real token"""
    position_ids: Tensor
    """[B, T] int64"""
    rows: Tensor
    """[M] int64"""
    columns: Tensor
    """[M] int64, at least 1"""
    sources: Tensor
    """[M] int64: column of the token before it, whose hidden state predicts it."""
    token_index: Tensor
    """[M] int64: the wanted tokens' places in the flat batch."""
