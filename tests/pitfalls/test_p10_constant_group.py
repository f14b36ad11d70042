"""P10: a constant group gives exactly 0, in float32 with rewards such as 0.3, not rounding noise over eps."""

import pytest
import torch

from lit_agentrl import functional as F

# Sum and mean of these equal numbers round, for some of the sizes, to something else than the number.
SIZES = [2, 3, 5, 7, 8, 16, 33]
REWARDS = [0.3, 0.1, -0.7, 1e-3, 123.456, 1 / 3]


def constant(reward, size, dtype):
    """A constant group next to a group with spread, so that the batch as a whole varies."""
    rewards = torch.tensor([reward] * size + [0.0, 1.0], dtype=dtype)
    return rewards, torch.tensor([0] * size + [1, 1])


def test_the_noise_is_real():
    rewards = torch.full((7,), 0.1)
    assert (rewards - rewards.sum() / 7).abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("reward", REWARDS)
def test_every_group_baseline_is_exactly_zero(reward, size, dtype):
    rewards, groups = constant(reward, size, dtype)
    for advantages in (
        F.group_advantages(rewards, groups, scale="std"),
        F.rloo_advantages(rewards, groups),
        F.group_advantages(rewards, groups, scale="none"),
        F.group_advantages(rewards, groups, scale="batch"),
    ):
        assert (advantages[:size] == 0.0).all()
        assert (advantages[size:] != 0.0).all()


@pytest.mark.parametrize("scale", ["none", "std"])
def test_gigpo_over_a_constant_group_is_exactly_zero(scale):
    # three trajectories of two steps, the same reward 0.3 at the end of each, meeting the same two states
    rewards = torch.tensor([0.0, 0.3] * 3)
    trajectories, steps = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 1] * 3)
    advantages = F.gigpo_advantages(
        rewards, torch.zeros(6, dtype=torch.long), trajectories, steps, ["a", "b"] * 3, scale=scale
    )
    assert (advantages == 0.0).all()


@pytest.mark.parametrize("group_ids", [None, torch.tensor([0, 0, 0])])
def test_whitening_a_constant_batch_is_exactly_zero(group_ids):
    returns = torch.full((3, 7), 0.3)
    advantages = F.reinforce_pp_advantages(returns, torch.ones(3, 7), group_ids=group_ids)
    assert (advantages == 0.0).all()


def test_constant_groups_are_told_from_groups_with_little_spread():
    rewards = torch.tensor([0.3, 0.3, 0.3, 0.30001])
    assert F.groups_with_spread(rewards, torch.tensor([0, 0, 1, 1])).tolist() == [False, False, True, True]


def test_a_nan_reward_stays_visible():
    advantages = F.group_advantages(torch.tensor([torch.nan, 0.3]), torch.tensor([0, 0]))
    assert advantages.isnan().all()
