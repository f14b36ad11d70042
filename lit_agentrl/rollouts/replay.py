"""Replay memory: the newest transitions, drawn uniformly or by how wrong their values were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_agentrl.seeding import uniforms

_MIN_PRIORITY = 1e-3
"""Added to the size of an error, so that a transition without one can still be drawn."""


class Draw(NamedTuple):
    """Rows of a replay buffer, with replacement."""

    rows: Tensor  # [B] int64
    weights: Tensor  # [B] float32: corrects for priorities, at most 1; uniform draws all have 1


class ReplayBuffer:
    """A ring of the newest rows of named columns, allocated when the first row comes.

    Args:
        capacity: Rows that are kept.
        alpha: How much priorities matter: 0 draws uniformly, 1 in proportion to the size of the error
            (arXiv 1511.05952).
        beta: How much the weights correct for that: 1 in full.
    """

    def __init__(self, capacity: int, *, alpha: float = 0.0, beta: float = 0.4) -> None:
        if capacity < 1:
            raise ValueError(f"data.init_args.capacity is {capacity}: it must be at least 1")
        if alpha < 0:
            raise ValueError(f"data.init_args.priority_alpha is {alpha}: it must be 0 (uniform) or more")
        if not 0 <= beta <= 1:
            raise ValueError(f"data.init_args.priority_beta is {beta}: it must lie in [0, 1]")
        self.capacity = capacity
        self.alpha = alpha
        self.beta = beta
        self.added = 0
        """Rows added since the beginning, those that have been overwritten included."""
        self.columns: dict[str, Tensor] = {}
        """[capacity, ...] each, in no order of time; rows beyond `len(self)` are 0."""
        self._priorities = torch.zeros(capacity if alpha else 0, dtype=torch.float64)

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, columns: Mapping[str, Tensor]) -> None:
        """Add rows, oldest first; of more than `capacity` only the last ones are kept.

        Args:
            columns: [N, ...] each, N the same; names, types and row shapes never change.

        Raises:
            ValueError: Columns differ in length, or are not those of the rows before.
        """
        sizes = {len(column) for column in columns.values()}
        if len(sizes) != 1:
            raise ValueError(f"replay columns must have one length, got {sorted(sizes)}")
        (count,) = sizes
        if not self.columns:
            self._allocate(columns)
        if self._layout(columns) != self._layout(self.columns):
            raise ValueError(f"replay rows are {self._layout(self.columns)}, not {self._layout(columns)}")
        kept = min(count, self.capacity)
        places = torch.arange(self.added + count - kept, self.added + count) % self.capacity
        if self.alpha:
            # New rows are drawn as often as the most surprising one, so that each is seen soon.
            largest = float(self._priorities.max())
            self._priorities[places] = largest if largest > 0 else 1.0
        for name, column in columns.items():
            self.columns[name][places] = column[count - kept :]
        self.added += count

    def _allocate(self, columns: Mapping[str, Tensor]) -> None:
        self.columns = {
            name: torch.zeros((self.capacity, *column.shape[1:]), dtype=column.dtype)
            for name, column in columns.items()
        }

    @staticmethod
    def _layout(columns: Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], str]]:
        return {name: (tuple(column.shape[1:]), str(column.dtype)) for name, column in sorted(columns.items())}

    def draw(self, count: int, *, seed: int) -> Draw:
        """Draw rows with replacement; the same seed draws the same rows of the same buffer.

        Raises:
            ValueError: The buffer is empty.
        """
        size = len(self)
        if not size:
            raise ValueError("there is nothing to replay yet")
        numbers = uniforms(seed, count)
        if not self.alpha:
            return Draw(torch.from_numpy((numbers * size).astype(np.int64)), torch.ones(count))
        shares = self._priorities[:size].numpy() ** self.alpha
        sums = shares.cumsum()
        rows = np.minimum(np.searchsorted(sums, numbers * sums[-1], side="right"), size - 1)
        weights = (shares[rows] / sums[-1] * size) ** -self.beta
        return Draw(torch.from_numpy(rows), torch.from_numpy(weights / weights.max()).float())

    def rows(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the columns of some rows, [B, ...] each."""
        return {name: column[rows] for name, column in self.columns.items()}

    def update(self, rows: Tensor, errors: Tensor) -> None:
        """Set the priorities of rows by the size of their errors; does nothing for uniform buffers."""
        if self.alpha:
            self._priorities[rows] = errors.double().abs() + _MIN_PRIORITY

    def state_dict(self) -> dict[str, Any]:
        """Return the filled rows as plain tensors."""
        size = len(self)
        return {
            "added": self.added,
            # Clones: a slice would write its whole storage.
            "columns": {name: column[:size].clone() for name, column in self.columns.items()},
            "priorities": self._priorities[:size].clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state.

        Raises:
            ValueError: It is of a buffer of another capacity, or of the other way of drawing.
        """
        columns, size = state["columns"], min(int(state["added"]), self.capacity)
        if any(len(column) != size for column in columns.values()):
            raise ValueError(f"data.init_args.capacity is {self.capacity}, but the checkpoint's buffer has another one")
        if len(state["priorities"]) != (size if self.alpha else 0):
            raise ValueError("data.init_args.priority_alpha: the checkpoint's buffer draws the other way")
        self.added = int(state["added"])
        self.columns = {}
        if columns:
            self._allocate(columns)
            for name, column in columns.items():
                self.columns[name][:size] = column
        self._priorities[:size] = state["priorities"]


@dataclass(kw_only=True)
class ReplayBatch:
    """Transitions of one optimizer step, or of a micro-batch of it."""

    state: Tensor  # [N, D] float32
    action: Tensor  # [N] int64: number of the action
    reward: Tensor  # [N] float32
    next_state: Tensor  # [N, D] float32
    next_actions: Tensor  # [N, A] int64: numbers of the actions that were valid next, -1 where there are fewer
    terminated: Tensor  # [N] bool
    weight: Tensor  # [N] float32: normaliser over all ranks folded in
    place: Tensor  # [N] int64: which transition of the global batch it is
    metrics: dict[str, float] = field(default_factory=dict)
    feedback: Callable[[Tensor], None] | None = None
    """Told the errors of the global batch, [B], after the step."""

    def __len__(self) -> int:
        return len(self.weight)

    def select(self, chosen: slice) -> ReplayBatch:
        """Return some of the transitions."""
        return self._each(lambda column: column[chosen])

    def to(self, device: Any) -> ReplayBatch:
        """Return the batch on a device."""
        return self._each(lambda column: column.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> ReplayBatch:
        changed: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        changed |= {name: change(column) for name, column in changed.items() if torch.is_tensor(column)}
        return ReplayBatch(**changed)
