"""Per-token policy-gradient losses. All are minimised, and zero outside the mask.

Shapes are the same throughout: log-probs, mask and result are [B, T], or flat [N]; advantages are that or broadcastable
to it, for example [B, 1]. `old_logprobs` are the trainer's own at rollout time (not the sampler's, see
`importance_weights`); neither they nor advantages carry a gradient. |log r| is cut at 20, without gradient beyond.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from lit_agentrl.functional._common import (
    MAX_LOG_RATIO,
    as_float,
    check_choice,
    choose,
    log_ratio,
    masked,
    sequence_sum,
)
from lit_agentrl.functional.off_policy import importance_ratio

CispoCap: TypeAlias = Literal["two_sided", "absolute"]


def _clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high))


def reinforce_loss(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Return -A·logp, whose gradient is the plain policy gradient (REINFORCE, Williams 1992).

    Args:
        logprobs: [B, T] or [N].
        advantages: Broadcastable to it.
        mask: bool or 0/1, same shape.
    """
    return masked(-as_float(advantages).detach() * masked(as_float(logprobs), mask), mask)


def nll_loss(logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return -logp: the loss of supervised fine-tuning, and VAPO's extra term on correct samples (arXiv 2504.05118).

    Args:
        logprobs: [B, T] or [N].
        mask: bool or 0/1, same shape.
    """
    return -masked(as_float(logprobs), mask)


def ppo_clip_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> Tensor:
    """Clipped surrogate of PPO: max(-A·r, -A·clip(r, 1-clip_low, 1+clip_high)), r = π/π_old (arXiv 1707.06347).

    `clip_high` above `clip_low` is the clip-higher of DAPO (arXiv 2503.14476). `dual_clip` = c bounds the loss of
    negative advantages by -c·A, however large the ratio (arXiv 1912.09729); verl sets c = 3 by default, TRL none.

    Args:
        logprobs: Of the sampled tokens under the policy, [B, T] or [N].
        old_logprobs: The trainer's own, at rollout time; same shape.
        advantages: Broadcastable to it.
        mask: bool or 0/1, same shape.
        clip_low: Width of the band below 1.
        clip_high: Width of the band above 1.
        dual_clip: c > 1, or None.

    Returns:
        Loss per token, same shape, at least float32.
    """
    advantages = as_float(advantages).detach()
    ratio = log_ratio(logprobs, old_logprobs, mask).exp()
    loss = _clipped_surrogate(ratio, advantages, clip_low, clip_high)
    if dual_clip is not None:
        if dual_clip <= 1.0:
            raise ValueError(f"dual_clip must be greater than 1, or None; got {dual_clip}")
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)
    return masked(loss, mask)


class ClippedTokens(NamedTuple):
    """Where `ppo_clip_loss` has no gradient, bool, same shape as the log-probs. Their means are the clip fractions."""

    low: Tensor
    """A < 0 and r below the band."""
    high: Tensor
    """A > 0 and r above the band."""
    dual: Tensor
    """A < 0 and r above the dual clip."""


@torch.no_grad()
def clipped_tokens(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> ClippedTokens:
    """Tell which tokens the clipping of `ppo_clip_loss` takes out; arguments as there."""
    ratio = log_ratio(logprobs, old_logprobs, mask).exp()
    inside, negative = mask.bool(), as_float(advantages) < 0
    positive = as_float(advantages) > 0
    return ClippedTokens(
        low=inside & negative & (ratio < 1.0 - clip_low),
        high=inside & positive & (ratio > 1.0 + clip_high),
        dual=inside & negative & (ratio > (torch.inf if dual_clip is None else dual_clip)),
    )


def gspo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    sequence_ids: Tensor | None = None,
) -> Tensor:
    """Clipped surrogate over the ratio of whole sequences, s = exp(mean_t log r_t) (GSPO, arXiv 2507.18071).

    This is the paper's token form: each token carries the value of s and the gradient s·∇logp_t, which equals the
    sequence form whenever advantages are equal inside a sequence. Aggregate with `seq-mean-token-mean`. All tokens of a
    sequence must be in the call. With turns as sequences it is the turn ratio of ReMA (arXiv 2503.09501); with
    clip 0.2 the loss of AdaptThink (arXiv 2505.13417).

    Args:
        logprobs: [B, T], or flat [N] with `sequence_ids`.
        old_logprobs: Same shape.
        advantages: Broadcastable to it.
        mask: bool or 0/1, same shape.
        clip_low: Width of the band below 1.
        clip_high: Width of the band above 1.
        sequence_ids: int[N]: what is one sequence in a flat batch. Without it, a row is one.

    Returns:
        Loss per token, same shape, at least float32.
    """
    difference = log_ratio(logprobs, old_logprobs, mask)
    total, tokens = sequence_sum(difference.detach(), mask, sequence_ids)
    ratio = (total / tokens.clamp(min=1)).exp() * (difference - difference.detach()).exp()
    return masked(_clipped_surrogate(ratio, as_float(advantages).detach(), clip_low, clip_high), mask)


def sequence_clip_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    sequence_ids: Tensor | None = None,
) -> Tensor:
    """Clipped surrogate over exp(Σ_t log r_t), the true ratio of whole sequences; TRL's loss for RLOO.

    Every token carries the loss of its sequence, so aggregate with `seq-mean-token-mean`.

    Args:
        logprobs: [B, T], or flat [N] with `sequence_ids`.
        old_logprobs: Same shape.
        advantages: Broadcastable to it, equal inside a sequence.
        mask: bool or 0/1, same shape.
        clip_low: Width of the band below 1.
        clip_high: Width of the band above 1.
        sequence_ids: int[N], see `gspo_loss`.

    Returns:
        Loss per token, same shape, at least float32.
    """
    ratio = importance_ratio(logprobs, old_logprobs, mask, level="sequence", sequence_ids=sequence_ids)
    return masked(_clipped_surrogate(ratio, as_float(advantages).detach(), clip_low, clip_high), mask)


def sapo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
) -> Tensor:
    """Soft gate instead of a clip: -A·f(r), f(r) = (4/tau)·sigmoid(tau(r - 1)) (soft adaptive PO, arXiv 2511.20347).

    tau is `tau_pos` for A > 0 and `tau_neg` otherwise; at r = 1 the gradient is that of REINFORCE for any tau. The
    paper aggregates with `seq-mean-token-mean`.

    Args:
        logprobs: [B, T] or [N].
        old_logprobs: Same shape.
        advantages: Broadcastable to it.
        mask: bool or 0/1, same shape.
        tau_pos: Sharpness for positive advantages, > 0.
        tau_neg: Sharpness for the others, > 0.

    Returns:
        Loss per token, same shape, at least float32.
    """
    if min(tau_pos, tau_neg) <= 0:
        raise ValueError(f"tau_pos and tau_neg must be positive; got {tau_pos} and {tau_neg}")
    advantages = as_float(advantages).detach()
    ratio = log_ratio(logprobs, old_logprobs, mask).exp()
    tau = choose(advantages > 0, tau_pos, tau_neg, ratio.dtype)
    return masked(-advantages * 4.0 / tau * torch.sigmoid(tau * (ratio - 1.0)), mask)


def cispo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    cap: CispoCap = "two_sided",
    clip_low: float | None = None,
    clip_high: float,
) -> Tensor:
    """REINFORCE with a clipped, detached ratio as weight: -sg(clip(r))·A·logp (CISPO, arXiv 2506.13585).

    No token loses its gradient. What the bounds mean differs between libraries, so it is an argument:

    - `two_sided`: r in [1 - clip_low, 1 + clip_high] (the paper, verl).
    - `absolute`: r in [clip_low, clip_high] (TRL, ms-swift; ScaleRL, arXiv 2510.13786, recommends a cap of 5.0).

    Args:
        logprobs: [B, T] or [N].
        old_logprobs: Same shape.
        advantages: Broadcastable to it.
        mask: bool or 0/1, same shape.
        cap: One of the above.
        clip_low: Lower bound; None, as in the paper, for none.
        clip_high: Upper bound.

    Returns:
        Loss per token, same shape, at least float32.
    """
    check_choice("cap", cap, get_args(CispoCap))
    highest = 1.0 + clip_high if cap == "two_sided" else clip_high
    lowest = clip_low
    if cap == "two_sided" and clip_low is not None:
        lowest = 1.0 - clip_low
    weight = log_ratio(logprobs, old_logprobs, mask).detach().exp().clamp(min=lowest, max=highest)
    return masked(-weight * as_float(advantages).detach() * masked(as_float(logprobs), mask), mask)


def gmpo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
    sequence_ids: Tensor | None = None,
) -> Tensor:
    """Geometric mean of clipped token ratios: -A·exp(mean_t clip(log r_t)) (GMPO, arXiv 2507.20673).

    A token is clipped in log space, and only on the side that its advantage would push it to: log r_t ≤ `clip_high`
    for A > 0, log r_t ≥ -`clip_low` otherwise. Aggregate with `seq-mean-token-mean`.

    Args:
        logprobs: [B, T], or flat [N] with `sequence_ids`.
        old_logprobs: Same shape.
        advantages: Broadcastable to it, equal inside a sequence.
        mask: bool or 0/1, same shape.
        clip_low: Bound of -log r for A ≤ 0; 0.4 in the paper.
        clip_high: Bound of log r for A > 0; 0.4 in the paper.
        sequence_ids: int[N], see `gspo_loss`.

    Returns:
        Loss per token, same shape, at least float32.
    """
    advantages = as_float(advantages).detach()
    difference = log_ratio(logprobs, old_logprobs, mask)
    bounded = torch.where(advantages > 0, difference.clamp(max=clip_high), difference.clamp(min=-clip_low))
    total, tokens = sequence_sum(bounded, mask, sequence_ids)
    ratio = (total / tokens.clamp(min=1)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return masked(-advantages * ratio, mask)
