"""P14 (estimators): statistics count episodes; one of many turns, rows or tokens weighs no more than a short one."""

import pytest
import torch
from rl_support import EndingPolicy, rollout_of, trajectory, turn

from lit_agentrl.algorithms import PolicyGradient
from lit_agentrl.algorithms.credit import DiscountedReturn, GroupInGroup, GroupRelative, LeaveOneOut, WhitenedReturn
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.segments import batch_from_groups

BY_EPISODE = [
    GroupRelative(),
    GroupRelative(scale="none"),
    GroupRelative(scale="batch"),
    LeaveOneOut(),
    DiscountedReturn(),
    GroupInGroup(),
]


def episodes(turns, tokens, *, rows=1):
    """One episode that earns 1 at its end, of so many turns and tokens a turn, in so many rows; two short ones."""
    long = []
    for number in range(turns):
        new_row = number % -(-turns // rows) == 0
        long.append(turn([1], [2] * tokens, parent=None if new_row else number - 1))
    long[-1].reward = 1.0
    short = [trajectory(0, 1, turn([1], [3]), reward=0.25), trajectory(0, 2, turn([1], [4]), reward=0.0)]
    for one in short:
        one.turns[0].reward = one.reward
    return [trajectory(0, 0, *long, reward=1.0), *short]


def credited(estimator, members, aggregation="seq-mean-token-mean"):
    rollout = rollout_of(members)
    batch = batch_from_groups(rollout.groups)
    loss = PolicyLoss(function="reinforce_loss")
    algorithm = PolicyGradient(EndingPolicy(), advantage=estimator, policy_loss=loss, aggregation=aggregation, seed=0)
    (step,) = algorithm.batches(rollout, batch)
    owner = step.trajectory[step.segment]
    sampled = step.reason != TokenReason.CONTEXT
    advantages = [step.advantages[sampled & (owner == e)].unique().tolist() for e in range(3)]
    weights = [float(step.weight[sampled & (owner == e)].sum()) for e in range(3)]
    return advantages, weights


@pytest.mark.parametrize(("turns", "tokens", "rows"), [(1, 50, 1), (6, 1, 1), (6, 7, 1), (6, 7, 3), (6, 7, 6)])
@pytest.mark.parametrize("estimator", BY_EPISODE, ids=str)
def test_advantages_do_not_depend_on_length(estimator, turns, tokens, rows):
    expected, _ = credited(estimator, episodes(1, 1))
    found, weights = credited(estimator, episodes(turns, tokens, rows=rows))
    assert found == [pytest.approx(values) for values in expected]
    assert weights == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("estimator", [*BY_EPISODE, WhitenedReturn(), WhitenedReturn(group_baseline=True)], ids=str)
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_the_number_of_rows_changes_nothing(estimator, aggregation):
    """Compacted contexts and stripped thinking start new rows; whitening counts tokens, as its paper does, not rows."""
    one = credited(estimator, episodes(6, 7), aggregation)
    for rows in (2, 3, 6):
        assert credited(estimator, episodes(6, 7, rows=rows), aggregation) == one


def test_the_deviation_of_a_rollout_is_over_episodes():
    # Rewards 1, 0.25, 0: mean 0.4167; squares (0.3403 + 0.0278 + 0.1736)/2 = 0.2708, root 0.5204.
    advantages, _ = credited(GroupRelative(scale="batch"), episodes(6, 7))
    assert torch.tensor(advantages).flatten().tolist() == pytest.approx([1.1209, -0.3203, -0.8006], abs=1e-4)
