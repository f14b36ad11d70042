"""P24: what each KL estimator's expected gradient is, against exact enumeration, in the loss and in the reward."""

import pytest
import torch
from exact_mdp import BANDIT, TREE, TabularPolicy, algorithm_for, expected_gradient, gradient_of, true_gradient
from rl_support import trainer

from lit_agentrl import functional as F
from lit_agentrl.algorithms.credit import DiscountedReturn, GroupInGroup, GroupRelative, LeaveOneOut
from lit_agentrl.algorithms.terms import KLTerm

PROCESSES = {"bandit": BANDIT, "tree": TREE}
BETA = 0.5


@pytest.fixture(params=PROCESSES)
def paths(request):
    return PROCESSES[request.param]


def visits(policy):
    """How often each row of the table is asked on average, [V], without gradient."""
    counts = torch.zeros(len(policy.table), dtype=torch.float64)
    for chance, path in zip(policy.path_logprobs().detach().exp(), policy.paths, strict=True):
        for said, _, _ in path.choices():
            counts[said[-1]] += chance
    return counts


def exact(policy, reference, *, reverse=False):
    """Gradient of the KL of one token, summed over an episode's tokens where they are met."""
    own, other = policy.log_table(), reference.log_table().detach()
    own, other = (torch.where(policy.choices, table, 0.0) for table in (own, other))
    p, q = ((table.exp() * policy.choices) for table in (own, other))
    per_row = (q * (other - own)).sum(-1) if reverse else (p * (own - other)).sum(-1)
    return gradient_of((visits(policy) * per_row).sum(), policy)


def exact_of_episodes(policy, reference):
    """Gradient of the KL between the distributions of whole episodes: which states are met depends on the policy."""
    own, other = policy.path_logprobs(), reference.path_logprobs().detach()
    return gradient_of((own.exp() * (own - other)).sum(), policy)


def pair(paths):
    return TabularPolicy(paths, seed=0), TabularPolicy(paths, seed=3)


def kl_part(paths, term, advantage=None, group_size=2):
    """What the KL term adds to the expected gradient, by the algorithm's own path, and policy and reference."""
    policy, reference = pair(paths)
    algorithm = algorithm_for(policy, advantage or LeaveOneOut(), kl=term)
    algorithm.trainer = trainer()
    algorithm.ensure_reference().policy.load_state_dict(reference.state_dict())
    with_kl = expected_gradient(algorithm, group_size=group_size)
    without = expected_gradient(algorithm_for(policy, advantage or LeaveOneOut()), group_size=group_size)
    return (with_kl - without) / -BETA, policy, reference


def assert_equal(actual, expected):
    assert float((actual - expected).norm() / expected.norm()) < 2e-6


# In the loss -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "corrected", "reverse"),
    [("k2", False, False), ("k3", False, True), ("k1", True, False), ("k2", True, False), ("k3", True, False)],
)
def test_in_the_loss(paths, estimator, corrected, reverse):
    """k2: ∇KL(policy ‖ reference). k3: the other direction. Corrected: the first, whatever the value's estimator."""
    term = KLTerm(coefficient=BETA, estimator=estimator, corrected_gradient=corrected)
    actual, policy, reference = kl_part(paths, term)
    assert_equal(actual, exact(policy, reference, reverse=reverse))
    # The two directions are told apart.
    other = exact(policy, reference, reverse=not reverse)
    assert float((actual - other).norm() / other.norm()) > 0.1


def test_k1_in_the_loss_has_no_gradient_and_is_refused(paths):
    policy, reference = pair(paths)
    logprobs, others = policy.path_logprobs(), reference.path_logprobs().detach()
    divergence = F.kl_divergence(logprobs, others, estimator="k1")
    gradient = gradient_of((logprobs.detach().exp() * divergence).sum(), policy)
    assert float(gradient.norm()) < 1e-12
    with pytest.raises(ValueError, match=r"kl\.estimator: k1 in model\.init_args\.kl\.place: loss has no gradient"):
        KLTerm(estimator="k1")


def test_the_value_is_that_of_the_estimator(paths):
    """k1 and k3 are unbiased as values: the mean over tokens is the KL per row."""
    policy, reference = pair(paths)
    own, other = policy.log_table().detach(), reference.log_table().detach()
    for row in policy.choices.any(-1).nonzero().flatten().tolist():
        tokens = policy.choices[row]
        left, right = own[row, tokens], other[row, tokens]
        truth = float((left.exp() * (left - right)).sum())
        for estimator in ("k1", "k3"):
            value = F.kl_divergence(left, right, estimator=estimator)
            assert float((left.exp() * value).sum()) == pytest.approx(truth, abs=1e-12)


# In the reward -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advantage", "factor"),
    [
        (LeaveOneOut(), 1.0),
        (GroupRelative(scale="none"), 0.5),  # (G - 1) / G
        (DiscountedReturn(baseline="none"), 1.0),
        (DiscountedReturn(baseline="batch"), 1.0),
    ],
    ids=["leave-one-out", "group-none", "return", "return-batch"],
)
def test_k1_in_the_reward_is_the_kl_of_whole_episodes(paths, advantage, factor):
    term = KLTerm(coefficient=BETA, estimator="k1", place="reward")
    actual, policy, reference = kl_part(paths, term, advantage)
    assert_equal(actual, factor * exact_of_episodes(policy, reference))


def test_both_parts_of_gigpo_pay_for_the_kl():
    """One turn: the step's advantage is the episode's, so that all is doubled; without the penalty it was not."""
    term = KLTerm(coefficient=BETA, estimator="k1", place="reward")
    actual, policy, reference = kl_part(BANDIT, term, GroupInGroup(scale="none"))
    assert_equal(actual, 2 * 0.5 * exact_of_episodes(policy, reference))


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_k2_and_k3_in_the_reward_would_hold_nothing_and_are_refused(estimator):
    """∇logp · k3 is ∇KL(policy ‖ reference) - ∇KL(reference ‖ policy) on average, which vanishes near the reference."""
    policy = TabularPolicy(BANDIT, seed=0)
    reference = policy.frozen_copy()
    with torch.no_grad():
        policy.table += 0.01 * torch.randn(policy.table.shape, generator=torch.Generator().manual_seed(0)).double()
    logprobs, others = policy.path_logprobs(), reference.path_logprobs().detach()
    detached = F.kl_divergence(logprobs, others, estimator=estimator).detach()
    gradient = gradient_of((logprobs.detach().exp() * detached * logprobs).sum(), policy)
    wanted = exact(policy, reference)
    if estimator == "k3":
        torch.testing.assert_close(gradient, wanted - exact(policy, reference, reverse=True), rtol=0, atol=1e-12)
    assert float(gradient.norm() / wanted.norm()) < 0.02
    with pytest.raises(ValueError, match=rf"kl\.estimator: {estimator} in model\.init_args\.kl\.place: reward"):
        KLTerm(estimator=estimator, place="reward")


def test_the_reward_itself_is_still_followed():
    """The whole gradient with a KL in the reward is that of reward minus KL, to seven digits."""
    policy, reference = pair(TREE)
    algorithm = algorithm_for(policy, LeaveOneOut(), kl=KLTerm(coefficient=BETA, estimator="k1", place="reward"))
    algorithm.trainer = trainer()
    algorithm.ensure_reference().policy.load_state_dict(reference.state_dict())
    expected = true_gradient(policy) - BETA * exact_of_episodes(policy, reference)
    assert_equal(expected_gradient(algorithm, group_size=2), expected)
