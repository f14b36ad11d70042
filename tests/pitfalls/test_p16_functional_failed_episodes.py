"""P16 (functional half): failed episodes enter no baseline, no std, no group size, and get 0."""

import pytest
import torch

from lit_agentrl import functional as F

REWARDS, GROUPS = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.0]), torch.tensor([0, 0, 0, 1, 1])
# The same episodes and three that failed, whatever reward they happen to carry.
WITH_FAILED = torch.tensor([1.0, 99.0, 0.0, 0.5, -torch.inf, 1.0, torch.nan, 0.0])
WITH_FAILED_GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 2, 1])
VALID = torch.tensor([1, 0, 1, 1, 0, 1, 0, 1], dtype=torch.bool)


@pytest.mark.parametrize("scale", ["std", "none", "batch"])
def test_group_advantages(scale):
    advantages = F.group_advantages(WITH_FAILED, WITH_FAILED_GROUPS, scale=scale, valid=VALID)
    assert torch.equal(advantages[VALID], F.group_advantages(REWARDS, GROUPS, scale=scale))
    assert (advantages[~VALID] == 0.0).all()


def test_rloo_divides_by_the_others_that_did_not_fail():
    advantages = F.rloo_advantages(WITH_FAILED, WITH_FAILED_GROUPS, valid=VALID)
    assert torch.equal(advantages[VALID], F.rloo_advantages(REWARDS, GROUPS))
    assert (advantages[~VALID] == 0.0).all()


def test_a_failure_makes_no_spread():
    keep = F.groups_with_spread(
        torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0, 0, 0]), valid=torch.tensor([True, True, False])
    )
    assert keep.tolist() == [False, False, False]


def test_a_group_of_failures_alone_has_no_spread():
    assert not F.groups_with_spread(torch.tensor([0.0, 1.0]), torch.tensor([0, 0]), valid=torch.zeros(2)).any()


def test_one_failed_step_takes_its_whole_trajectory_out_of_gigpo():
    rewards = torch.tensor([1.0, 0.0, 50.0, 50.0])
    trajectories, steps = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 0, 0, 1])
    advantages = F.gigpo_advantages(
        rewards,
        torch.zeros(4, dtype=torch.long),
        trajectories,
        steps,
        ["a"] * 4,
        valid=torch.tensor([True, True, True, False]),
    )
    # two trajectories remain: ±0.5 against the group, and ±0.5 against the state
    assert advantages.tolist() == [1.0, -1.0, 0.0, 0.0]


@pytest.mark.parametrize("group_ids", [None, torch.tensor([0, 0, 0])])
def test_masked_rows_enter_no_whitening(group_ids):
    returns, mask = torch.tensor([[1.0, 2.0], [3.0, 5.0], [torch.nan, 1e9]]), torch.tensor([[1, 1], [1, 1], [0, 0]])
    actual = F.reinforce_pp_advantages(returns, mask, group_ids=group_ids)
    valid_groups = None if group_ids is None else group_ids[:2]
    assert torch.equal(actual[:2], F.reinforce_pp_advantages(returns[:2], mask[:2], group_ids=valid_groups))
    assert (actual[2] == 0.0).all()
