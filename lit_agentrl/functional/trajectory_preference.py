"""Preferences between whole trajectories of an agent, and how pairs are picked."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lit_agentrl.functional._common import as_float, masked
from lit_agentrl.functional.preference import dpo_loss


def eto_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    *,
    chosen_mask: Tensor,
    rejected_mask: Tensor,
    beta: float = 0.1,
) -> Tensor:
    """DPO over the action tokens of two trajectories (ETO, arXiv 2403.02502): observations are left out of the sums.

    Args:
        policy_chosen: [N, T], token log-probs of the better trajectories (in the paper the expert's).
        policy_rejected: [N, U], of the worse ones (the agent's own failures).
        ref_chosen: [N, T]; no gradient.
        ref_rejected: [N, U]; no gradient.
        chosen_mask: bool or 0/1 [N, T], true for the agent's tokens.
        rejected_mask: bool or 0/1 [N, U].
        beta: Strength of the pull to the reference.

    Returns:
        [N], at least float32.
    """
    return dpo_loss(
        masked(as_float(policy_chosen), chosen_mask).sum(-1),
        masked(as_float(policy_rejected), rejected_mask).sum(-1),
        masked(as_float(ref_chosen), chosen_mask).sum(-1),
        masked(as_float(ref_rejected), rejected_mask).sum(-1),
        beta=beta,
    )


def dmpo_weights(mask: Tensor, *, gamma: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the turn weights of DMPO, gamma^t·(1 - gamma^(T-t))/(1 - gamma^T) (arXiv 2406.14868).

    At gamma = 1 that is (T - t)/T.

    Args:
        mask: bool or 0/1 [N, K], true for the turns that exist; T is their number, t counts them from 0.
        gamma: In (0, 1]. Smaller weighs early turns more.
        dtype: Of the weights.

    Returns:
        dtype[N, K], 0 outside the mask, 1 for the first turn.
    """
    if not 0.0 < gamma <= 1.0:
        raise ValueError(f"gamma must lie in (0, 1]; got {gamma}")
    inside = mask.bool()
    turn = inside.long().cumsum(-1).to(dtype) - 1.0
    total = inside.sum(-1, keepdim=True).to(dtype).clamp(min=1)
    if gamma == 1.0:
        return masked((total - turn) / total, inside)
    log_gamma = torch.log(torch.tensor(gamma, dtype=dtype, device=mask.device))
    weights = (turn * log_gamma).exp() * torch.expm1((total - turn) * log_gamma) / torch.expm1(total * log_gamma)
    return masked(weights, inside)


def dmpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    *,
    chosen_mask: Tensor,
    rejected_mask: Tensor,
    gamma: float,
    beta: float = 0.1,
) -> Tensor:
    """DPO over trajectories with discounted, length-normalised turns (DMPO, arXiv 2406.14868).

    -logsigmoid(beta·(D_chosen - D_rejected)), D = Σ_t w_t·log(π/π_ref)_t over turns, w from `dmpo_weights`.

    Args:
        policy_chosen: [N, K], log-probs of each turn (sums over its tokens) of the better trajectories.
        policy_rejected: [N, L], of the worse ones.
        ref_chosen: [N, K]; no gradient.
        ref_rejected: [N, L]; no gradient.
        chosen_mask: bool or 0/1 [N, K], true for the turns that exist.
        rejected_mask: bool or 0/1 [N, L].
        gamma: In (0, 1].
        beta: Strength of the pull to the reference.

    Returns:
        [N], at least float32.
    """

    def weighted(policy: Tensor, ref: Tensor, mask: Tensor) -> Tensor:
        ratio = masked(as_float(policy), mask) - masked(as_float(ref), mask).detach()
        return (dmpo_weights(mask, gamma=gamma, dtype=ratio.dtype) * ratio).sum(-1)

    chosen = weighted(policy_chosen, ref_chosen, chosen_mask)
    rejected = weighted(policy_rejected, ref_rejected, rejected_mask)
    return -logsigmoid(beta * (chosen - rejected))


def preference_pairs(scores: Tensor, *, min_gap: float = 0.0) -> Tensor:
    """Return all pairs (better, worse) whose scores differ by more than `min_gap`, as in step DPO on siblings.

    Args:
        scores: [K], for example Q of the children of a search node (Agent Q, arXiv 2408.07199).
        min_gap: Not negative.

    Returns:
        int64[P, 2], in order of the first and then the second index.
    """
    if min_gap < 0:
        raise ValueError(f"min_gap must not be negative; got {min_gap}")
    return torch.nonzero(scores.unsqueeze(1) - scores.unsqueeze(0) > min_gap)


def best_worst_pair(scores: Tensor) -> tuple[int, int] | None:
    """Return the indices of the best and the worst answer, or None if all are equal (online DPO, arXiv 2402.04792).

    Among equals the first counts.

    Args:
        scores: [K], K ≥ 1.
    """
    best, worst = int(scores.argmax()), int(scores.argmin())
    return None if bool(scores[best] == scores[worst]) else (best, worst)
