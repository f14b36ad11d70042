"""Advantages of whole trajectories, from the rewards of their group or batch."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from lit_agentrl.functional._common import as_float, check_choice, dense_ids, masked, segment_sum
from lit_agentrl.functional.statistics import Moments, moments, whiten

AdvantageScale: TypeAlias = Literal["std", "none", "batch"]


class _Groups:
    """Rewards by group: sizes, means and spread over the valid entries only."""

    def __init__(self, rewards: Tensor, group_ids: Tensor, valid: Tensor | None) -> None:
        if rewards.ndim != 1 or group_ids.shape != rewards.shape:
            raise ValueError(f"rewards and group_ids must both be [N]; got {[*rewards.shape]}, {[*group_ids.shape]}")
        self.valid = torch.ones_like(group_ids, dtype=torch.bool) if valid is None else valid.bool()
        self.rewards = masked(as_float(rewards), self.valid)
        self.ids, self.count = dense_ids(group_ids)
        self.sizes = segment_sum(self.valid.to(self.rewards.dtype), self.ids, self.count)
        self.means = segment_sum(self.rewards, self.ids, self.count) / self.sizes.clamp(min=1)
        unbounded = torch.full_like(self.means, torch.inf)
        lowest = unbounded.scatter_reduce(0, self.ids, torch.where(self.valid, self.rewards, torch.inf), "amin")
        highest = (-unbounded).scatter_reduce(0, self.ids, torch.where(self.valid, self.rewards, -torch.inf), "amax")
        # The range is exact; mean and std of equal float32 numbers are not, and dividing by eps would blow that up.
        # `!=`, so that a NaN reward stays visible.
        self.spread = (highest != lowest) & (self.sizes > 0)

    @property
    def informative(self) -> Tensor:
        """bool[N]: valid, in a group that is not constant."""
        return self.valid & self.spread[self.ids]

    @property
    def centered(self) -> Tensor:
        """Rewards minus the mean of their group, [N]; exactly 0 where not informative."""
        return masked(self.rewards - self.means[self.ids], self.informative)

    def std(self, ddof: int) -> Tensor:
        """Standard deviation of each entry's group, [N]."""
        squares = segment_sum(self.centered.square(), self.ids, self.count)
        return (squares / (self.sizes - ddof).clamp(min=1)).sqrt()[self.ids]


@torch.no_grad()
def group_advantages(
    rewards: Tensor,
    group_ids: Tensor,
    *,
    scale: AdvantageScale = "std",
    eps: float = 1e-6,
    ddof: int = 1,
    valid: Tensor | None = None,
    batch_moments: Moments | None = None,
) -> Tensor:
    """Return how much better each trajectory did than its group.

    - `std`: (R - mean_group)/(std_group + eps) (GRPO, arXiv 2402.03300).
    - `none`: R - mean_group (Dr. GRPO, arXiv 2503.20783).
    - `batch`: (R - mean_group)/(std_batch + eps), the std that of all valid rewards of the batch.

    A constant group, and so a group of one, gets exactly 0. Libraries differ: verl and GiGPO add eps 1e-6, TRL and
    ms-swift 1e-4, OpenRLHF 1e-9; verl leaves a group of one its raw reward.

    Args:
        rewards: [N], one per trajectory (not per row of a batch: long trajectories would weigh more).
        group_ids: int[N], any numbers. A group must be whole in one call.
        scale: One of the above.
        eps: Added to the std.
        ddof: 1 for the unbiased variance, 0 for the biased one.
        valid: bool[N]; the others (failed episodes) enter no statistic and get 0, whatever their reward says.
        batch_moments: For `batch`: `moments(rewards, valid)` summed over ranks; by default those of this call.

    Returns:
        [N], at least float32, no gradient.
    """
    check_choice("scale", scale, get_args(AdvantageScale))
    groups = _Groups(rewards, group_ids, valid)
    if scale == "none":
        return groups.centered
    if scale == "std":
        return groups.centered / (groups.std(ddof) + eps)
    statistics = batch_moments or moments(groups.rewards, groups.valid)
    return groups.centered / (statistics.std(ddof) + eps)


