"""Parts that make no sense together are refused at the start, and the message names both keys."""

import itertools
import warnings

import pytest
import torch
from rl_support import EndingPolicy, build, rollout_of, trajectory, turn

from lit_agentrl.algorithms import GRPO, REINFORCE, RLOO, GiGPO, PolicyGradient, ReinforcePP
from lit_agentrl.algorithms.credit import (
    DiscountedReturn,
    GroupInGroup,
    GroupRelative,
    LeaveOneOut,
    WhitenedReturn,
)
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.algorithms.terms import EntropyTerm, KLTerm, OffPolicyTerm
from lit_agentrl.rollouts.segments import batch_from_groups

PER_EPISODE = ["sequence_clip_loss", "gmpo_loss"]
PER_TOKEN = ["reinforce_loss", "ppo_clip_loss", "gspo_loss", "sapo_loss", "cispo_loss"]
SAME = [GroupRelative(), GroupRelative(scale="none"), GroupRelative(scale="batch"), LeaveOneOut()]
DIFFERENT = [DiscountedReturn(), WhitenedReturn(), WhitenedReturn(group_baseline=True), GroupInGroup()]
AGGREGATIONS = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]


def loss(function):
    return PolicyLoss(function=function, options={"clip_high": 0.2} if function == "cispo_loss" else {})


def make(advantage, function, aggregation="seq-mean-token-mean", **options):
    return PolicyGradient(
        EndingPolicy(), advantage=advantage, policy_loss=loss(function), aggregation=aggregation, seed=0, **options
    )


@pytest.mark.parametrize("advantage", DIFFERENT, ids=str)
@pytest.mark.parametrize("function", PER_EPISODE)
def test_one_loss_an_episode_needs_one_advantage_an_episode(function, advantage):
    message = rf"model\.init_args\.policy_loss\.function: {function} .*model\.init_args\.advantage: \w+ gives"
    with pytest.raises(ValueError, match=message):
        make(advantage, function)


@pytest.mark.parametrize("function", PER_EPISODE)
def test_an_import_path_is_the_same_function(function):
    with pytest.raises(ValueError, match=r"model\.init_args\.advantage: DiscountedReturn gives"):
        make(DiscountedReturn(), f"lit_agentrl.functional.{function}")


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-sum", "constant"])
@pytest.mark.parametrize("function", PER_EPISODE)
def test_one_loss_an_episode_is_not_counted_once_a_token(function, aggregation):
    constant = 8.0 if aggregation == "constant" else None
    message = rf"policy_loss\.function: {function} .*model\.init_args\.aggregation: {aggregation} would count"
    with pytest.raises(ValueError, match=message):
        make(LeaveOneOut(), function, aggregation, aggregation_constant=constant)


@pytest.mark.parametrize("mode", ["tis", "mis", "icepop"])
@pytest.mark.parametrize("function", PER_EPISODE)
def test_one_loss_an_episode_is_not_weighed_token_by_token(function, mode):
    low = 0.5 if mode == "icepop" else None
    with pytest.raises(ValueError, match=rf"{function} .*model\.init_args\.correction\.level: token"):
        make(LeaveOneOut(), function, correction=OffPolicyTerm(mode=mode, low=low))
    for level in ("sequence", "geometric"):
        make(LeaveOneOut(), function, correction=OffPolicyTerm(mode=mode, low=low, level=level))
    make(LeaveOneOut(), function, correction=OffPolicyTerm(mode="none", sequence_mask=0.1))


def test_a_loss_without_advantages_would_ignore_the_estimator():
    with pytest.raises(ValueError, match=r"policy_loss\.function: nll_loss takes no .*model\.init_args\.advantage "):
        make(LeaveOneOut(), "nll_loss")


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_only_k1_belongs_into_the_reward(estimator):
    message = rf"model\.init_args\.kl\.estimator: {estimator} in model\.init_args\.kl\.place: reward .*use k1"
    with pytest.raises(ValueError, match=message):
        KLTerm(estimator=estimator, place="reward")


