"""Answers that are compared, as a flat batch: the two answers of a pair stand behind the prompt that they share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch

from lit_agentrl.rollouts.batch import RolloutBatch, SegmentKind, TokenReason
from lit_agentrl.rollouts.segments import BatchBuilder
from lit_agentrl.token_ids import common_prefix_length
from lit_agentrl.types import Trajectory

SIDE = "side"
"""Column of a batch of comparisons, int64: a `Side`."""


class Side(IntEnum):
    """Which answer of a comparison a token belongs to."""

    SHARED = 0
    CHOSEN = 1
    REJECTED = 2
    MISMATCHED = 3
    """The answer to another prompt: never trained, only looked at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerTurn:
    """One reply and the ids that are new before it."""

    parent: int | None
    """Index of the turn that this one continues; `None` starts a new root."""
    context: Sequence[int]
    reply: Sequence[int]
    """The ids that the policy is to produce, the end of its turn included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """All that was said after a prompt, of which the replies are trained; one turn or a whole episode."""

    turns: tuple[AnswerTurn, ...]

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Answer:
        """Take rows of ids and mask apart, as `ChatFormat.demonstration_rows` gives them."""
        turns: list[AnswerTurn] = []
        for ids, mask in rows:
            parent, start = None, 0
            while 1 in mask[start:]:
                begin = start + list(mask[start:]).index(1)
                end = begin + [*mask[begin:], 0].index(0)
                turns.append(AnswerTurn(parent=parent, context=ids[start:begin], reply=ids[begin:end]))
                parent, start = len(turns) - 1, end
        return cls(turns=tuple(turns))

    @classmethod
    def from_trajectory(cls, trajectory: Trajectory) -> Answer:
        """Take over an episode, ids as they were sampled."""
        return cls(
            turns=tuple(
                AnswerTurn(parent=turn.parent, context=turn.prompt_ids, reply=turn.completion.token_ids)
                for turn in trajectory.turns
            )
        )

    @property
    def num_tokens(self) -> int:
        """Tokens that are to be produced."""
        return sum(len(turn.reply) for turn in self.turns)

    @property
    def longest_row(self) -> int:
        """Tokens of the longest row, from a root on."""
        ends: list[int] = []
        for turn in self.turns:
            ends.append((0 if turn.parent is None else ends[turn.parent]) + len(turn.context) + len(turn.reply))
        return max(ends, default=0)

    @property
    def prompt(self) -> tuple[int, ...]:
        """Ids before the first reply."""
        return tuple(self.turns[0].context)

    def behind(self, prompt: Sequence[int]) -> Answer:
        """Return the answer as if it had been given to another prompt."""
        turns = tuple(dataclasses.replace(t, context=prompt) if t.parent is None else t for t in self.turns)
        return Answer(turns=turns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A better and a worse answer to one prompt, or one answer that was judged alone: then the other is missing."""

    chosen: Answer | None = None
    rejected: Answer | None = None
    mismatched: Answer | None = None
    """The answer of another comparison behind the prompt of this one."""

    @property
    def answers(self) -> Iterator[tuple[Side, Answer]]:
        """The answers that are there, with their sides."""
        sides = ((Side.CHOSEN, self.chosen), (Side.REJECTED, self.rejected), (Side.MISMATCHED, self.mismatched))
        return ((side, answer) for side, answer in sides if answer is not None)

    @property
    def is_pair(self) -> bool:
        """Whether both answers are there."""
        return self.chosen is not None and self.rejected is not None

    @property
    def own(self) -> Answer:
        """The chosen answer, or the rejected one where it is alone."""
        answer = self.chosen or self.rejected
        assert answer is not None
        return answer

    @property
    def longest_row(self) -> int:
        """Tokens of the longest row of the answers that are trained."""
        return max(answer.longest_row for answer in (self.chosen, self.rejected) if answer is not None)

    def singles(self) -> list[Comparison]:
        """Return its answers as ones that were judged alone."""
        if not self.is_pair:
            return [self]
        return [Comparison(chosen=self.chosen), Comparison(rejected=self.rejected)]


def with_mismatched(comparisons: Sequence[Comparison], *, max_context: int) -> list[Comparison]:
    """Give each comparison the answer of the next one that has another prompt (KTO, arXiv 2402.01306, section 3.2).

    Args:
        comparisons: Of one optimizer step, over all ranks, in order.
        max_context: Where prompt and answer are longer together, the place stays empty.
    """
    result = []
    for number, comparison in enumerate(comparisons):
        prompt = comparison.own.prompt
        others = (comparisons[(number + step) % len(comparisons)].own for step in range(1, len(comparisons)))
        other = next((answer for answer in others if answer.prompt != prompt), None)
        moved = None if other is None else other.behind(prompt)
        fits = moved is not None and moved.longest_row <= max_context
        result.append(dataclasses.replace(comparison, mismatched=moved if fits else None))
    return result


def batch_from_comparisons(comparisons: Sequence[Comparison], *, temperature: float = 1.0) -> RolloutBatch:
    """Turn comparisons into a flat batch: `trajectory` numbers the comparisons, the column `SIDE` tells answers apart.

    What the answers of a comparison begin with alike is one shared segment, each turn is a segment. Replies get the
    reason `TRAINED`, those of mismatched answers `CONTEXT`; weights are 0. There may be no comparison at all.

    Args:
        comparisons: Those of one rank and optimizer step.
        temperature: With which log-probs are to be computed.
    """
    builder = BatchBuilder()
    sides: list[int] = []
    for number, comparison in enumerate(comparisons):
        answers = list(comparison.answers)
        roots = [turn.context for _, answer in answers for turn in answer.turns if turn.parent is None]
        shared = common_prefix_length(roots) if len(roots) > 1 else 0
        prompt = -1
        if shared:
            prompt = builder.add(context=roots[0][:shared], trajectory=number)
            sides.append(Side.SHARED)
        for side, answer in answers:
            places: list[int] = []
            for index, turn in enumerate(answer.turns):
                root = turn.parent is None
                places.append(
                    builder.add(
                        context=turn.context[shared:] if root else turn.context,
                        sampled=turn.reply,
                        logprobs=[0.0] * len(turn.reply),
                        parent=prompt if turn.parent is None else places[turn.parent],
                        trajectory=number,
                        turn=index,
                        kind=SegmentKind.DEMONSTRATION,
                        chain=index,
                    )
                )
                sides.append(side)
    batch = builder.batch(temperature=temperature)
    batch.columns[SIDE] = torch.tensor(sides, dtype=torch.int64)[batch.segment]
    batch.reason[batch.columns[SIDE] == Side.MISMATCHED] = TokenReason.CONTEXT
    return batch