@torch.no_grad()
def rloo_advantages(rewards: Tensor, group_ids: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """Return R - mean of the other trajectories of the group (RLOO, arXiv 2402.14740).

    It equals G/(G-1) times the advantage of Dr. GRPO. Constant groups and groups of one get exactly 0.

    Args:
        rewards: [N], one per trajectory.
        group_ids: int[N], any numbers.
        valid: bool[N]; the others enter no baseline and get 0.

    Returns:
        [N], at least float32, no gradient.
    """
    groups = _Groups(rewards, group_ids, valid)
    return groups.centered * (groups.sizes / (groups.sizes - 1).clamp(min=1))[groups.ids]


@torch.no_grad()
def groups_with_spread(rewards: Tensor, group_ids: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """Tell which entries lie in a group whose valid rewards are not all equal (dynamic sampling, arXiv 2503.14476).

    Args:
        rewards: [N], one per trajectory.
        group_ids: int[N], any numbers.
        valid: bool[N]; the others enter no range. They are kept or dropped with their group.

    Returns:
        bool[N].
    """
    groups = _Groups(rewards, group_ids, valid)
    return groups.spread[groups.ids]


@torch.no_grad()
def reinforce_pp_advantages(
    token_returns: Tensor,
    mask: Tensor,
    *,
    group_ids: Tensor | None = None,
    eps: float = 1e-8,
    ddof: int = 1,
    batch_moments: Moments | None = None,
) -> Tensor:
    """Whiten token returns over the whole batch (REINFORCE++, arXiv 2501.03262).

    With `group_ids`, each row first loses the mean of its group (REINFORCE++-baseline), where a row counts once,
    by the mean of its token returns. Whitening is over tokens, as in the paper, so a constant group is not exactly 0
    after it unless the whole batch is constant. verl whitens with the unbiased variance, OpenRLHF with the biased one.

    Args:
        token_returns: [B, T], from `discounted_returns` of rewards that hold the KL penalty.
        mask: bool or 0/1 [B, T]; rows of failed episodes are masked as a whole and enter no statistic.
        group_ids: int[B], any numbers.
        eps: Added to the variance.
        ddof: 1 for the unbiased variance, 0 for the biased one.
        batch_moments: Moments of the (centred) returns summed over ranks; by default those of this call.

    Returns:
        [B, T], at least float32, 0 outside the mask, no gradient.
    """
    returns = masked(as_float(token_returns), mask)
    if group_ids is not None:
        returns = center_rows(returns, mask, group_ids)
    return whiten(returns, mask, eps=eps, ddof=ddof, batch_moments=batch_moments)


@torch.no_grad()
def center_rows(token_returns: Tensor, mask: Tensor, group_ids: Tensor) -> Tensor:
    """Subtract from each row the mean of its group, each row with a trained token counted once.

    Args:
        token_returns: [B, T].
        mask: bool or 0/1 [B, T].
        group_ids: int[B].

    Returns:
        [B, T], 0 outside the mask; exactly 0 for groups that are constant.
    """
    returns = masked(as_float(token_returns), mask)
    if returns.numel() == 0:
        return returns
    lengths = mask.bool().sum(-1)
    lowest = torch.where(mask.bool(), returns, torch.inf).amin(-1)
    highest = torch.where(mask.bool(), returns, -torch.inf).amax(-1)
    # A row of equal returns keeps that very number: the mean of equal float32 numbers may differ in the last digit.
    row_means = torch.where(highest > lowest, returns.sum(-1) / lengths.clamp(min=1), masked(lowest, lengths > 0))
    groups = _Groups(row_means, group_ids, lengths > 0)
    constant = ~groups.spread[groups.ids]
    baselines = torch.where(constant, row_means, groups.means[groups.ids])
    return masked(returns - baselines.unsqueeze(-1), mask)
