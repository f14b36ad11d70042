"""P13: zero rewards in the middle or at the end of a trajectory do not lose turn boundaries."""

import torch

from lit_agentrl import functional as F

ONES = torch.ones(1, 3)
VALUES = torch.tensor([[0.5, 0.25, 1.0]])


def test_a_turn_that_earns_nothing_is_still_a_turn():
    # gamma = lam = 1: A_k = future rewards - V_k, whatever single turns earn
    advantages, _ = F.turn_gae(torch.tensor([[2.0, 0.0, 0.0]]), VALUES, ONES, gamma=1.0, lam=1.0)
    assert advantages.tolist() == [[1.5, -0.25, -1.0]]


def test_one_step_advantages_use_the_value_of_the_very_next_turn():
    # lam = 0: A_k = r_k + V_{k+1} - V_k
    advantages, _ = F.turn_gae(torch.zeros(1, 3), VALUES, ONES, gamma=1.0, lam=0.0)
    assert advantages.tolist() == [[-0.25, 0.75, -1.0]]


def test_tokens_follow_their_turn_and_not_their_reward():
    turns = torch.tensor([[0, 0, 1, 2, 2, 2]])
    mask = torch.tensor([[1, 1, 1, 1, 0, 1]])
    advantages, _ = F.turn_gae(torch.zeros(1, 3), VALUES, ONES, gamma=1.0, lam=0.0)
    assert F.spread_turns(advantages, turns, mask).tolist() == [[-0.25, -0.25, 0.75, -1.0, 0.0, -1.0]]


def test_step_returns_count_steps_without_reward():
    # gamma 0.5: the reward of the last step is two steps away from the first
    advantages = F.gigpo_advantages(
        torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0]),
        torch.zeros(6, dtype=torch.long),
        torch.tensor([0, 0, 0, 1, 1, 1]),
        torch.tensor([0, 1, 2, 0, 1, 2]),
        ["a", "b", "c"] * 2,
        episode_returns=torch.zeros(2),
        gamma=0.5,
    )
    assert advantages.tolist() == [0.125, 0.25, 0.5, -0.125, -0.25, -0.5]


def test_steps_may_come_in_any_order():
    rewards = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    trajectories, steps = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 1, 2, 0, 1, 2])
    anchors, order = ["a", "b", "c"] * 2, torch.tensor([5, 2, 0, 3, 1, 4])
    groups = torch.zeros(6, dtype=torch.long)
    straight = F.gigpo_advantages(rewards, groups, trajectories, steps, anchors)
    shuffled = F.gigpo_advantages(
        rewards[order], groups, trajectories[order], steps[order], [anchors[i] for i in order.tolist()]
    )
    assert torch.equal(shuffled, straight[order])
