"""Group-in-group advantages: one baseline per task, one more per state that several trajectories went through."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from lit_agentrl.functional._common import as_float, dense_ids, masked, segment_sum
from lit_agentrl.functional.advantages import AdvantageScale, group_advantages
from lit_agentrl.functional.returns import discounted_returns


def _step_returns(rewards: Tensor, trajectories: Tensor, count: int, step_ids: Tensor, gamma: float) -> Tensor:
    """Discounted return of each row's own trajectory from that row on, [S]."""
    by_step = torch.argsort(step_ids, stable=True)
    order = by_step[torch.argsort(trajectories[by_step], stable=True)]
    lengths = torch.bincount(trajectories, minlength=count)
    owner = trajectories[order]
    place = torch.arange(order.numel(), device=order.device) - (lengths.cumsum(0) - lengths)[owner]
    repeated = (owner[1:] == owner[:-1]) & (step_ids[order][1:] == step_ids[order][:-1])
    if bool(repeated.any()):
        raise ValueError("step_ids must differ inside a trajectory")
    padded = rewards.new_zeros(count, int(lengths.max()))
    padded[owner, place] = rewards[order]
    inside = torch.arange(padded.shape[1], device=order.device) < lengths.unsqueeze(-1)
    returns = torch.empty_like(rewards)
    returns[order] = discounted_returns(padded, inside, gamma=gamma)[owner, place]
    return returns


def _anchor_ids(group_ids: Tensor, anchors: Sequence[Hashable | None]) -> Tensor:
    """Number the pairs of group and anchor; None is equal to nothing, itself included."""
    numbers: dict[Hashable, int] = {}
    keys = [
        ("row", row) if anchor is None else ("state", group, anchor)
        for row, (group, anchor) in enumerate(zip(group_ids.tolist(), anchors, strict=True))
    ]
    return torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys], device=group_ids.device)


@torch.no_grad()
def gigpo_advantages(
    step_rewards: Tensor,
    group_ids: Tensor,
    trajectory_ids: Tensor,
    step_ids: Tensor,
    anchors: Sequence[Hashable | None],
    *,
    episode_returns: Tensor | None = None,
    gamma: float = 0.95,
    omega: float = 1.0,
    scale: AdvantageScale = "none",
    eps: float = 1e-6,
    valid: Tensor | None = None,
) -> Tensor:
    """Return A_episode + omega·A_step for every step (GiGPO, arXiv 2505.10978).

    A_episode compares the trajectories of a group, each counted once whatever its length (ROLL counts rows). A_step
    compares the discounted returns of the steps of one group that started from an equal state, over trajectories and
    time; a state that was met once, and states with equal returns, give 0. States of different groups are never equal.

    Args:
        step_rewards: [S].
        group_ids: int[S], any numbers.
        trajectory_ids: int[S], any numbers, unique over groups.
        step_ids: int[S], order in time inside a trajectory.
        anchors: S state keys; None is equal to no other state.
        episode_returns: [J], one per trajectory in ascending order of id; by default the undiscounted sums.
        gamma: Discount of the step returns.
        omega: Weight of the step advantages.
        scale: Of both advantages, see `group_advantages`; the paper offers `none` and `std`.
        eps: Added to the std.
        valid: bool[S]; a trajectory with an invalid step enters no statistic and gets 0.

    Returns:
        [S], at least float32, no gradient.

    Raises:
        ValueError: A trajectory in two groups, repeated steps, or shapes that do not match.
    """
    rewards = as_float(step_rewards)
    if rewards.numel() == 0:
        return rewards
    trajectories, count = dense_ids(trajectory_ids)
    trajectory_groups = group_ids.new_zeros(count).index_copy(0, trajectories, group_ids)
    if not torch.equal(trajectory_groups[trajectories], group_ids):
        raise ValueError("trajectory_ids must be unique over groups: one trajectory lies in two of them")
    if episode_returns is not None and episode_returns.shape != (count,):
        raise ValueError(f"episode_returns must have one entry for each of {count} trajectories")
    invalid = torch.zeros_like(rewards) if valid is None else (~valid.bool()).to(rewards.dtype)
    trajectory_valid = segment_sum(invalid, trajectories, count) == 0
    row_valid = trajectory_valid[trajectories]
    rewards = masked(rewards, row_valid)

    if episode_returns is None:
        episode_returns = segment_sum(rewards, trajectories, count)
    episode = group_advantages(episode_returns, trajectory_groups, scale=scale, eps=eps, valid=trajectory_valid)
    returns = _step_returns(rewards, trajectories, count, step_ids, gamma)
    step = group_advantages(returns, _anchor_ids(group_ids, anchors), scale=scale, eps=eps, valid=row_valid)
    return episode[trajectories].to(rewards.dtype) + omega * step
