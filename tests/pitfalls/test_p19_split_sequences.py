"""P19: losses and corrections over sequences mean the whole episode, however it lies in rows, pieces, minibatches."""

import pytest
import torch
from rl_support import EndingPolicy, build, rollout_of, trajectory, turn

from lit_agentrl import functional as F
from lit_agentrl.algorithms import PolicyGradient
from lit_agentrl.algorithms.credit import DiscountedReturn, GroupInGroup, GroupRelative, LeaveOneOut, WhitenedReturn
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.algorithms.terms import OffPolicyTerm
from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.segments import batch_from_groups

LOSSES = {"gspo_loss": F.gspo_loss, "sequence_clip_loss": F.sequence_clip_loss, "gmpo_loss": F.gmpo_loss}
# Wide enough that nothing is clipped, or narrow enough that some episodes are.
CLIPS = {"wide": 5.0, "narrow": 0.01}


@pytest.fixture(scope="module")
def policy():
    return build(EndingPolicy(hidden_size=16, num_layers=1, num_heads=2), dtype=torch.float64).eval()


def episodes(*, rows):
    """Two groups of two; the episodes of the first have three turns, each a row of its own or continuing the last."""
    ids = iter(range(20, 500))

    def some(count):
        return [next(ids) for _ in range(count)]

    prompt = some(4)
    groups = []
    for group in range(2):
        members = []
        for sample in range(2):
            turns = [turn(prompt, some(2 + sample))]
            for number in range(1, 3 if group == 0 else 1):
                turns.append(turn(some(3), some(3 * number), parent=None if rows == "split" else number - 1))
            members.append(trajectory(group, sample, *turns, reward=float(sample) + 0.5 * group))
        groups.append(members)
    return groups


