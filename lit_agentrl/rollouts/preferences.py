"""Preferences as conversations, before they are token ids: pairs, single judgements, and siblings of a search."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lit_agentrl import functional as F
from lit_agentrl.policies.chat import ChatFormat
from lit_agentrl.rollouts.comparisons import Answer, Comparison
from lit_agentrl.types import Message


@dataclass(frozen=True, kw_only=True, slots=True)
class Preference:
    """What was said after a prompt and how it was judged. One of the two is missing where answers are judged alone."""

    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...] | None
    rejected: tuple[Message, ...] | None
    source: str = ""
    """File and line."""

    @property
    def opening(self) -> str:
        """What tells tasks apart: the prompt up to the first reply, so that all steps of one episode share it."""
        said = []
        for message in self.prompt:
            if message.role == "assistant":
                break
            said.append(f"{message.role}\x1f{message.text}")
        return "\x1e".join(said)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One branch of a node: what the agent would say, and what it is worth."""

    reply: tuple[Message, ...]
    q: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchNode:
    """A node of a search tree and its branches, which share all that was said before."""

    messages: tuple[Message, ...]
    candidates: tuple[Candidate, ...]
    source: str = ""
    """File and line."""


def sibling_preferences(node: SearchNode, *, min_gap: float) -> list[Preference]:
    """Return all pairs of a node's candidates whose Q differ by more than `min_gap` (arXiv 2408.07199).

    Candidates that say the same make no pair.
    """
    values = torch.tensor([candidate.q for candidate in node.candidates], dtype=torch.float64)
    pairs = F.preference_pairs(values, min_gap=min_gap).tolist() if node.candidates else []
    return [
        Preference(
            prompt=node.messages,
            chosen=node.candidates[better].reply,
            rejected=node.candidates[worse].reply,
            source=node.source,
        )
        for better, worse in pairs
        if node.candidates[better].reply != node.candidates[worse].reply
    ]


def encode(preference: Preference, chat: ChatFormat) -> Comparison:
    """Return a preference as token ids.

    Raises:
        ValueError: The chat template refuses the conversation; names file and line.
    """

    def answer(reply: Sequence[Message] | None) -> Answer | None:
        if reply is None:
            return None
        rows = chat.demonstration_rows([*preference.prompt, *reply], given=len(preference.prompt))
        # Arrays: a large data set as Python integers would take ten times the memory.
        return Answer.from_rows([(array("i", ids), mask) for ids, mask in rows])

    try:
        return Comparison(chosen=answer(preference.chosen), rejected=answer(preference.rejected))
    except ValueError as error:
        raise ValueError(f"data.init_args.files: {preference.source}: {error}") from None
