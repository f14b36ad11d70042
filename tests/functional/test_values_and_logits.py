import math

import pytest
import torch

from lit_agentrl import functional as F


def test_dqn_target_takes_the_best_next_action_unless_the_episode_terminated():
    targets = F.td_targets(
        torch.tensor([1.0, 1.0]), torch.tensor([0, 1]), torch.tensor([[2.0, 4.0], [2.0, 4.0]]), gamma=0.5
    )
    assert targets.tolist() == [3.0, 1.0]  # 1 + 0.5 x 4, and 1


def test_double_dqn_lets_the_online_network_choose():
    targets = F.td_targets(
        torch.zeros(1),
        torch.zeros(1),
        torch.tensor([[2.0, 4.0]]),
        gamma=0.5,
        online_q_next=torch.tensor([[9.0, 1.0]]),
    )
    assert targets.tolist() == [1.0]  # 0.5 x 2


def test_actions_that_do_not_exist_are_not_chosen():
    targets = F.td_targets(
        torch.zeros(1), torch.zeros(1), torch.tensor([[2.0, 4.0]]), gamma=0.5, available=torch.tensor([[True, False]])
    )
    assert targets.tolist() == [1.0]


def test_polyak_average():
    assert F.polyak_average(torch.tensor([1.0]), torch.tensor([2.0]), tau=0.25).tolist() == [1.25]


def test_expectile_targets_get_no_gradient():
    q_values, values = torch.ones(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    F.expectile_loss(q_values, values).sum().backward()
    assert q_values.grad is None
    assert values.grad is not None


def test_temperature_divides_the_logits():
    logits = torch.tensor([[0.0, math.log(9.0)]])
    # at temperature 2 the odds are 3:1
    assert F.token_logprobs(logits, torch.tensor([1]), temperature=2.0).item() == pytest.approx(math.log(0.75))
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert F.entropy(logits, temperature=2.0).item() == pytest.approx(expected)


def test_a_restricted_support_gives_finite_entropy_and_kl():
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    entropy, kl = F.entropy(logits), F.exact_kl_divergence(logits, torch.zeros(1, 3))
    assert entropy.item() == pytest.approx(math.log(2))
    assert kl.item() == pytest.approx(math.log(3 / 2))
    (gradient,) = torch.autograd.grad((entropy + kl).sum(), logits)
    assert gradient.isfinite().all()


def test_entropy_coefficient_moves_towards_the_target():
    move = {"target": 0.5, "step": 0.01, "highest": 0.05}
    assert F.adaptive_entropy_coefficient(0.02, 0.4, **move) == pytest.approx(0.03)
    assert F.adaptive_entropy_coefficient(0.02, 0.6, **move) == pytest.approx(0.01)
    assert F.adaptive_entropy_coefficient(0.0, 0.6, **move) == 0.0
    assert F.adaptive_entropy_coefficient(0.05, 0.4, **move) == 0.05


def test_moments_of_parts_are_those_of_the_whole():
    values = torch.tensor([1.0, 2.0, 4.0, 9.0])
    whole = F.moments(values, torch.ones(4))
    gathered = [F.moments(part, torch.ones(2)).to_tensor() for part in (values[:2], values[2:])]
    assert sum(map(F.Moments.from_tensor, gathered), F.Moments()) == whole
    assert whole.mean == 4.0
    assert whole.std() == pytest.approx(values.std().item())


@pytest.mark.parametrize("size", [3, 6, 7, 11])
def test_moments_of_equal_values_are_exact(size):
    moments = F.moments(torch.full((size,), 0.1, dtype=torch.float64), torch.ones(size))
    assert moments.mean == 0.1
    assert moments.std() == 0.0


def test_batch_scale_can_use_the_std_of_all_ranks():
    rewards, groups = torch.tensor([0.0, 1.0]), torch.tensor([0, 0])
    wide = F.moments(torch.tensor([0.0, 1.0, 10.0, -9.0]), torch.ones(4))
    actual = F.group_advantages(rewards, groups, scale="batch", batch_moments=wide)
    torch.testing.assert_close(actual, torch.tensor([-0.5, 0.5]) / wide.std())


def test_value_loss_without_clip_is_half_the_squared_error():
    values, returns = torch.tensor([[1.0, 5.0]]), torch.tensor([[3.0, 5.0]])
    assert F.value_loss(values, values, returns, torch.ones(1, 2)).item() == 1.0  # mean of 2 and 0
