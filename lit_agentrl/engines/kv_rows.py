"""Keys and values of episodes between their turns, so that a turn reads only what is new.

A batch cache is rectangular and ragged rows are padded inside it; a kept row holds just the columns that are real.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

_ROOM = 64
"""Columns that a layer keeps free behind what it holds."""


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


class RoomyLayer(DynamicLayer):
    """Keys and values with room behind them: a decoding step writes one column, where its base copies all of them."""

    keys: Tensor
    values: Tensor
    _key_room: Tensor | None = None
    _value_room: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append columns; shapes are [rows, heads, columns, head size]. Returns all that is held."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._key_room, self.keys = _append(self._key_room, self.keys, key_states)
        self._value_room, self.values = _append(self._value_room, self.values, value_states)
        return self.keys, self.values


def _append(room: Tensor | None, held: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Return the room and what it holds now; `held` is a view of its beginning, or a tensor that replaced it."""
    length = held.shape[-2] if held.numel() else 0
    end = length + new.shape[-2]
    # Selecting rows makes a new tensor, which then has no room of its own yet.
    if room is None or not length or room.data_ptr() != held.data_ptr() or end > room.shape[-2]:
        room = new.new_empty((*new.shape[:-2], end + _ROOM, new.shape[-1]))
        if length:
            room[..., :length, :] = held
    room[..., length:end, :] = new
    return room, room[..., :end, :]


def new_cache(config: Any) -> Any:
    """Return an empty cache for a model: a roomy one, or transformers' own where the model needs another kind."""
    usual = DynamicCache(config=config)
    plain = all(type(layer) is DynamicLayer for layer in usual.layers)
    return Cache(layer_class_to_replicate=RoomyLayer) if plain else usual


def can_keep(cache: Any) -> bool:
    """Say whether a cache holds all keys and values of every position, layer by layer."""
    return all(type(layer) is RoomyLayer for layer in cache.layers)


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
    width = max(len(row.ids) for row in rows)
    first = rows[0].keys
    layers, heads, _, size = first.shape
    mask = torch.zeros((len(rows), width), dtype=torch.int64, device=first.device)
    for number, row in enumerate(rows):
        mask[number, width - len(row.ids) :] = 1
    cache = Cache(layer_class_to_replicate=RoomyLayer)
    for layer in range(layers):
        keys = first.new_zeros((len(rows), heads, width, size))
        values = first.new_zeros((len(rows), heads, width, size))
        for number, row in enumerate(rows):
            keys[number, :, width - len(row.ids) :] = row.keys[layer]
            values[number, :, width - len(row.ids) :] = row.values[layer]
        cache.update(keys, values, layer)
    return cache, mask
