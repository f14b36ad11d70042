"""P15: equal observations of different tasks never share a step group."""

import torch
from rl_support import EndingPolicy, rollout_of, trajectory, turn

from lit_agentrl import functional as F
from lit_agentrl.algorithms import GiGPO
from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.segments import batch_from_groups


def episode(group, sample, reward, key="start"):
    one = trajectory(group, sample, turn([1], [2 + sample]), reward=reward)
    one.turns[0].reward, one.turns[0].state_key = reward, key
    return one


def credited(*groups):
    rollout = rollout_of(*groups)
    batch = batch_from_groups(rollout.groups)
    GiGPO(EndingPolicy(), advantage_scale="none", seed=0).credit(rollout, batch)
    return batch.advantages[batch.reason != TokenReason.CONTEXT].tolist()


def test_every_task_starts_from_a_state_called_start():
    """An easy task (1, 0.5) beside a hard one (0.5, 0): the same 0.5 is the worse of one, the better of the other."""
    easy = [episode(0, s, reward) for s, reward in enumerate([1.0, 0.5])]
    hard = [episode(1, s, reward) for s, reward in enumerate([0.5, 0.0])]
    # ±0.25 against the group and ±0.25 against the state; over both tasks the state's mean would be 0.5.
    assert credited(easy, hard) == [0.5, -0.5, 0.5, -0.5]


def test_a_group_is_credited_as_if_it_were_alone():
    groups = [[episode(g, s, float(3 * s == g) + 0.25 * s) for s in range(3)] for g in range(4)]
    together = credited(*groups)
    alone = [value for group in groups for value in credited(group)]
    assert together == alone


def test_no_key_is_equal_to_no_other():
    """Environments that give no key: the episode's part is left."""
    assert credited([episode(0, s, float(s), key=None) for s in range(2)]) == [-0.5, 0.5]


def test_the_function_itself():
    found = F.gigpo_advantages(
        torch.tensor([1.0, 0.0]), torch.tensor([7, 9]), torch.tensor([0, 1]), torch.tensor([0, 0]), ["same", "same"]
    )
    assert found.tolist() == [0.0, 0.0]
