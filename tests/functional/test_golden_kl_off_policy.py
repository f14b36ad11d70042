import pytest
import torch

from lit_agentrl import functional as F


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimators(golden, estimator):
    expected = golden.expected("kl_tokens")
    logprobs, mask = golden.leaf(golden.inputs("B8")["new_logp"]), golden.b8("mask")
    kl = F.kl_divergence(logprobs, golden.b8("ref_logp"), estimator=estimator) * mask
    golden.check(kl, expected["values"][estimator])
    golden.check(F.aggregate(kl, mask), expected["token_mean"][estimator])
    (gradient,) = torch.autograd.grad(kl.sum(), logprobs)
    golden.check(gradient, expected["dvalue_dlogp"][estimator])


def test_corrected_gradient_keeps_the_value_of_k3(golden):
    expected = golden.expected("kl_tokens")
    logprobs, mask = golden.leaf(golden.inputs("B8")["new_logp"]), golden.b8("mask")
    kl = F.kl_divergence(logprobs, golden.b8("ref_logp"), estimator="k3", corrected_gradient=True) * mask
    golden.check(kl, expected["values"]["k3"])
    (gradient,) = torch.autograd.grad(kl.sum(), logprobs)
    golden.check(gradient, expected["k3_plus_straight_through_grad"])


def test_importance_corrected_kl(golden):
    kl = F.importance_corrected_kl(golden.b8("new_logp"), golden.b8("old_logp"), golden.b8("ref_logp"))
    golden.check(kl * golden.b8("mask"), golden.expected("kl_bias_corrected")["value"])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_expected_value_and_gradient_of_kl_estimators(golden, estimator):
    inputs, expected = golden.inputs("kl_exact_vocab3"), golden.expected("kl_exact_vocab3")
    logits, ref_logprobs = golden.leaf(inputs["p"]).log().detach().requires_grad_(), golden.tensor(inputs["q"]).log()
    logprobs = logits.log_softmax(-1)
    mean = (logprobs.detach().exp() * F.kl_divergence(logprobs, ref_logprobs, estimator=estimator)).sum()
    golden.check(mean, expected[f"E_{estimator}"])
    (gradient,) = torch.autograd.grad(mean, logits)
    golden.check(gradient, expected[f"E_grad_{estimator}"])


def test_exact_kl_and_the_losses_that_follow_its_gradient(golden):
    inputs, expected = golden.inputs("kl_exact_vocab3"), golden.expected("kl_exact_vocab3")
    logits, ref_logprobs = golden.tensor(inputs["p"]).log().requires_grad_(), golden.tensor(inputs["q"]).log()
    exact = F.exact_kl_divergence(logits, ref_logprobs)
    golden.check(exact, expected["KL_p_q"])
    golden.check(F.exact_kl_divergence(ref_logprobs, logits), expected["KL_q_p"])
    logprobs = logits.log_softmax(-1)
    probabilities = logprobs.detach().exp()
    for mean in (
        exact,
        (probabilities * F.kl_divergence(logprobs, ref_logprobs, corrected_gradient=True)).sum(),
        (probabilities * F.importance_corrected_kl(logprobs, logprobs, ref_logprobs)).sum(),
    ):
        (gradient,) = torch.autograd.grad(mean, logits, retain_graph=True)
        golden.check(gradient, expected["grad_KL_p_q"])


def test_adaptive_kl_coefficient(golden):
    inputs = golden.inputs("adaptive_kl")
    coefficient, seen = inputs["init"], []
    for kl in inputs["kls"]:
        coefficient = F.adaptive_kl_coefficient(
            coefficient, kl, target=inputs["target"], horizon=inputs["horizon"], num_steps=inputs["n_steps"]
        )
        seen.append(coefficient)
    assert seen == pytest.approx(golden.expected("adaptive_kl")["coef"], rel=1e-12)


@pytest.mark.parametrize(
    ("expected", "options"),
    [
        ("TIS_token", {"mode": "tis", "high": 2.0}),
        ("MIS_token", {"mode": "mis", "high": 2.0}),
        ("IcePop_0p5_5", {"mode": "icepop", "low": 0.5, "high": 5.0}),
        ("TIS_seq", {"mode": "tis", "high": 2.0, "level": "sequence"}),
        ("MIS_seq_C3", {"mode": "mis", "high": 3.0, "level": "sequence"}),
        ("geo_mask_0p99_1p001", {"mode": "icepop", "low": 0.99, "high": 1.001, "level": "geometric"}),
    ],
)
def test_importance_weights(golden, expected, options):
    inputs = golden.inputs("offpolicy_is")
    old_logprobs = golden.tensor(inputs["log_ratio_train_minus_rollout"])
    actual = F.importance_weights(
        old_logprobs, torch.zeros_like(old_logprobs), golden.tensor(inputs["mask"]), **options
    )
    golden.check(actual, golden.expected("offpolicy_is")[expected])


def test_importance_ratios_and_effective_sample_size(golden):
    inputs, expected = golden.inputs("offpolicy_is"), golden.expected("offpolicy_is")
    ratio, mask = golden.tensor(inputs["log_ratio_train_minus_rollout"]), golden.tensor(inputs["mask"])
    zeros = torch.zeros_like(ratio)
    golden.check(F.importance_ratio(ratio, zeros, mask), expected["token_ratio"])
    golden.check(F.importance_ratio(ratio, zeros, mask, level="sequence")[:, 0], expected["seq_ratio"])
    golden.check(F.importance_ratio(ratio, zeros, mask, level="geometric")[:, 0], expected["geo_ratio"])
    weights = F.importance_weights(ratio, zeros, mask, mode="tis", high=inputs["C"])
    golden.check(F.effective_sample_size(weights, mask), expected["ess_token_TIS"])


def test_off_policy_sequence_mask(golden):
    inputs = golden.inputs("offpolicy_opsm")
    ratio, mask = golden.tensor(inputs["log_ratio_new_minus_sampling"]), golden.tensor(inputs["mask"])
    advantages = golden.tensor(inputs["adv"]).unsqueeze(1)
    keep = F.off_policy_sequence_mask(ratio, torch.zeros_like(ratio), advantages, mask, delta=inputs["delta"])
    golden.check(keep, (mask.double() * torch.tensor(golden.expected("offpolicy_opsm")["keep"]).unsqueeze(1)).tolist())
