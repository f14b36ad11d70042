"""From logits to log-probs and entropies; softmax in at least float32."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.functional._common import as_float


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    if temperature <= 0:
        raise ValueError(f"temperature must be positive; got {temperature}")
    logits = as_float(logits)
    return logits if temperature == 1.0 else logits / temperature


def token_logprobs(logits: Tensor, token_ids: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Return log softmax(logits/temperature) at the given tokens.

    Args:
        logits: [..., V], that each token was drawn from (already shifted by one).
        token_ids: int[...].
        temperature: The one that the tokens were drawn at.

    Returns:
        [...], at least float32.
    """
    scaled = _scaled(logits, temperature)
    return scaled.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)


def entropy(logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Return the entropy of softmax(logits/temperature), in nats.

    Args:
        logits: [..., V]; entries of -inf (a restricted support) contribute nothing.
        temperature: Divides the logits.

    Returns:
        [...], at least float32.
    """
    logprobs = _scaled(logits, temperature).log_softmax(-1)
    finite = torch.where(logprobs == -torch.inf, torch.zeros_like(logprobs), logprobs)
    return -(logprobs.exp() * finite).sum(-1)


def adaptive_entropy_coefficient(
    coefficient: float, measured: float, *, target: float, step: float, highest: float = 1.0
) -> float:
    """Move the coefficient of an entropy bonus by a fixed step towards a target entropy (arXiv 2505.22312).

    Up by `step` below the target, down by it above, within [0, highest]. The paper also switches the bonus off while
    the entropy is above its target; multiply by `measured <= target` for that.

    Args:
        coefficient: The present one.
        measured: Mean entropy of the policy, in nats per token.
        target: Wanted entropy, same unit.
        step: Size of one change.
        highest: Upper bound.
    """
    moved = coefficient + (step if measured < target else -step if measured > target else 0.0)
    return min(max(moved, 0.0), highest)
