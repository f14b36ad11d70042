"""Losses of state values on policy."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.functional._common import as_float, choose, masked
from lit_agentrl.functional.aggregation import AggregationCounts, AggregationMode, aggregate


def _clipped_values(values: Tensor, old_values: Tensor, clip: float) -> Tensor:
    return old_values + (values - old_values).clamp(-clip, clip)


def value_token_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, *, clip: float | None = None
) -> Tensor:
    """Return ½·max((v - R)², (clip(v, v_old ± clip) - R)²) per token, as in PPO (arXiv 1707.06347).

    Libraries differ in the clip: 0.5 in verl, 0.2 in TRL; None is ½·(v - R)².

    Args:
        values: [B, T] or [N].
        old_values: At rollout time, same shape; no gradient.
        returns: Targets, same shape; no gradient.
        mask: bool or 0/1, same shape.
        clip: Width of the band around the old values, in units of value, > 0.

    Returns:
        Same shape, at least float32, 0 outside the mask.
    """
    if clip is not None and clip <= 0:
        raise ValueError(f"clip must be positive, or None; got {clip}")
    values, targets = masked(as_float(values), mask), masked(as_float(returns), mask).detach()
    squares = (values - targets).square()
    if clip is not None:
        bounded = _clipped_values(values, masked(as_float(old_values), mask).detach(), clip)
        squares = torch.maximum(squares, (bounded - targets).square())
    return 0.5 * squares


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    clip: float | None = None,
    mode: AggregationMode = "token-mean",
    denominators: AggregationCounts | None = None,
) -> Tensor:
    """Return the mean of `value_token_loss` over a padded batch.

    Args:
        values: [B, T].
        old_values: [B, T].
        returns: [B, T].
        mask: bool or 0/1 [B, T].
        clip: See `value_token_loss`.
        mode: See `token_weights`.
        denominators: See `token_weights`.

    Returns:
        Scalar.
    """
    loss = value_token_loss(values, old_values, returns, mask, clip=clip)
    return aggregate(loss, mask, mode=mode, denominators=denominators)


@torch.no_grad()
def clipped_values(values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, *, clip: float) -> Tensor:
    """Tell where the clip of `value_token_loss` takes the gradient away; bool, arguments as there."""
    values, old_values, returns = as_float(values), as_float(old_values), as_float(returns)
    bounded = _clipped_values(values, old_values, clip)
    return mask.bool() & ((bounded - returns).square() > (values - returns).square())


def expectile_loss(q_values: Tensor, values: Tensor, *, expectile: float = 0.7) -> Tensor:
    """Return |tau - 1[u < 0]|·u², u = Q - V: V becomes an upper expectile of Q (implicit Q, arXiv 2110.06169).

    Args:
        q_values: [N]; no gradient.
        values: [N].
        expectile: tau in (0, 1); 0.5 is half the squared error.

    Returns:
        [N], at least float32.
    """
    if not 0.0 < expectile < 1.0:
        raise ValueError(f"expectile must lie in (0, 1); got {expectile}")
    difference = as_float(q_values).detach() - as_float(values)
    return choose(difference < 0, 1.0 - expectile, expectile, difference.dtype) * difference.square()
