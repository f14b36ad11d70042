"""Several rewards made one."""

import pytest
import torch

from lit_agentrl import functional as F

GROUP = torch.zeros(4, dtype=torch.int64)
# Solved or not, and how short: the two sums (weights 1 and 1) are 2, 1, 1, 0.
PARTS = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
ONES = torch.ones(2)


def test_a_weighted_sum():
    assert F.combine_rewards(PARTS, torch.tensor([1.0, 0.5]), GROUP).tolist() == [1.5, 1.0, 0.5, 0.0]


def test_normalising_first_makes_parts_of_different_size_count_alike():
    """Each part has mean 0.5 and deviation sqrt(1/3) (ddof 1); a part in hundreds counts no more than one in units."""
    scaled = PARTS * torch.tensor([1.0, 100.0])
    got = F.combine_rewards(scaled, ONES, GROUP, mode="normalise_then_sum")
    unit = 0.5 / (1 / 3) ** 0.5
    assert got.tolist() == pytest.approx([2 * unit, 0, 0, -2 * unit], abs=1e-4)


def test_normalising_afterwards_is_what_grpo_does():
    got = F.combine_rewards(PARTS, ONES, GROUP, mode="sum_then_normalise")
    assert torch.equal(got, F.group_advantages(PARTS.sum(-1), GROUP))


def test_normalising_first_keeps_apart_what_the_sum_of_two_makes_equal():
    """GDPO's example: with weights 1 and 1 the rewards (0, 1) and (0, 2) of a pair give the same GRPO advantages."""
    pairs = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    groups = torch.tensor([0, 0, 1, 1])
    summed = F.combine_rewards(pairs, ONES, groups, mode="sum_then_normalise")
    apart = F.combine_rewards(pairs, ONES, groups, mode="normalise_then_sum")
    assert summed[1].item() == pytest.approx(summed[3].item(), abs=1e-5)
    assert apart[3].item() == pytest.approx(2 * apart[1].item(), abs=1e-5)


def test_priorities_are_strict():
    """By success first, then by shortness: no shortness makes up for a failure."""
    parts = torch.tensor([[1.0, -50.0], [0.0, -1.0], [1.0, -2.0], [0.0, -1.0]])
    assert F.combine_rewards(parts, ONES, GROUP, mode="lexicographic").tolist() == [0.5, 0.0, 1.0, 0.0]


def test_a_negative_weight_prefers_less():
    parts = torch.tensor([[1.0, 50.0], [1.0, 2.0], [0.0, 1.0], [0.0, 9.0]])
    got = F.combine_rewards(parts, torch.tensor([1.0, -1.0]), GROUP, mode="lexicographic")
    assert got.tolist() == pytest.approx([2 / 3, 1.0, 1 / 3, 0.0])


def test_differences_below_the_tolerance_are_ties():
    parts = torch.tensor([[0.51, 0.0], [0.49, 1.0]])
    exact = F.combine_rewards(parts, ONES, GROUP[:2], mode="lexicographic")
    rounded = F.combine_rewards(parts, ONES, GROUP[:2], mode="lexicographic", tolerance=0.1)
    assert exact.tolist() == [1.0, 0.0]
    assert rounded.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("mode", ["normalise_then_sum", "sum_then_normalise", "lexicographic"])
def test_a_constant_group_is_exactly_zero(mode):
    parts = torch.full((3, 2), 0.3)
    assert F.combine_rewards(parts, ONES, GROUP[:3], mode=mode).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("mode", ["weighted", "normalise_then_sum", "sum_then_normalise", "lexicographic"])
def test_failed_episodes_count_nowhere(mode):
    parts = torch.cat([PARTS, torch.tensor([[torch.nan, 9.0]])])
    valid = torch.tensor([True] * 4 + [False])
    got = F.combine_rewards(parts, ONES, torch.zeros(5, dtype=torch.int64), mode=mode, valid=valid)
    assert torch.equal(got[:4], F.combine_rewards(PARTS, ONES, GROUP, mode=mode))
    assert got[4] == 0


def test_a_tolerance_that_would_be_ignored_is_refused():
    with pytest.raises(ValueError, match="tolerance"):
        F.combine_rewards(PARTS, ONES, GROUP, tolerance=0.1)
