"""Several rewards made one: weighted sums, before or after normalising, and strict priorities."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from lit_agentrl.functional._common import as_float, check_choice
from lit_agentrl.functional.advantages import group_advantages

ObjectiveMode: TypeAlias = Literal["weighted", "normalise_then_sum", "sum_then_normalise", "lexicographic"]


@torch.no_grad()
def combine_rewards(
    parts: Tensor,
    weights: Tensor,
    group_ids: Tensor,
    *,
    mode: ObjectiveMode = "weighted",
    tolerance: float = 0.0,
    valid: Tensor | None = None,
) -> Tensor:
    """Return one reward per trajectory from several.

    - `weighted`: Σ_k w_k·r_k. An estimator that divides by the deviation of this sum lets different mixtures of
      rewards collapse into one advantage (arXiv 2601.05242).
    - `normalise_then_sum`: each r_k is centred and scaled to deviation 1 inside its group first (GDPO, arXiv
      2601.05242). A part that is constant in a group adds exactly 0 there. The paper also whitens the sum over the
      batch, which is the estimator's business here.
    - `sum_then_normalise`: the weighted sum is centred and scaled inside its group, as GRPO does by itself.
    - `lexicographic`: ranks inside the group by the first part, ties by the second, and so on; the worst gets 0 and
      the best 1. Of the weights only the signs count: negative ones prefer less.

    Args:
        parts: [N, K], one row per trajectory.
        weights: [K].
        group_ids: int[N], any numbers. A group must be whole in one call.
        mode: One of the above.
        tolerance: For `lexicographic`: values are rounded to multiples of this before they are compared; 0 is exact.
        valid: bool[N]; the others enter no statistic and no ranking and get 0.

    Returns:
        [N], at least float32, no gradient.

    Raises:
        ValueError: Unknown mode, or a tolerance that is negative or that the mode would ignore.
    """
    check_choice("mode", mode, get_args(ObjectiveMode))
    if tolerance < 0 or (tolerance and mode != "lexicographic"):
        raise ValueError(f"tolerance must be 0 or more, and 0 unless mode is 'lexicographic'; got {tolerance}")
    parts = as_float(parts)
    inside = torch.ones_like(group_ids, dtype=torch.bool) if valid is None else valid.bool()
    parts = torch.where(inside[:, None], parts, 0.0)
    weights = weights.to(parts.dtype)
    if mode == "lexicographic":
        return _ranks(parts * weights.sign(), group_ids, inside, tolerance)
    if mode == "normalise_then_sum":
        columns = [group_advantages(part, group_ids, valid=inside) for part in parts.unbind(-1)]
        parts = torch.stack(columns, dim=-1)
    total = torch.where(inside, parts @ weights, 0.0)
    return group_advantages(total, group_ids, valid=inside) if mode == "sum_then_normalise" else total


def _ranks(parts: Tensor, group_ids: Tensor, inside: Tensor, tolerance: float) -> Tensor:
    """Return the share of distinct outcomes of the group that each trajectory beats, [N] in [0, 1]."""
    if tolerance:
        parts = (parts / tolerance).round()
    ranks = torch.zeros(len(parts), dtype=parts.dtype, device=parts.device)
    for group in torch.unique(group_ids[inside]):
        members = inside & (group_ids == group)
        distinct, rank = torch.unique(parts[members], dim=0, return_inverse=True)  # rows in lexicographic order
        ranks[members] = rank.to(parts.dtype) / max(len(distinct) - 1, 1)
    return ranks
