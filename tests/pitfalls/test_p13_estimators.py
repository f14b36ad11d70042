"""P13 (estimators): zero rewards in the middle or at the end, and turns without tokens, do not lose turn boundaries."""

import pytest
import torch
from rl_support import EndingPolicy, rollout_of, trajectory, turn

from lit_agentrl.algorithms import PolicyGradient
from lit_agentrl.algorithms.credit import DiscountedReturn, GroupInGroup
from lit_agentrl.algorithms.credit_values import GeneralizedAdvantage
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.segments import batch_from_groups

# Two tokens, one, two; only the first turn earns something, or only the last.
FIRST, LAST = (2.0, 0.0, 0.0), (0.0, 0.0, 2.0)


def episode(rewards, *, sample=0, tokens=((2, 3), (4,), (5, 6)), keys="abc"):
    turns = [turn([1], reply, parent=k - 1 if k else None) for k, reply in enumerate(tokens)]
    for one, reward, key in zip(turns, rewards, keys, strict=True):
        one.reward, one.state_key = reward, key
    return trajectory(0, sample, *turns, reward=sum(rewards))


class Flat(PolicyGradient):
    """A critic that says 0.5 before the first turn, 0.25 before the second and 1 before the third."""

    gives_values = True

    def state_values(self, rollout, batch):
        of_turn = torch.tensor([0.5, 0.25, 1.0, 0.0])
        return {"values": of_turn[batch.turn[batch.segment]]}


def advantages(estimator, *members, kind=PolicyGradient):
    rollout = rollout_of(members)
    batch = batch_from_groups(rollout.groups)
    loss = PolicyLoss(function="reinforce_loss")
    kind(EndingPolicy(), advantage=estimator, policy_loss=loss, seed=0).credit(rollout, batch)
    return batch.advantages[batch.reason != TokenReason.CONTEXT].tolist()


@pytest.mark.parametrize(("rewards", "expected"), [(FIRST, [2, 2, 0, 0, 0]), (LAST, [0.5, 0.5, 1, 2, 2])])
def test_returns_per_turn(rewards, expected):
    assert advantages(DiscountedReturn(gamma=0.5, baseline="none"), episode(rewards)) == expected


@pytest.mark.parametrize(
    ("rewards", "expected"),
    # lam 1: what is still earned, less the turn's value.
    [(FIRST, [1.5, 1.5, -0.25, -1, -1]), (LAST, [1.5, 1.5, 1.75, 1, 1])],
)
def test_generalized_advantages_per_turn(rewards, expected):
    estimator = GeneralizedAdvantage(lam=1.0, step="turn", whiten=False)
    assert advantages(estimator, episode(rewards), kind=Flat) == expected


def test_one_step_advantages_read_the_very_next_turn():
    # lam 0: r + V(next) - V: 2 + 0.25 - 0.5, 1 - 0.25, 0 - 1.
    estimator = GeneralizedAdvantage(lam=0.0, step="turn", whiten=False)
    assert advantages(estimator, episode(FIRST), kind=Flat) == [1.75, 1.75, 0.75, -1, -1]


@pytest.mark.parametrize(
    ("lam", "expected"),
    # 1 + 0.5 are earned by the turn of two tokens, whose value is 0.5; 2 by the last one, whose value is 1.
    [(1.0, [3.0, 3.0, 1.0]), (0.0, [1.5 + 1 - 0.5, 1.5 + 1 - 0.5, 1.0])],
)
def test_a_turn_without_tokens_is_no_step_of_generalized_advantages(lam, expected):
    estimator = GeneralizedAdvantage(lam=lam, step="turn", whiten=False)
    assert advantages(estimator, episode((1.0, 0.5, 2.0), tokens=((2, 3), (), (5,))), kind=Flat) == expected


def test_step_returns_of_gigpo():
    """Discount 0.5: returns 0.5, 1, 2 against 0, 0, 0 at equal states; half the gap each way, and the episode's ±1."""
    found = advantages(
        GroupInGroup(gamma=0.5, scale="none"), episode(LAST), episode((0.0, 0.0, 0.0), sample=1, keys="abc")
    )
    assert found == [1.25, 1.25, 1.5, 2, 2, -1.25, -1.25, -1.5, -2, -2]


def test_what_a_turn_without_tokens_earned_is_not_lost():
    """It goes to the tokens before it: whatever led there. Before, token rewards dropped it."""
    rollout = rollout_of([episode((0.25, 0.0, 1.0), tokens=((2, 3), (), (5,))), episode((0.0, 0.5, 1.0), sample=1)])
    rollout.trajectories[1].turns[2].completion = turn([1], []).completion
    seen = []

    class Peek(DiscountedReturn):
        def advantages(self, episodes):
            seen.append(episodes.token_rewards())
            return super().advantages(episodes)

    batch = batch_from_groups(rollout.groups)
    loss = PolicyLoss(function="reinforce_loss")
    PolicyGradient(EndingPolicy(), advantage=Peek(), policy_loss=loss, seed=0).credit(rollout, batch)
    (rewards,) = seen
    # Turns of 2, 0 and 1 tokens; of 2, 1 and 0: there the third turn's 1 joins the second's 0.5.
    assert rewards.tolist() == [[0, 0.25, 1], [0, 0, 1.5]]


def test_an_episode_that_begins_without_tokens_keeps_its_reward():
    rollout = rollout_of([episode((0.5, 0.0, 1.0), tokens=((), (4,), (5, 6)))])
    batch = batch_from_groups(rollout.groups)
    loss = PolicyLoss(function="reinforce_loss")
    algorithm = PolicyGradient(EndingPolicy(), advantage=DiscountedReturn(baseline="none"), policy_loss=loss, seed=0)
    algorithm.credit(rollout, batch)
    # The reward of a turn without tokens was earned before anything that was sampled: later tokens did not cause it.
    assert batch.advantages[batch.reason != TokenReason.CONTEXT].tolist() == [1, 1, 1]
