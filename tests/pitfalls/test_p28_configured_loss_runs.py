"""P28: the configured preference loss is the one that runs; IPO divides log-ratios by their lengths."""

import math

import pytest
import torch
from preference_support import batch_for, pair
from rl_support import EndingPolicy, build

from lit_agentrl.algorithms import DPO, KTO, ORPO, SimPO
from lit_agentrl.algorithms.preference import REF_LOGPROBS
from lit_agentrl.rollouts.batch import TokenReason

# Log-probs of one pair under policy and reference: three chosen tokens, one rejected token.
POLICY, REFERENCE = [-1.0, -2.0, -0.5, -2.5], [-1.5, -2.0, -1.0, -1.5]
DELTA = 1.0 - -1.0  # (-3.5 + 4.5) - (-2.5 + 1.5)


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


def measured(module, *, comparisons=None):
    """Loss and figures of a module whose policy gives the log-probs above."""
    batch = batch_for(module, comparisons or [pair([5, 6], [7, 8, 9], [10])])
    trained = (batch.reason == TokenReason.TRAINED).nonzero().squeeze(-1)
    batch.columns[REF_LOGPROBS] = torch.zeros(batch.num_tokens)
    batch.columns[REF_LOGPROBS][trained] = torch.tensor(REFERENCE)
    batch.columns["kl_baseline"] = torch.full((batch.num_tokens,), 0.4)
    logprobs = torch.tensor(POLICY, requires_grad=True)
    module.policy_logprobs = lambda batch, wanted: (trained, logprobs, logprobs)
    loss, figures = module.loss(batch)
    return float(loss.detach()), {name: float(value) for name, value in figures.items()}


EXPECTED = {
    "sigmoid": ({}, -log_sigmoid(0.1 * DELTA)),
    "smoothed": ({"label_smoothing": 0.2}, -0.8 * log_sigmoid(0.1 * DELTA) - 0.2 * log_sigmoid(-0.1 * DELTA)),
    "hinge": ({"variant": "hinge"}, 1 - 0.1 * DELTA),
    "robust": (
        {"variant": "robust", "label_smoothing": 0.2},
        (-0.8 * log_sigmoid(0.1 * DELTA) + 0.2 * log_sigmoid(-0.1 * DELTA)) / 0.6,
    ),
    # Per token: 1/3 for three chosen tokens, -1 for one rejected token.
    "ipo": ({"variant": "ipo"}, (1 / 3 + 1 - 1 / 0.2) ** 2),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_each_variant_of_dpo_by_hand(name):
    options, expected = EXPECTED[name]
    loss, figures = measured(DPO(EndingPolicy(), seed=0, **options))
    assert loss == pytest.approx(expected, rel=1e-5)
    per_token = 1 / 3 if name == "ipo" else 1.0
    assert figures["chosen_reward"] == pytest.approx(0.1 * per_token)
    assert figures["rejected_reward"] == pytest.approx(-0.1)
    assert figures["reward_accuracy"] == 1.0
    assert figures["chosen_logprob"] == pytest.approx(-3.5)


def test_simpo_by_hand():
    """Mean log-probs -3.5/3 and -2.5: 2 x 4/3 - 1 = 5/3."""
    loss, figures = measured(SimPO(EndingPolicy(), seed=0))
    assert loss == pytest.approx(-log_sigmoid(2 * (2.5 - 3.5 / 3) - 1), rel=1e-5)
    assert "kl" not in figures


def test_orpo_by_hand():
    chosen, rejected = math.exp(-3.5 / 3), math.exp(-2.5)
    odds = math.log(chosen / (1 - chosen)) - math.log(rejected / (1 - rejected))
    loss, _ = measured(ORPO(EndingPolicy(), seed=0))
    assert loss == pytest.approx(3.5 / 3 - 0.1 * log_sigmoid(odds), rel=1e-5)


def test_kto_by_hand():
    """Ratios 1 (desirable) and -1 (undesirable), baseline 0.4; each answer has half of the weight."""
    good = 1 - math.exp(log_sigmoid(0.1 * (1 - 0.4)))
    bad = 1.5 * (1 - math.exp(log_sigmoid(-0.1 * (-1 - 0.4))))
    loss, _ = measured(KTO(EndingPolicy(), undesirable_weight=1.5, seed=0))
    assert loss == pytest.approx((good + bad) / 2, rel=1e-5)


def test_the_losses_all_differ():
    losses = [measured(DPO(EndingPolicy(), seed=0, **options))[0] for options, _ in EXPECTED.values()]
    assert len(set(losses)) == len(losses)


def test_ipo_does_not_change_with_length_where_the_mean_does_not():
    """Twice the same chosen tokens: the mean stays, the sum does not."""
    module = DPO(build(EndingPolicy()), variant="ipo", seed=0)
    batch = batch_for(module, [pair([5], [7], [9]), pair([5], [7, 7], [9])])
    index = (batch.weight != 0).nonzero().squeeze(-1)
    module.policy_logprobs = lambda batch, wanted: (index, torch.tensor([-1.0, -2.0, -1.0, -1.0, -2.0]), None)
    batch.columns[REF_LOGPROBS] = torch.zeros(batch.num_tokens)
    loss, figures = module.loss(batch)
    assert float(loss) == pytest.approx((1 - 1 / 0.2) ** 2)
    assert float(figures["chosen_reward"]) == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "slic"}, r"model\.init_args\.variant is 'slic': it must be one of sigmoid, ipo, hinge, robust"),
        ({"variant": "hinge", "label_smoothing": 0.1}, r"model\.init_args\.label_smoothing is 0\.1, but variant hinge"),
        ({"variant": "robust"}, r"model\.init_args\.label_smoothing is 0, with which variant robust is sigmoid"),
        ({"label_smoothing": 0.5}, r"model\.init_args\.label_smoothing is 0\.5: it must lie in \[0, 0\.5\)"),
        ({"beta": 0}, r"model\.init_args\.beta is 0: it must be above 0"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DPO(EndingPolicy(), **options)
