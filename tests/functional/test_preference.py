import math

import pytest
import torch

from lit_agentrl import functional as F

CHOSEN, REJECTED = torch.tensor([-12.0]), torch.tensor([-11.0])
REF_CHOSEN, REF_REJECTED = torch.tensor([-13.0]), torch.tensor([-10.5])
LENGTHS = {"chosen_lengths": torch.tensor([4]), "rejected_lengths": torch.tensor([5])}


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


def dpo(**options):
    return F.dpo_loss(CHOSEN, REJECTED, REF_CHOSEN, REF_REJECTED, **options).item()


def test_ipo_divides_log_ratios_by_their_lengths():
    # log-ratios 1 over 4 tokens and -0.5 over 5: (1/4 + 0.5/5 - 1/(2 x 0.1))^2 = (0.35 - 5)^2
    assert dpo(variant="ipo", **LENGTHS) == pytest.approx(21.6225)


def test_robust_dpo():
    # margin 0.1 x 1.5 = 0.15
    expected = (-0.8 * log_sigmoid(0.15) + 0.2 * log_sigmoid(-0.15)) / 0.6
    assert dpo(variant="robust", label_smoothing=0.2) == pytest.approx(expected)


def test_robust_dpo_is_unbiased_under_flipped_labels():
    clean = dpo()
    kept = dpo(variant="robust", label_smoothing=0.2)
    flipped = F.dpo_loss(REJECTED, CHOSEN, REF_REJECTED, REF_CHOSEN, variant="robust", label_smoothing=0.2).item()
    assert 0.8 * kept + 0.2 * flipped == pytest.approx(clean)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "slic"}, "variant must be one of 'sigmoid', 'ipo', 'hinge', 'robust'"),
        ({"variant": "ipo"}, "needs chosen_lengths and rejected_lengths"),
        ({"variant": "hinge", **LENGTHS}, "must be None for variant 'hinge'"),
        ({"variant": "hinge", "label_smoothing": 0.1}, "label_smoothing must be 0 for variant 'hinge'"),
        ({"variant": "robust", "label_smoothing": 0.5}, "label_smoothing must lie in"),
    ],
)
def test_an_argument_that_is_missing_or_would_be_ignored_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        dpo(**options)


def test_simpo():
    # mean log-probs -12/4 = -3 and -11/5 = -2.2: 2 x (-0.8) - 1 = -2.6
    loss = F.simpo_loss(CHOSEN, REJECTED, *LENGTHS.values(), beta=2.0, margin=1.0)
    assert loss.item() == pytest.approx(-log_sigmoid(-2.6))


def test_kto_judges_answers_singly():
    loss = F.kto_loss(
        torch.tensor([-12.0, -12.0]),
        torch.tensor([-13.0, -13.0]),
        torch.tensor([True, False]),
        torch.tensor(0.4),
        undesirable_weight=1.5,
    )
    # 0.1 x (1 - 0.4) = 0.06
    expected = [1 - math.exp(log_sigmoid(0.06)), 1.5 * (1 - math.exp(log_sigmoid(-0.06)))]
    assert loss.tolist() == pytest.approx(expected)


def test_kto_baseline_is_never_negative():
    arguments = (CHOSEN, REF_CHOSEN, torch.tensor([True]))
    assert F.kto_loss(*arguments, torch.tensor(-3.0)).item() == F.kto_loss(*arguments, torch.tensor(0.0)).item()


def test_orpo():
    # p = 0.5 and 0.25: odds 1 and 1/3, log odds ratio log 3; sigmoid(log 3) = 3/4
    chosen, rejected = torch.tensor([2 * math.log(0.5)]), torch.tensor([3 * math.log(0.25)])
    loss = F.orpo_loss(chosen, rejected, torch.tensor([2]), torch.tensor([3]), weight=0.1)
    assert loss.item() == pytest.approx(math.log(2) - 0.1 * math.log(0.75))


def test_orpo_stays_finite_where_the_model_is_certain():
    chosen = torch.zeros(1, requires_grad=True)
    F.orpo_loss(chosen, REJECTED, torch.tensor([2]), torch.tensor([3])).sum().backward()
    assert chosen.grad.isfinite().all()


@pytest.mark.parametrize("variant", ["sigmoid", "hinge", "robust"])
def test_huge_margins_stay_finite(variant):
    chosen = torch.tensor([-1e5], requires_grad=True)
    loss = F.dpo_loss(chosen, torch.zeros(1), torch.zeros(1), torch.zeros(1), variant=variant)
    loss.sum().backward()
    assert loss.item() == pytest.approx(1e4, rel=1e-3)
    assert chosen.grad.item() == pytest.approx(-0.1)


def test_dmpo_weights_skip_turns_that_do_not_exist():
    weights = F.dmpo_weights(torch.tensor([[0, 1, 0, 1]]), gamma=1.0)
    assert weights.tolist() == [[0.0, 1.0, 0.0, 0.5]]


def test_pairs_of_equal_scores_are_left_out():
    assert F.preference_pairs(torch.tensor([1.0, 1.0])).shape == (0, 2)
