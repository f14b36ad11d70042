"""P14 (functional half): statistics count trajectories, not rows; long trajectories weigh no more."""

import pytest
import torch

from lit_agentrl import functional as F


def test_gigpo_counts_a_long_trajectory_once():
    # returns 1 (one step) and 0 (four steps): the mean over trajectories is 1/2; over rows it would be 1/5
    advantages = F.gigpo_advantages(
        torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]),
        torch.zeros(5, dtype=torch.long),
        torch.tensor([0, 1, 1, 1, 1]),
        torch.tensor([0, 0, 1, 2, 3]),
        [None] * 5,
    )
    assert advantages.tolist() == [0.5, -0.5, -0.5, -0.5, -0.5]


def test_reinforce_pp_baseline_counts_a_long_row_once():
    returns, mask = torch.tensor([[1.0] * 4, [0.0] * 4]), torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]])
    centered = F.center_rows(returns, mask, torch.tensor([0, 0]))
    assert centered.tolist() == [[0.5, 0.0, 0.0, 0.0], [-0.5, -0.5, -0.5, -0.5]]


def test_sequence_means_give_a_trajectory_of_many_rows_one_vote():
    # trajectory 0 wrote one row of 2 tokens, trajectory 1 three rows of 2 tokens each
    trajectory = torch.tensor([0, 0, 1, 1, 1, 1, 1, 1])
    weights = F.token_weights(torch.ones(8), trajectory, mode="seq-mean-token-mean")
    assert weights[trajectory == 0].sum().item() == pytest.approx(0.5)
    assert weights[trajectory == 1].sum().item() == pytest.approx(0.5)
