"""P18: GAE skips observation tokens; truncation bootstraps, termination does not."""

import pytest
import torch

from lit_agentrl import functional as F

REWARDS = torch.tensor([[0.0, 0.2, 0.0, 0.0, 0.0, 1.0]])
VALUES = torch.tensor([[0.5, 0.4, 0.0, 0.0, 0.6, 0.7]])
MASK = torch.tensor([[1, 1, 0, 0, 1, 1]])


@pytest.mark.parametrize("garbage", [9.0, -1e30, torch.inf, torch.nan])
def test_garbage_on_observations_changes_nothing(garbage):
    outside = ~MASK.bool()
    noisy = F.gae(REWARDS.masked_fill(outside, garbage), VALUES.masked_fill(outside, garbage), MASK, gamma=0.9, lam=0.8)
    clean = F.gae(REWARDS, VALUES, MASK, gamma=0.9, lam=0.8)
    assert torch.equal(noisy[0], clean[0])
    assert torch.equal(noisy[1], clean[1])


def test_the_length_of_an_observation_changes_nothing():
    inside = MASK.bool()
    short = F.gae(REWARDS[inside][None], VALUES[inside][None], torch.ones(1, 4), gamma=0.9, lam=0.8)
    long = F.gae(REWARDS, VALUES, MASK, gamma=0.9, lam=0.8)
    torch.testing.assert_close(long[0][inside], short[0][0])


def test_padding_after_the_end_does_not_cut_off_the_bootstrap():
    one = torch.ones(1, 1)
    padded = [torch.cat([tensor, torch.full((1, 2), torch.nan)], 1) for tensor in (one, one)]
    advantages, _ = F.gae(*padded, torch.tensor([[1, 0, 0]]), gamma=0.5, lam=1.0, bootstrap=torch.tensor([4.0]))
    assert advantages[0, 0] == 2.0  # 1 + 0.5 x 4 - 1


def test_a_terminated_row_beside_a_truncated_one():
    rewards, values = torch.ones(2, 1), torch.zeros(2, 1)
    advantages, returns = F.gae(rewards, values, rewards, gamma=0.5, lam=1.0, bootstrap=torch.tensor([0.0, 4.0]))
    assert advantages.flatten().tolist() == [1.0, 3.0]
    assert returns.flatten().tolist() == [1.0, 3.0]


def test_each_row_may_have_its_own_lambda():
    rewards, values = torch.tensor([[0.0, 1.0]] * 2), torch.zeros(2, 2)
    advantages, _ = F.gae(rewards, values, torch.ones(2, 2), gamma=1.0, lam=torch.tensor([0.0, 0.5]))
    assert advantages.tolist() == [[0.0, 1.0], [0.5, 1.0]]
