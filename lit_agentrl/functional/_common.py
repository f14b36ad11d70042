"""What all functions of this package share: dtype, mask and sequence conventions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are cut at ±20 before `exp`: e^20 = 4.9e8 is finite in every dtype, and no useful update lies beyond."""


def as_float(tensor: Tensor) -> Tensor:
    """Return float32 or float64 as it is and everything else (bfloat16, float16, integers) as float32."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def check_choice(name: str, value: str, accepted: Sequence[str]) -> None:
    """Raise a `ValueError` that names the argument and what it accepts."""
    if value not in accepted:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, accepted))}; got {value!r}")


def masked(tensor: Tensor, mask: Tensor) -> Tensor:
    """Return the tensor with exact zeros, value and gradient, outside the mask, even where it was NaN or infinite."""
    return torch.where(mask.bool(), tensor, torch.zeros((), dtype=tensor.dtype, device=tensor.device))


def choose(condition: Tensor, yes: float, no: float, dtype: torch.dtype) -> Tensor:
    """Return `yes` where the condition holds and `no` elsewhere (`torch.where` would round two numbers to float32)."""
    device = condition.device
    return torch.where(
        condition, torch.full((), yes, dtype=dtype, device=device), torch.full((), no, dtype=dtype, device=device)
    )


def log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return log(new/old), zero outside the mask and cut at ±`MAX_LOG_RATIO` (no gradient beyond the cut).

    The mask comes before everything else: padding may hold infinities, and 0 · inf is NaN in a backward pass.
    """
    difference = masked(as_float(logprobs), mask) - masked(as_float(old_logprobs), mask).detach()
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def dense_ids(ids: Tensor) -> tuple[Tensor, int]:
    """Return the ids renumbered as 0 … K-1, and K."""
    distinct, dense = torch.unique(ids, return_inverse=True)
    return dense, distinct.numel()


def segment_sum(values: Tensor, ids: Tensor, count: int) -> Tensor:
    """Return the sum of `values[N]` for each of `count` dense ids."""
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add(0, ids, values)


def sequence_sum(values: Tensor, mask: Tensor, sequence_ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sum over each sequence, and count its tokens; both are broadcast back to the shape of `values`.

    Without ids a sequence is a row (last dimension); with ids, `values` is flat and sequences are those of equal id.
    """
    values = masked(values, mask)
    ones = mask.to(values.dtype)
    if sequence_ids is None:
        total, tokens = values.sum(-1, keepdim=True), ones.sum(-1, keepdim=True)
        return total.expand_as(values), tokens.expand_as(values)
    ids, count = dense_ids(sequence_ids)
    return segment_sum(values, ids, count)[ids], segment_sum(ones, ids, count)[ids]
