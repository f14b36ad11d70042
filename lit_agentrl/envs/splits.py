"""Splits by content: the text of a question decides where it belongs, so no question is ever in two splits.

Disjoint seeds are not enough: small procedural families draw the same question from many seeds.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Hashable
from typing import TypeVar

from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import Split

Item = TypeVar("Item")

SPLIT_PERCENT: dict[Split, int] = {"train": 80, "val": 10, "test": 10}
_MAX_HELD_OUT = 4096  # seeds of an evaluation that are known; more are drawn like those of training
_KEY = b"lit_agentrl splits"


def content_digest(text: str) -> str:
    """Return 16 hexadecimal digits that depend on a text alone, the amount of whitespace aside."""
    return hashlib.blake2b(" ".join(text.split()).encode(), key=_KEY, digest_size=8).hexdigest()


def split_of(text: str) -> Split:
    """Return the split that a question belongs to: 80 % train, 10 % val, 10 % test."""
    percent = int(content_digest(text), 16) % 100
    if percent < SPLIT_PERCENT["train"]:
        return "train"
    return "val" if percent < SPLIT_PERCENT["train"] + SPLIT_PERCENT["val"] else "test"


def draw_until(
    draw: Callable[[int], Item], question: Callable[[Item], str], *, split: Split, max_draws: int, key: str
) -> Item:
    """Return the first of `draw(0)`, `draw(1)`, ... whose question belongs to a split.

    Raises:
        ValueError: None of `max_draws` draws does; `key` names the configuration that offers too few questions.
    """
    seen: set[Hashable] = set()
    for attempt in range(max_draws):
        item = draw(attempt)
        if split_of(question(item)) == split:
            return item
        seen.add(content_digest(question(item)))
    raise ValueError(
        f"{key}: none of {max_draws} draws is a question of split {split!r}; they were {len(seen)} different ones, "
        "which is too few to fill three splits: widen the options"
    )


def held_out_seed(split: Split, number: int) -> int:
    """Return the seed of the held-out task of a number: the same for all runs, so that they share their tasks."""
    return derive_seed(0, f"held out/{split}", number)


def choose(seed: int, count: int, *, split: Split, purpose: str) -> int:
    """Return which of `count` tasks of a finite set belongs to a seed.

    The seeds of held-out evaluations go through the set in order, so that an evaluation of as many tasks as there are
    tries each once; any other seed draws.
    """
    number = _held_out_numbers(split).get(seed) if split != "train" else None
    return (derive_seed(seed, f"{purpose}/{split}") if number is None else number) % count


@functools.cache
def _held_out_numbers(split: Split) -> dict[int, int]:
    return {held_out_seed(split, number): number for number in range(_MAX_HELD_OUT)}
