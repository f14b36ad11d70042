"""P21: every group's own rewards are used: when groups or members change places, their advantages go with them."""

import pytest
import torch
from rl_support import EndingPolicy, rollout_of, trajectory, turn

from lit_agentrl.algorithms import PolicyGradient
from lit_agentrl.algorithms.credit import DiscountedReturn, GroupInGroup, GroupRelative, LeaveOneOut, WhitenedReturn
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.segments import batch_from_groups

BY_GROUP = [GroupRelative(), GroupRelative(scale="none"), LeaveOneOut(), GroupInGroup()]
BY_ROLLOUT = [
    GroupRelative(scale="batch"),
    DiscountedReturn(gamma=0.9),
    WhitenedReturn(),
    WhitenedReturn(group_baseline=True),
]
NUM_GROUPS, SIZE = 4, 3


def episodes(group, *, rewards):
    """Members of one or two turns; the same states in all groups."""
    members = []
    for sample in range(SIZE):
        turns = [turn([1], [10 * group + sample, 3])]
        if (group + sample) % 2:
            turns.append(turn([4], [5], parent=0))
        turns[0].reward = 0.25 * sample
        for number, one in enumerate(turns):
            one.state_key = str(number)
        members.append(trajectory(group, sample, *turns, reward=rewards[group][sample]))
    return members


def some_rewards():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(NUM_GROUPS, SIZE, generator=generator).tolist()


def credited(estimator, groups):
    """Advantages of every episode, by group and sample."""
    rollout = rollout_of(*groups)
    batch = batch_from_groups(rollout.groups)
    loss = PolicyLoss(function="reinforce_loss")
    PolicyGradient(EndingPolicy(), advantage=estimator, policy_loss=loss, seed=0).credit(rollout, batch)
    owner = batch.trajectory[batch.segment]
    sampled = batch.reason != TokenReason.CONTEXT
    return {
        (t.group, t.sample): batch.advantages[sampled & (owner == number)].tolist()
        for number, t in enumerate(rollout.trajectories)
    }


def assert_close(actual, expected):
    assert actual.keys() == expected.keys()
    for place, values in expected.items():
        assert actual[place] == pytest.approx(values, abs=1e-5), place


@pytest.mark.parametrize("order", [(3, 1, 0, 2), (1, 2, 3, 0), (3, 2, 1, 0)])
@pytest.mark.parametrize("estimator", BY_GROUP + BY_ROLLOUT, ids=str)
def test_groups_that_change_places_take_their_advantages_along(estimator, order):
    groups = [episodes(group, rewards=some_rewards()) for group in range(NUM_GROUPS)]
    assert_close(credited(estimator, [groups[g] for g in order]), credited(estimator, groups))


@pytest.mark.parametrize("estimator", BY_GROUP + BY_ROLLOUT, ids=str)
def test_so_do_members_of_a_group(estimator):
    groups = [episodes(group, rewards=some_rewards()) for group in range(NUM_GROUPS)]
    turned = [members[::-1] for members in groups]
    assert_close(credited(estimator, turned), credited(estimator, groups))


@pytest.mark.parametrize("estimator", BY_GROUP, ids=str)
def test_rewards_of_one_group_move_that_group_alone(estimator):
    rewards = some_rewards()
    before = credited(estimator, [episodes(group, rewards=rewards) for group in range(NUM_GROUPS)])
    rewards[2] = [5.0, 1.0, -2.0]
    after = credited(estimator, [episodes(group, rewards=rewards) for group in range(NUM_GROUPS)])
    changed = {group for (group, sample), values in after.items() if values != before[group, sample]}
    assert changed == {2}


@pytest.mark.parametrize("estimator", BY_GROUP + BY_ROLLOUT, ids=str)
def test_rewards_that_are_exchanged_between_groups_are_exchanged_between_advantages(estimator):
    """A curve would not show it: the rollout's mean reward is the same."""
    rewards = some_rewards()

    def flat(rewards):
        """Groups that differ in nothing but their rewards."""
        return [
            [trajectory(g, s, turn([1], [2, 3]), reward=rewards[g][s]) for s in range(SIZE)] for g in range(NUM_GROUPS)
        ]

    before = credited(estimator, flat(rewards))
    after = credited(estimator, flat([rewards[1], rewards[0], *rewards[2:]]))
    assert_close(after, {(g ^ 1 if g < 2 else g, s): values for (g, s), values in before.items()})
    assert before[0, 0] != before[1, 0]
