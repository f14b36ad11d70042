"""Corrections for tokens that were not sampled by the policy that trains on them."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from lit_agentrl.functional._common import MAX_LOG_RATIO, as_float, check_choice, log_ratio, masked, sequence_sum

CorrectionMode: TypeAlias = Literal["tis", "mis", "icepop"]
RatioLevel: TypeAlias = Literal["token", "sequence", "geometric"]


def importance_ratio(
    logprobs: Tensor,
    old_logprobs: Tensor,
    mask: Tensor,
    *,
    level: RatioLevel = "token",
    sequence_ids: Tensor | None = None,
) -> Tensor:
    """Return π/π_old per token, for its whole sequence, or as the sequence's geometric mean.

    Log-ratios are summed in log space and cut at ±20 before `exp`, so that a long sequence neither overflows nor turns
    a batch into NaN.

    Args:
        logprobs: [B, T], or flat [N] with `sequence_ids`.
        old_logprobs: Same shape; no gradient.
        mask: bool or 0/1, same shape.
        level: `token`: exp(log r_t). `sequence`: exp(Σ_t log r_t). `geometric`: exp(mean_t log r_t), as in GSPO.
        sequence_ids: int[N]: what is one sequence in a flat batch; turn ids give ratios per turn (ReMA).

    Returns:
        Same shape, 0 outside the mask; differentiable.
    """
    check_choice("level", level, get_args(RatioLevel))
    difference = log_ratio(logprobs, old_logprobs, mask)
    if level != "token":
        total, tokens = sequence_sum(difference, mask, sequence_ids)
        difference = total if level == "sequence" else total / tokens.clamp(min=1)
        difference = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return masked(difference.exp(), mask)


@torch.no_grad()
def importance_weights(
    old_logprobs: Tensor,
    behavior_logprobs: Tensor,
    mask: Tensor,
    *,
    mode: CorrectionMode = "tis",
    low: float | None = None,
    high: float,
    level: RatioLevel = "token",
    sequence_ids: Tensor | None = None,
) -> Tensor:
    """Return factors that correct for a sampler whose log-probs differ from the trainer's.

    w = π_old/π_behavior, and then

    - `tis` (truncated): min(w, high) (arXiv 1802.01561).
    - `mis` (masked): w where w ≤ high, else 0.
    - `icepop`: w where low ≤ w ≤ high, else 0 (arXiv 2510.18855).

    The factors multiply the per-token loss and carry no gradient. Libraries differ: verl cuts at 2.0 per token, TRL
    masks sequences at 3.0, OpenRLHF keeps the band [0.5, 5].

    Args:
        old_logprobs: The trainer's, at rollout time; [B, T], or flat [N] with `sequence_ids`.
        behavior_logprobs: The sampler's, same shape.
        mask: bool or 0/1, same shape.
        mode: One of the above.
        low: Lower end of the band; for `icepop` only, where it is required.
        high: Upper end.
        level: What one ratio covers; see `importance_ratio`.
        sequence_ids: int[N], see `importance_ratio`.

    Returns:
        Same shape, 0 outside the mask.

    Raises:
        ValueError: Unknown mode or level, or `low` missing, not below `high`, or given to another mode.
    """
    check_choice("mode", mode, get_args(CorrectionMode))
    if (mode == "icepop") != (low is not None) or (low is not None and low >= high):
        raise ValueError(f"low must be a number below high for mode 'icepop' and None otherwise; got {low!r}")
    ratio = importance_ratio(old_logprobs, behavior_logprobs, mask, level=level, sequence_ids=sequence_ids)
    if mode == "tis":
        return ratio.clamp(max=high)
    keep = ratio <= high
    if low is not None:
        keep &= ratio >= low
    return masked(ratio, keep)


@torch.no_grad()
def off_policy_sequence_mask(
    logprobs: Tensor,
    behavior_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    delta: float,
    sequence_ids: Tensor | None = None,
) -> Tensor:
    """Return 0 for tokens of bad sequences that the policy has moved away from, 1 for all others.

    A token is dropped if A < 0 and mean_t(behavior - logp) over its sequence exceeds delta (OPSM of DeepSeek-V3.2,
    arXiv 2512.02556).

    Args:
        logprobs: Under the present policy; [B, T], or flat [N] with `sequence_ids`.
        behavior_logprobs: The sampler's, same shape.
        advantages: Broadcastable to it, for example [B, 1].
        mask: bool or 0/1, same shape.
        delta: In nats per token.
        sequence_ids: int[N], see `importance_ratio`.

    Returns:
        0 or 1, same shape, at least float32, 0 outside the mask.
    """
    difference = log_ratio(logprobs, behavior_logprobs, mask)
    total, tokens = sequence_sum(-difference, mask, sequence_ids)
    dropped = (advantages < 0) & (total / tokens.clamp(min=1) > delta)
    return masked((~dropped).to(difference.dtype), mask)


@torch.no_grad()
def effective_sample_size(weights: Tensor, mask: Tensor) -> Tensor:
    """Return (Σw)²/(n·Σw²), the fraction of the tokens that importance weights leave; 1 when all are equal.

    Args:
        weights: Any shape.
        mask: bool or 0/1, same shape.

    Returns:
        Scalar; 0 if every weight is 0.
    """
    inside = masked(as_float(weights), mask)
    squares = inside.square().sum() * mask.bool().sum()
    return inside.sum().square() / squares.clamp(min=torch.finfo(inside.dtype).tiny)
