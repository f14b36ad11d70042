"""Keys and values of episodes between their turns, so that a turn reads only what is new.

A batch cache is rectangular and ragged rows are padded inside it; a kept row holds just the columns that are real.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptRow:
    """What the model has read of one episode."""

    ids: tuple[int, ...]
    """The ids read, in order; L of them."""
    keys: Tensor
    """[layers, heads, L, head size]"""
    values: Tensor
    """[layers, heads, L, head size]"""

    @property
    def num_bytes(self) -> int:
        """Bytes that the row takes."""
        return 2 * self.keys.numel() * self.keys.element_size()

    def continues_to(self, ids: Sequence[int]) -> bool:
        """Say whether a context begins with everything that was read, and goes on."""
        return len(ids) > len(self.ids) and tuple(ids[: len(self.ids)]) == self.ids


def can_keep(cache: Any) -> bool:
    """Say whether a transformers cache is a plain one: all keys and values of every position, layer by layer."""
    from transformers.cache_utils import DynamicLayer

    return all(type(layer) is DynamicLayer for layer in cache.layers)


def take_row(cache: Any, row: int, real: Tensor, ids: tuple[int, ...]) -> KeptRow:
    """Copy one row out of a batch cache.

    Args:
        cache: The batch cache.
        row: Which row.
        real: [columns] bool: those that hold what the row has read; as many as `ids`.
        ids: What it has read.
    """
    columns = real.nonzero().squeeze(-1)
    if columns.numel() != len(ids):
        raise AssertionError(f"{columns.numel()} columns for {len(ids)} ids")
    return KeptRow(
        ids=ids,
        keys=torch.stack([layer.keys[row].index_select(1, columns) for layer in cache.layers]),
        values=torch.stack([layer.values[row].index_select(1, columns) for layer in cache.layers]),
    )


def assemble(rows: Sequence[KeptRow]) -> tuple[Any, Tensor]:
    """Return a batch cache of kept rows, left-padded, and its mask [rows, columns] int64."""
    from transformers import DynamicCache

    width = max(len(row.ids) for row in rows)
    first = rows[0].keys
    layers, heads, _, size = first.shape
    mask = torch.zeros((len(rows), width), dtype=torch.int64, device=first.device)
    for number, row in enumerate(rows):
        mask[number, width - len(row.ids) :] = 1
    cache = DynamicCache()
    for layer in range(layers):
        keys = first.new_zeros((len(rows), heads, width, size))
        values = first.new_zeros((len(rows), heads, width, size))
        for number, row in enumerate(rows):
            keys[number, :, width - len(row.ids) :] = row.keys[layer]
            values[number, :, width - len(row.ids) :] = row.values[layer]
        cache.update(keys, values, layer)
    return cache, mask
