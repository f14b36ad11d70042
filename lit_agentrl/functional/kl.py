"""Estimates of KL(policy ‖ reference) from sampled tokens, and its exact value from logits."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from lit_agentrl.functional._common import MAX_LOG_RATIO, as_float, check_choice, log_ratio, masked

KLEstimator: TypeAlias = Literal["k1", "k2", "k3"]


def kl_divergence(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    *,
    estimator: KLEstimator = "k3",
    corrected_gradient: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """Estimate KL(policy ‖ reference) at each sampled token.

    With k1 = logp - ref: `k1`, `k2` = ½·k1², `k3` = e^(-k1) + k1 - 1. k1 and k3 are unbiased as values. As losses the
    expected gradients under the policy are

    - k1: zero. Use it in the reward, not in the loss.
    - k2: ∇KL(policy ‖ reference).
    - k3: ∇KL(reference ‖ policy), the other direction, although GRPO (arXiv 2402.03300) adds it to its loss.

    With `corrected_gradient`, the value is the estimator's and the gradient is that of k2, so that the loss really
    minimises the KL that is reported (`k3+` in verl).

    Args:
        logprobs: Of the sampled tokens under the policy, any shape.
        ref_logprobs: Under the reference (or the teacher, for on-policy distillation), same shape; no gradient.
        estimator: One of k1, k2, k3 (J. Schulman, "Approximating KL divergence", 2020).
        corrected_gradient: Replace the estimator's gradient by that of k2.
        mask: bool or 0/1, same shape. Give it where log-probs outside may be infinite or NaN; the result is 0 there.

    Returns:
        Same shape, at least float32. In k3 the exponent is cut at 20, without gradient beyond.
    """
    check_choice("estimator", estimator, get_args(KLEstimator))
    logprobs, ref_logprobs = as_float(logprobs), as_float(ref_logprobs)
    if mask is not None:
        logprobs, ref_logprobs = masked(logprobs, mask), masked(ref_logprobs, mask)
    k1 = logprobs - ref_logprobs.detach()
    k2 = 0.5 * k1.square()
    if estimator == "k1":
        value = k1
    elif estimator == "k2":
        value = k2
    else:
        bounded = k1.clamp(min=-MAX_LOG_RATIO)
        value = torch.expm1(-bounded) + bounded
    return value.detach() + (k2 - k2.detach()) if corrected_gradient else value


def importance_corrected_kl(
    logprobs: Tensor,
    old_logprobs: Tensor,
    ref_logprobs: Tensor,
    *,
    estimator: KLEstimator = "k3",
    mask: Tensor | None = None,
) -> Tensor:
    """Estimate KL(policy ‖ reference) from tokens that an older policy sampled: (π/π_old) · estimator.

    The gradient flows through the ratio too; for k1 and k3 its expectation is ∇KL(policy ‖ reference), on-policy and
    off (DeepSeek-V3.2, arXiv 2512.02556; in TRL `use_bias_correction_kl`, on by default since 1.16).

    Args:
        logprobs: Of the sampled tokens under the policy, any shape.
        old_logprobs: Under the policy that sampled them; no gradient.
        ref_logprobs: Under the reference; no gradient.
        estimator: See `kl_divergence`.
        mask: See `kl_divergence`.
    """
    ratio = log_ratio(logprobs, old_logprobs, torch.ones_like(logprobs) if mask is None else mask).exp()
    return ratio * kl_divergence(logprobs, ref_logprobs, estimator=estimator, mask=mask)


def exact_kl_divergence(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """Return KL(policy ‖ reference) over the whole vocabulary; also the loss of full-distribution distillation.

    Args:
        logits: [..., V]; entries of -inf (a restricted support) contribute nothing.
        ref_logits: [..., V]; no gradient.

    Returns:
        [...], at least float32.
    """
    logprobs = as_float(logits).log_softmax(-1)
    ref_logprobs = as_float(ref_logits).detach().log_softmax(-1)
    difference = torch.where(logprobs == -torch.inf, torch.zeros_like(logprobs), logprobs - ref_logprobs)
    return (logprobs.exp() * difference).sum(-1)


def adaptive_kl_coefficient(coefficient: float, kl: float, *, target: float, horizon: float, num_steps: int) -> float:
    """Move a KL coefficient towards the one that holds the KL at a target.

    beta ← beta·(1 + clip(kl/target - 1, ±0.2)·num_steps/horizon) (arXiv 1909.08593).

    Args:
        coefficient: The present one.
        kl: Measured mean KL, in the unit of `target` (nats per token, or per sequence).
        target: Wanted KL.
        horizon: In samples; larger is slower.
        num_steps: Samples since the last call.
    """
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return coefficient * (1.0 + error * num_steps / horizon)