@pytest.mark.parametrize("algorithm", [GroupInGroup, lambda scale: GiGPO(EndingPolicy(), advantage_scale=scale)])
def test_gigpo_has_no_deviation_of_the_batch(algorithm):
    message = r"advantage\.init_args\.scale is 'batch', but model\.init_args\.advantage: GroupInGroup .*std, none"
    with pytest.raises(ValueError, match=message):
        algorithm(scale="batch") if algorithm is GroupInGroup else algorithm("batch")


@pytest.mark.parametrize("estimator", [DiscountedReturn, WhitenedReturn, GroupInGroup])
@pytest.mark.parametrize("gamma", [-0.1, 1.1])
def test_a_discount_lies_between_0_and_1(estimator, gamma):
    with pytest.raises(ValueError, match=rf"advantage\.init_args\.gamma is {gamma}: it must lie in \[0, 1\]"):
        estimator(gamma=gamma)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (lambda: ReinforcePP(EndingPolicy(), group_baseline=True), r"model\.init_args\.group_baseline: true needs"),
        (lambda: make(WhitenedReturn(group_baseline=True), "ppo_clip_loss"), r"group_size is 1: PolicyGradient comp"),
    ],
)
def test_a_group_baseline_needs_a_group(algorithm, message):
    algorithm().check_sizes(num_groups=4, group_size=2)
    with pytest.raises(ValueError, match=message):
        algorithm().check_sizes(num_groups=4, group_size=1)


def test_a_loss_without_a_ratio_over_several_passes_is_warned_of():
    for algorithm in (REINFORCE, RLOO):
        with pytest.warns(UserWarning, match=r"reinforce_loss knows no ratio.*model\.init_args\.num_inner_epochs is 2"):
            algorithm(EndingPolicy(), num_inner_epochs=2, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        REINFORCE(EndingPolicy(), num_minibatches=2, seed=0)
        GRPO(EndingPolicy(), num_inner_epochs=2, seed=0)


# Whatever is not refused is defined: a finite loss with a gradient -------------------------------------------------


def accepted():
    for advantage, function, aggregation in itertools.product(SAME + DIFFERENT, PER_TOKEN, AGGREGATIONS):
        yield advantage, function, aggregation
    for advantage, function in itertools.product(SAME, PER_EPISODE):
        yield advantage, function, "seq-mean-token-mean"


@pytest.fixture(scope="module")
def policy():
    return build(EndingPolicy(hidden_size=8, num_layers=1, num_heads=2), dtype=torch.float64).eval()


@pytest.mark.parametrize("around", ["plain", "everything"])
def test_every_other_combination_has_a_finite_gradient(policy, around):
    options = {}
    if around == "everything":
        correction = OffPolicyTerm(mode="tis", high=2.0, level="geometric", sequence_mask=0.5)
        options = {"kl": KLTerm(), "entropy": EntropyTerm(), "correction": correction}
    count = 0
    for advantage, function, aggregation in accepted():
        algorithm = PolicyGradient(
            policy,
            advantage=advantage,
            policy_loss=loss(function),
            aggregation=aggregation,
            mask_truncated=True,
            seed=0,
            **options,
        )
        rollout = rollout_of(*episodes())
        batch = batch_from_groups(rollout.groups)
        batch.old_logprobs = batch.behavior_logprobs - 0.1
        batch.columns["ref_logprobs"] = batch.behavior_logprobs + 0.1
        algorithm._read_reference = lambda batch: None
        if algorithm.kl is None:
            del batch.columns["ref_logprobs"]
        (step,) = algorithm.batches(rollout, batch)
        value, _ = algorithm.loss(step)
        algorithm.zero_grad()
        value.backward()
        gradient = torch.cat([p.grad.flatten() for p in algorithm.parameters()])
        assert bool(torch.isfinite(gradient).all()), (advantage, function, aggregation)
        assert float(gradient.norm()) > 0, (advantage, function, aggregation)
        count += 1
    assert count == 8 * 5 * 3 + 4 * 2


def episodes():
    """Two groups of two: several turns, a truncated episode, and rewards at two turns."""
    groups = [[trajectory(g, s, turn([1], [2 + s, 3]), reward=float(s)) for s in range(3)] for g in range(2)]
    groups[0][1].turns.append(turn([4], [5, 6], parent=0))
    groups[0][1].turns[0].reward, groups[0][1].turns[1].reward = 0.25, 0.75
    groups[1][2].status = "truncated"
    return groups
