"""Losses over pairs of answers. Log-probs are sums over the trained tokens of an answer unless said otherwise, [N]."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lit_agentrl.functional._common import as_float, check_choice, choose

PreferenceVariant: TypeAlias = Literal["sigmoid", "ipo", "hinge", "robust"]


def implicit_rewards(logprobs: Tensor, ref_logprobs: Tensor, *, beta: float = 0.1) -> Tensor:
    """Return beta·log(π/π_ref): DPO's reward, and for one step of an agent Q* - V* (arXiv 2305.18290, 2409.09345).

    Args:
        logprobs: Any shape.
        ref_logprobs: Same shape; no gradient.
        beta: Strength of the pull to the reference.
    """
    return beta * (as_float(logprobs) - as_float(ref_logprobs).detach())


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    *,
    beta: float = 0.1,
    variant: PreferenceVariant = "sigmoid",
    label_smoothing: float = 0.0,
    chosen_lengths: Tensor | None = None,
    rejected_lengths: Tensor | None = None,
) -> Tensor:
    """Direct preference optimisation (arXiv 2305.18290), with Δ = log(π/π_ref)(chosen) - log(π/π_ref)(rejected).

    - `sigmoid`: L(Δ) = -logsigmoid(beta·Δ); with label smoothing eps: (1-eps)·L(Δ) + eps·L(-Δ) (conservative DPO).
    - `robust`: ((1-eps)·L(Δ) - eps·L(-Δ))/(1-2·eps), unbiased if a fraction eps of the labels is wrong (2403.00409).
    - `hinge`: max(0, 1 - beta·Δ) (SLiC, arXiv 2305.10425).
    - `ipo`: (Δ - 1/(2·beta))², the log-ratios divided by their lengths first (IPO, arXiv 2310.12036). The lengths are
      required, since libraries disagree: TRL divides, others sum. Lengths of 1 give the sum.

    Args:
        policy_chosen: [N], summed log-probs of the preferred answers under the policy.
        policy_rejected: [N], of the others.
        ref_chosen: [N], under the reference; no gradient.
        ref_rejected: [N], under the reference; no gradient.
        beta: Strength of the pull to the reference, > 0.
        variant: One of the above.
        label_smoothing: eps in [0, 0.5), for `sigmoid` and `robust`.
        chosen_lengths: [N], trained tokens of the preferred answers; for `ipo` only.
        rejected_lengths: [N], of the others; for `ipo` only.

    Returns:
        [N], at least float32.

    Raises:
        ValueError: Unknown variant, or an argument that the variant needs is missing, or one that it would ignore.
    """
    check_choice("variant", variant, get_args(PreferenceVariant))
    if not 0.0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing must lie in [0, 0.5); got {label_smoothing}")
    if label_smoothing and variant not in ("sigmoid", "robust"):
        raise ValueError(f"label_smoothing must be 0 for variant {variant!r}; it acts on 'sigmoid' and 'robust' only")
    chosen = as_float(policy_chosen) - as_float(ref_chosen).detach()
    rejected = as_float(policy_rejected) - as_float(ref_rejected).detach()
    if variant == "ipo":
        if chosen_lengths is None or rejected_lengths is None:
            raise ValueError("variant 'ipo' needs chosen_lengths and rejected_lengths; pass ones for summed log-probs")
        delta = chosen / chosen_lengths.clamp(min=1) - rejected / rejected_lengths.clamp(min=1)
        return (delta - 1.0 / (2.0 * beta)).square()
    if chosen_lengths is not None or rejected_lengths is not None:
        raise ValueError(f"chosen_lengths and rejected_lengths must be None for variant {variant!r}")
    logits = beta * (chosen - rejected)
    if variant == "hinge":
        return (1.0 - logits).clamp(min=0.0)
    if variant == "robust":
        flipped = label_smoothing * logsigmoid(-logits)
        return (flipped - (1.0 - label_smoothing) * logsigmoid(logits)) / (1.0 - 2.0 * label_smoothing)
    return -(1.0 - label_smoothing) * logsigmoid(logits) - label_smoothing * logsigmoid(-logits)


def simpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    chosen_lengths: Tensor,
    rejected_lengths: Tensor,
    *,
    beta: float = 2.0,
    margin: float = 1.0,
) -> Tensor:
    """Return -logsigmoid(beta·(mean logp chosen - mean logp rejected) - gamma) (SimPO, arXiv 2405.14734).

    It needs no reference.

    Args:
        policy_chosen: [N], summed log-probs.
        policy_rejected: [N], summed log-probs.
        chosen_lengths: [N], trained tokens.
        rejected_lengths: [N], trained tokens.
        beta: 2.0 to 10 in the paper.
        margin: gamma, in units of the reward; 0.3 to 1.6 in the paper (TRL defaults to 0.5).

    Returns:
        [N], at least float32.
    """
    chosen = as_float(policy_chosen) / chosen_lengths.clamp(min=1)
    rejected = as_float(policy_rejected) / rejected_lengths.clamp(min=1)
    return -logsigmoid(beta * (chosen - rejected) - margin)


def kto_loss(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    desirable: Tensor,
    kl_baseline: Tensor,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """Return lam·(1 - sigmoid(±beta·(log(π/π_ref) - z))), answers judged singly (KTO, arXiv 2402.01306).

    Plus and `desirable_weight` for desirable answers, minus and `undesirable_weight` for the others.

    Args:
        logprobs: [N], summed log-probs.
        ref_logprobs: [N]; no gradient.
        desirable: bool[N].
        kl_baseline: Scalar z: mean of log(π/π_ref) over mismatched prompts and answers; cut at 0, no gradient.
        beta: Strength of the pull to the reference.
        desirable_weight: Of desirable answers.
        undesirable_weight: Of the others.

    Returns:
        [N], at least float32.
    """
    ratio = as_float(logprobs) - as_float(ref_logprobs).detach()
    advantage = beta * (ratio - kl_baseline.detach().clamp(min=0.0))
    good = desirable.bool()
    weight = choose(good, desirable_weight, undesirable_weight, ratio.dtype)
    # 1 - sigmoid(x) = sigmoid(-x), without cancellation
    return weight * torch.sigmoid(torch.where(good, -advantage, advantage))


def orpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    chosen_lengths: Tensor,
    rejected_lengths: Tensor,
    *,
    weight: float = 0.1,
) -> Tensor:
    """Return NLL(chosen) - lam·logsigmoid(log odds ratio), without a reference (ORPO, arXiv 2403.07691).

    With p = exp(mean logp) of an answer, odds = p/(1 - p); the NLL is per token as well.

    Args:
        policy_chosen: [N], summed log-probs.
        policy_rejected: [N], summed log-probs.
        chosen_lengths: [N], trained tokens.
        rejected_lengths: [N], trained tokens.
        weight: Of the odds-ratio term.

    Returns:
        [N], at least float32.
    """
    chosen = as_float(policy_chosen) / chosen_lengths.clamp(min=1)
    rejected = as_float(policy_rejected) / rejected_lengths.clamp(min=1)
    return -chosen - weight * logsigmoid(_log_odds(chosen) - _log_odds(rejected))


def _log_odds(logprob: Tensor) -> Tensor:
    # log(1 - e^x) is -inf at x = 0, where the model is certain; the cut keeps loss and gradient finite there.
    bounded = logprob.clamp(max=-torch.finfo(logprob.dtype).eps)
    return logprob - torch.log(-torch.expm1(bounded))
