"""Finds the episode whose reward, KL penalty or advantage is not a finite number, before a weight is touched."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.algorithms.credit import Episodes


def complaint(episodes: Episodes, advantages: Tensor, *, made_by: str) -> str | None:
    """Say in one sentence which episode carries a number that is not finite, or nothing if there is none.

    Causes come before effects: a reward, then a penalty, then an advantage.

    Args:
        episodes: Those of this rank.
        advantages: [N], per token of the flat batch, 0 where nothing is trained.
        made_by: Name of the advantage estimator.
    """
    inside = episodes.mask
    by_episode = torch.where(inside, advantages[episodes.place.clamp_min(0)], 0.0)
    for what, values in (
        ("its reward (environment, data.init_args.rewards, model.init_args.overlong)", episodes.rewards[:, None]),
        ("the KL penalty of one of its tokens (model.init_args.kl)", torch.where(inside, episodes.penalties, 0.0)),
        (f"the advantage that {made_by} gives it (model.init_args.advantage)", by_episode),
    ):
        bad = (~torch.isfinite(values) & episodes.valid[:, None]).nonzero()
        if len(bad):
            number, place = bad[0].tolist()
            trajectory = episodes.trajectories[number]
            value = float(values[number, place])
            return f"episode {trajectory.id} of task {trajectory.task.id!r}: {what} is {value}"
    return None
