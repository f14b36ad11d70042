"""Credit assignment meets the other ranks equally often, whatever lies on a rank."""

import pytest
import torch
from rl_support import rollout_of, trajectory, turn

from lit_agentrl.algorithms.action_values import PrecomputedAdvantage
from lit_agentrl.algorithms.credit import (
    DiscountedReturn,
    Episodes,
    GroupInGroup,
    GroupRelative,
    LeaveOneOut,
    WhitenedReturn,
)
from lit_agentrl.algorithms.credit_values import GeneralizedAdvantage
from lit_agentrl.algorithms.distillation import TeacherGap
from lit_agentrl.rollouts.segments import batch_from_groups

ESTIMATORS = [
    *(GroupRelative(scale=scale) for scale in ("std", "none", "batch")),
    LeaveOneOut(),
    *(DiscountedReturn(baseline=baseline) for baseline in ("batch", "none")),
    *(WhitenedReturn(group_baseline=group_baseline) for group_baseline in (True, False)),
    GroupInGroup(),
    *(GeneralizedAdvantage(step=step) for step in ("token", "turn")),
    PrecomputedAdvantage(),
    TeacherGap(),
]
SPOKEN = [[trajectory(0, s, turn([1], [2, 3]), turn([4], [5], parent=0), reward=float(s)) for s in range(2)]]
SILENT = [[trajectory(0, s, turn([1], [])) for s in range(2)]]
WITHOUT_TURNS = [[trajectory(0, s) for s in range(2)]]
NOTHING: list = []


def met(estimator, groups):
    """Return how often the other ranks were met, and the shape of what came out."""
    rollout = rollout_of(*groups)
    batch = batch_from_groups(rollout.groups)
    count = len(rollout.trajectories)
    calls = []
    episodes = Episodes.of(
        rollout,
        batch,
        valid=torch.ones(count, dtype=torch.bool),
        rewards=torch.tensor([t.reward for t in rollout.trajectories]),
        gather=lambda value: calls.append(value) or [value],
        values=torch.zeros(batch.num_tokens),
        bootstrap=torch.zeros(count),
    )
    advantages = estimator.advantages(episodes)
    assert advantages.shape == episodes.place.shape
    if hasattr(estimator, "value_targets"):
        assert [part.shape for part in estimator.value_targets(episodes)] == [episodes.place.shape] * 2
    return len(calls)


@pytest.mark.parametrize("groups", [SILENT, WITHOUT_TURNS, NOTHING], ids=["silent", "without turns", "nothing"])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_a_rank_without_tokens_takes_part(estimator, groups):
    assert met(estimator, groups) == met(estimator, SPOKEN)
