"""P11: a group of one gives 0, never the raw reward."""

import pytest
import torch

from lit_agentrl import functional as F

REWARDS, GROUPS = torch.tensor([0.7, 1.0, 0.0]), torch.tensor([5, 2, 2])


@pytest.mark.parametrize("scale", ["std", "none", "batch"])
def test_group_advantages(scale):
    advantages = F.group_advantages(REWARDS, GROUPS, scale=scale)
    assert advantages[0] == 0.0
    assert advantages[1] > 0 > advantages[2]


def test_rloo_has_no_others_to_compare_with():
    assert F.rloo_advantages(REWARDS, GROUPS).tolist() == [0.0, 1.0, -1.0]


def test_a_group_that_failures_left_with_one_is_a_group_of_one():
    valid = torch.tensor([True, True, False])
    assert F.group_advantages(REWARDS, GROUPS, valid=valid).tolist() == [0.0, 0.0, 0.0]
    assert F.rloo_advantages(REWARDS, GROUPS, valid=valid).tolist() == [0.0, 0.0, 0.0]


def test_a_state_met_once_earns_no_step_advantage():
    step_rewards, ids = torch.tensor([0.0, 1.0, 0.0, 0.0]), torch.tensor([0, 0, 1, 1])
    arguments = (step_rewards, torch.zeros(4, dtype=torch.long), ids, torch.tensor([0, 1, 0, 1]))
    met_once = F.gigpo_advantages(*arguments, ["a", "b", "c", None])
    assert met_once.tolist() == [0.5, 0.5, -0.5, -0.5]  # the episode's part alone


def test_dynamic_sampling_drops_it():
    assert F.groups_with_spread(REWARDS, GROUPS).tolist() == [False, True, True]
