"""Terms that are added to rewards before advantages are worked out."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.functional._common import as_float
from lit_agentrl.functional.kl import KLEstimator, kl_divergence
from lit_agentrl.functional.returns import rewards_at_last_token


@torch.no_grad()
def overlong_penalty(lengths: Tensor, *, max_length: int, buffer: int) -> Tensor:
    """Return DAPO's soft penalty for long answers (arXiv 2503.14476).

    0 up to `max_length - buffer`, then falling linearly to -1 at `max_length`, and -1 beyond. verl and ms-swift let it
    fall below -1, OpenRLHF does not; the two differ only where longer answers than `max_length` can occur.

    Args:
        lengths: [N], in tokens.
        max_length: Where the penalty is full, in tokens.
        buffer: Over how many tokens it grows, in (0, max_length].

    Returns:
        [N], at least float32, in [-1, 0].
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"buffer must lie in (0, max_length] = (0, {max_length}]; got {buffer}")
    return ((max_length - buffer - as_float(lengths)) / buffer).clamp(-1.0, 0.0)


@torch.no_grad()
def kl_penalized_rewards(
    rewards: Tensor,
    old_logprobs: Tensor,
    ref_logprobs: Tensor,
    mask: Tensor,
    *,
    beta: float,
    estimator: KLEstimator = "k1",
) -> Tensor:
    """Return token rewards 1[last]·R - beta·KL_t, the KL in the reward as of classical RLHF (arXiv 1909.08593).

    Args:
        rewards: [B], of the episode; paid on the last trained token.
        old_logprobs: [B, T], of the policy that made the rollout.
        ref_logprobs: [B, T].
        mask: bool or 0/1 [B, T]. A row without trained tokens is 0 throughout.
        beta: In reward per nat.
        estimator: See `kl_divergence`; k1 is the unbiased choice here.

    Returns:
        [B, T], at least float32, 0 outside the mask, no gradient.
    """
    penalty = kl_divergence(old_logprobs, ref_logprobs, estimator=estimator, mask=mask)
    return rewards_at_last_token(rewards, mask) - beta * penalty
