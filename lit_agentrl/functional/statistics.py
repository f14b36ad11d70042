"""Means and deviations over the whole batch, in a form that sums over ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.functional._common import as_float, masked


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Count, sum and sum of squares, and the range. Moments of parts combine into those of the whole with `+`.

    The range is what tells a constant batch: its mean and variance are then exact.
    """

    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            count=self.count + other.count,
            total=self.total + other.total,
            squares=self.squares + other.squares,
            lowest=min(self.lowest, other.lowest),
            highest=max(self.highest, other.highest),
        )

    def to_tensor(self, device: torch.device | str | None = None) -> Tensor:
        """Return the moments as float64[5], ready for an all-gather."""
        fields = [self.count, self.total, self.squares, self.lowest, self.highest]
        return torch.tensor(fields, dtype=torch.float64, device=device)

    @classmethod
    def from_tensor(cls, fields: Tensor) -> Moments:
        """Undo `to_tensor`; `sum(map(Moments.from_tensor, gathered), Moments())` are the moments of all ranks."""
        count, total, squares, lowest, highest = fields.tolist()
        return cls(count=count, total=total, squares=squares, lowest=lowest, highest=highest)

    @property
    def mean(self) -> float:
        """Mean; 0 without entries, and exact if all are equal."""
        if self.count == 0:
            return 0.0
        return self.lowest if self.highest == self.lowest else self.total / self.count

    def variance(self, ddof: int = 1) -> float:
        """Variance; exactly 0 if all entries are equal."""
        if self.count == 0 or self.highest == self.lowest:
            return 0.0
        return max(self.squares - self.total * self.total / self.count, 0.0) / max(self.count - ddof, 1.0)

    def std(self, ddof: int = 1) -> float:
        """Standard deviation; exactly 0 if all entries are equal."""
        return float(self.variance(ddof) ** 0.5)


@torch.no_grad()
def moments(values: Tensor, mask: Tensor) -> Moments:
    """Return the moments of the values inside the mask, in double precision.

    Args:
        values: Any shape.
        mask: bool or 0/1, same shape.
    """
    inside = as_float(values)[mask.bool()].double()
    if inside.numel() == 0:
        return Moments()
    total, squares, lowest, highest = torch.stack(
        [inside.sum(), inside.square().sum(), inside.min(), inside.max()]
    ).tolist()
    return Moments(count=float(inside.numel()), total=total, squares=squares, lowest=lowest, highest=highest)


@torch.no_grad()
def whiten(
    values: Tensor, mask: Tensor, *, eps: float = 1e-8, ddof: int = 1, batch_moments: Moments | None = None
) -> Tensor:
    """Return (x - mean)/√(variance + eps) over the entries inside the mask.

    verl uses the unbiased variance (ddof 1), OpenRLHF the biased one. Equal values give exactly 0.

    Args:
        values: Any shape.
        mask: bool or 0/1, same shape.
        eps: Added to the variance.
        ddof: 1 for the unbiased variance, 0 for the biased one.
        batch_moments: `moments(values, mask)` summed over ranks; by default those of this call.

    Returns:
        Same shape, at least float32, 0 outside the mask, no gradient.
    """
    statistics = batch_moments or moments(values, mask)
    whitened = (as_float(values) - statistics.mean) / (statistics.variance(ddof) + eps) ** 0.5
    return masked(whitened, mask)