def batch_of(algorithm, groups):
    """The step's batch, its old log-probs a little off the policy's."""
    rollout = rollout_of(*groups)
    batch = batch_from_groups(rollout.groups)
    index, logprobs, _ = algorithm.policy_logprobs(batch, batch.reason == TokenReason.TRAINED)
    noise = torch.randn(index.numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch.old_logprobs = batch.behavior_logprobs.double()
    batch.old_logprobs[index] = logprobs.detach() + 0.1 * noise
    batch.behavior_logprobs = batch.old_logprobs + 0.05 * noise.abs().mean()
    (step,) = algorithm.batches(rollout, batch)
    return step


def value_and_gradient(algorithm, step, budget):
    algorithm.micro_batch_tokens = budget
    algorithm.zero_grad()
    total = 0.0
    for piece in algorithm.pieces(step, step.weight != 0):
        loss, _ = algorithm.loss(piece)
        loss.backward()
        total += float(loss.detach())
    return total, torch.cat([p.grad.flatten().clone() for p in algorithm.parameters()])


def one_row_an_episode(algorithm, step, function, clip, factors=None):
    """The loss with every episode's sampled tokens on one row of a rectangle, [E, T], as a formula on paper has it."""
    index, logprobs, _ = algorithm.policy_logprobs(step, step.reason == TokenReason.TRAINED)
    owner = step.trajectory[step.segment[index]]
    rows = [index[owner == e].sort().values for e in range(int(owner.max()) + 1)]
    width = max(len(row) for row in rows)
    place = torch.full((len(rows), width), -1)
    for number, row in enumerate(rows):
        place[number, : len(row)] = row
    mask, at = place >= 0, place.clamp_min(0)
    flat = torch.zeros(step.num_tokens, dtype=torch.float64).index_copy(0, index, logprobs.double())
    loss = function(flat[at], step.old_logprobs[at], step.advantages[at].double(), mask, clip_low=clip, clip_high=clip)
    if factors is not None:
        loss = loss * factors(step.old_logprobs[at], step.behavior_logprobs[at], mask)
    return F.aggregate(loss, mask, mode="seq-mean-token-mean")


def make(policy, function, clip, **options):
    loss = PolicyLoss(function=function, options={"clip_low": clip, "clip_high": clip})
    return PolicyGradient(
        policy,
        **({"advantage": GroupRelative()} | options),
        policy_loss=loss,
        aggregation="seq-mean-token-mean",
        seed=0,
    )


@pytest.mark.parametrize("share_prefixes", [True, False])
@pytest.mark.parametrize("rows", ["one", "split"])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("function", LOSSES)
def test_the_loss_is_that_of_one_row_an_episode(policy, function, clip, rows, share_prefixes):
    algorithm = make(policy, function, CLIPS[clip], share_prefixes=share_prefixes)
    step = batch_of(algorithm, episodes(rows=rows))
    algorithm.zero_grad()
    expected = one_row_an_episode(algorithm, step, LOSSES[function], CLIPS[clip])
    expected.backward()
    gradient = torch.cat([p.grad.flatten().clone() for p in algorithm.parameters()])
    # A budget of one token would tear an episode apart, were it not kept in one piece.
    for budget in (1, 30, 10_000):
        value, found = value_and_gradient(algorithm, step, budget)
        assert value == pytest.approx(float(expected.detach()), rel=1e-5, abs=1e-6)
        assert float((found - gradient).norm()) <= 1e-5 * float(gradient.norm())
    assert clip == "narrow" or float(gradient.norm()) > 0


@pytest.mark.parametrize("level", ["sequence", "geometric"])
@pytest.mark.parametrize("rows", ["one", "split"])
def test_corrections_per_episode_are_those_of_one_row(policy, rows, level):
    correction = OffPolicyTerm(mode="tis", high=1.5, level=level)
    algorithm = make(policy, "gspo_loss", 5.0, correction=correction)
    step = batch_of(algorithm, episodes(rows=rows))

    def factors(old, behavior, mask):
        return F.importance_weights(old, behavior, mask, mode="tis", high=1.5, level=level)

    expected = float(one_row_an_episode(algorithm, step, F.gspo_loss, 5.0, factors).detach())
    for budget in (1, 10_000):
        assert value_and_gradient(algorithm, step, budget)[0] == pytest.approx(expected, rel=1e-5, abs=1e-6)


def half_silent():
    """An episode whose first turn has advantage 1 and whose second has exactly 0, beside one of a single turn."""
    one = trajectory(0, 0, turn([1, 2], [30, 31, 32]), turn([3], [40, 41], parent=0), reward=1.0)
    one.turns[0].reward = 1.0
    other = trajectory(0, 1, turn([1, 2], [33, 34]), reward=0.5)
    other.turns[0].reward = 0.5
    return [[one, other]]


@pytest.mark.parametrize("rows", ["loss", "correction"])
def test_tokens_without_an_advantage_still_count_in_the_episodes_ratio(policy, rows):
    """They were left out once, which made the ratio that of the other tokens alone."""
    options = {"advantage": DiscountedReturn(baseline="none")}
    if rows == "loss":
        algorithm = make(policy, "gspo_loss", 5.0, **options)
        function, factors = F.gspo_loss, None
    else:
        correction = OffPolicyTerm(mode="tis", high=9.0, level="sequence")
        algorithm = make(policy, "ppo_clip_loss", 5.0, correction=correction, **options)
        function = F.ppo_clip_loss

        def factors(old, behavior, mask):
            return F.importance_weights(old, behavior, mask, mode="tis", high=9.0, level="sequence")

    step = batch_of(algorithm, half_silent())
    assert (step.reason == TokenReason.NO_SIGNAL).sum() == 0
    assert step.advantages[step.reason == TokenReason.TRAINED].tolist() == [1, 1, 1, 0, 0, 0.5, 0.5]
    expected = float(one_row_an_episode(algorithm, step, function, 5.0, factors).detach())
    assert value_and_gradient(algorithm, step, 1)[0] == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_episodes_without_any_advantage_still_cost_nothing(policy):
    algorithm = make(policy, "gspo_loss", 5.0)
    constant = [trajectory(1, s, turn([1], [2, 3]), reward=1.0) for s in range(2)]
    step = batch_of(algorithm, [*half_silent(), constant])
    owner = step.trajectory[step.segment]
    assert set(step.reason[(owner >= 2)].tolist()) == {TokenReason.NO_SIGNAL}


def test_losses_per_token_still_leave_such_tokens_out(policy):
    algorithm = make(policy, "ppo_clip_loss", 0.2, advantage=DiscountedReturn(baseline="none"))
    step = batch_of(algorithm, half_silent())
    assert (step.reason == TokenReason.NO_SIGNAL).sum() == 2


@pytest.mark.parametrize("function", ["sequence_clip_loss", "gmpo_loss"])
@pytest.mark.parametrize("advantage", [DiscountedReturn(), WhitenedReturn(), GroupInGroup()], ids=str)
def test_different_advantages_under_one_ratio_are_refused(function, advantage):
    with pytest.raises(ValueError, match=r"policy_loss\.function.*model\.init_args\.advantage"):
        make(EndingPolicy(), function, 0.2, advantage=advantage)


def test_minibatches_never_cut_an_episode(policy):
    algorithm = make(policy, "gspo_loss", 0.2, advantage=LeaveOneOut(), num_minibatches=2)
    rollout = rollout_of(*episodes(rows="split"))
    batch = batch_from_groups(rollout.groups)
    batch.old_logprobs = batch.behavior_logprobs.clone()
    steps = algorithm.batches(rollout, batch)
    owners = [set(step.trajectory[step.segment[step.weight != 0]].tolist()) for step in steps]
    assert sorted(sorted(owner) for owner in owners) == [[0, 1], [2, 3]]
    whole = batch.trajectory[batch.segment]
    for step, owner in zip(steps, owners, strict=True):
        for episode in owner:
            trained = (step.trajectory[step.segment] == episode) & (step.weight != 0)
            assert int(trained.sum()) == int(((whole == episode) & (batch.reason == TokenReason.TRAINED)).sum())
