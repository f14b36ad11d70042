"""P12: neither micro-batches nor their number change the gradient of a preference loss."""

import pytest
import torch
from preference_support import EVERY, batch_for, ragged_pairs
from rl_support import EndingPolicy, build

from lit_agentrl.algorithms import KTO
from lit_agentrl.rollouts.comparisons import SIDE, Side


@pytest.fixture(scope="module")
def policy():
    return build(EndingPolicy(), dtype=torch.float64).eval()


def moved_away(algorithm):
    """Make the reference differ from the policy, so that log-ratios are not 0."""
    reference = algorithm.ensure_reference()
    if reference is not None:
        draw = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in reference.policy.causal_lm.parameters():
                weight.add_(0.1 * torch.randn(weight.shape, generator=draw, dtype=weight.dtype))


def gradient(algorithm, batch, budget):
    """Prepare and differentiate a batch in micro-batches of at most so many tokens."""
    algorithm.micro_batch_tokens = budget
    batch.columns = {SIDE: batch.columns[SIDE]}
    algorithm.prepare(batch)
    algorithm.zero_grad()
    pieces = algorithm.pieces(batch, batch.weight != 0)
    for piece in pieces:
        algorithm.loss(piece)[0].backward()
    return pieces, torch.cat([p.grad.flatten() for p in algorithm.parameters()])


@pytest.mark.parametrize("share_prefixes", [True, False])
@pytest.mark.parametrize("name", EVERY)
def test_one_batch_of_sixteen_or_many_small_ones(policy, name, share_prefixes):
    algorithm = EVERY[name](policy, share_prefixes=share_prefixes, seed=0)
    moved_away(algorithm)
    batch = batch_for(algorithm, ragged_pairs(16))
    (_,), whole = gradient(algorithm, batch, 100_000)
    assert whole.norm() > 0
    for budget in (1, 150):
        pieces, cut = gradient(algorithm, batch, budget)
        assert len(pieces) >= 4
        assert float((cut - whole).norm() / whole.norm()) < 1e-6


@pytest.mark.parametrize("share_prefixes", [True, False])
def test_the_answers_of_a_pair_stay_together_and_pairs_do_not_pile_up(policy, share_prefixes):
    algorithm = EVERY["dpo"](policy, share_prefixes=share_prefixes, seed=0)
    algorithm.micro_batch_tokens = 1
    batch = batch_for(algorithm, ragged_pairs(16))
    pieces = algorithm.pieces(batch, batch.weight != 0)
    assert len(pieces) == 16
    for piece in pieces:
        trained = piece.columns[SIDE][piece.weight != 0]
        assert set(trained.tolist()) == {Side.CHOSEN, Side.REJECTED}


def test_the_baseline_of_kto_is_that_of_the_whole_batch(policy):
    algorithm = KTO(policy, seed=0)
    moved_away(algorithm)
    batch = batch_for(algorithm, ragged_pairs(16))
    baselines = []
    for budget in (1, 150, 100_000):
        gradient(algorithm, batch, budget)
        baselines.append(float(batch.columns["kl_baseline"].unique()))
    assert baselines[0] > 0
    assert baselines == pytest.approx([baselines[0]] * 3, rel=1e-6)
