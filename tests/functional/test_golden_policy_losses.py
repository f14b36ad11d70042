import pytest
import torch

from lit_agentrl import functional as F

AGGREGATIONS = {
    "token-mean": {"mode": "token-mean"},
    "seq-mean-token-mean": {"mode": "seq-mean-token-mean"},
    "seq-mean-token-mean/allrows": {"mode": "seq-mean-token-mean", "count_empty_rows": True},
    "seq-mean-token-sum": {"mode": "seq-mean-token-sum"},
    "dr_grpo": {"mode": "constant", "constant": 8.0},
}
BY_SEQUENCE = AGGREGATIONS["seq-mean-token-mean"]
OVER_ALL_ROWS = AGGREGATIONS["seq-mean-token-mean/allrows"]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize(
    "case",
    ["ppo_clip_0.2", "ppo_dualclip_3", "dapo_clip_higher", "dapo_clip_higher_dual10", "dapo_overlong_filtered"],
)
def test_ppo_clip(golden, case, aggregation):
    inputs, expected = golden.inputs(case), golden.expected(case)
    logprobs, mask = golden.leaf(golden.inputs("B8")["new_logp"]), golden.tensor(inputs["mask"])
    clip = {name: inputs[name] for name in ("clip_low", "clip_high", "dual_clip")}
    arguments = (logprobs, golden.b8("old_logp"), golden.tensor(inputs["advantages"]), mask)
    loss = F.ppo_clip_loss(*arguments, **clip)
    golden.check(loss, expected["per_token_loss"])
    golden.check_loss(F.aggregate(loss, mask, **AGGREGATIONS[aggregation]), logprobs, expected[aggregation])

    metrics = expected["metrics"]
    clipped = F.clipped_tokens(*arguments, **clip)
    assert clipped.low.sum() / mask.sum() == pytest.approx(metrics["low_clip"])
    assert clipped.high.sum() / mask.sum() == pytest.approx(metrics["high_clip"])
    assert (clipped.low | clipped.high).sum() / mask.sum() == pytest.approx(metrics["pg_clipfrac"])
    assert clipped.dual.sum() / mask.sum() == pytest.approx(metrics.get("pg_clipfrac_lower", 0.0))
    kl = F.kl_divergence(golden.b8("old_logp"), logprobs.detach(), estimator="k1")
    golden.check(F.aggregate(kl, mask), metrics["ppo_kl_k1"])


def test_all_masked_batch_is_exactly_zero(golden):
    logprobs = golden.leaf(golden.inputs("B8")["new_logp"])
    mask = golden.tensor(golden.inputs("all_masked_batch")["mask"])
    for aggregation in AGGREGATIONS.values():
        loss = F.aggregate(F.ppo_clip_loss(logprobs, golden.b8("old_logp"), mask + 1.0, mask), mask, **aggregation)
        (gradient,) = torch.autograd.grad(loss, logprobs)
        assert loss.item() == 0.0
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize(
    ("case", "aggregation"),
    [
        ("grpo_klloss_b0.04_token-mean", AGGREGATIONS["token-mean"]),
        ("grpo_klloss_b0.04_seq-mean-token-mean", BY_SEQUENCE),
        ("grpo_klloss_b0.04_seq-mean-token-mean_allrows", OVER_ALL_ROWS),
    ],
)
def test_grpo_with_kl_in_the_loss(golden, case, aggregation):
    inputs = golden.inputs(case)
    logprobs, mask = golden.leaf(golden.inputs("B8")["new_logp"]), golden.b8("mask")
    loss = F.ppo_clip_loss(logprobs, golden.b8("old_logp"), golden.tensor(inputs["advantages"]), mask)
    loss = loss + inputs["beta"] * F.kl_divergence(logprobs, golden.b8("ref_logp"), estimator="k3")
    golden.check_loss(F.aggregate(loss, mask, **aggregation), logprobs, golden.expected(case))


@pytest.mark.parametrize("case", ["gspo_paper", "gspo_wide"])
def test_gspo(golden, case):
    inputs, expected = golden.inputs(case), golden.expected(case)
    logprobs, mask = golden.leaf(golden.inputs("B8")["new_logp"]), golden.b8("mask")
    advantages = golden.tensor(inputs["advantages"]).unsqueeze(1)
    clip = {name: inputs[name] for name in ("clip_low", "clip_high")}
    loss = F.gspo_loss(logprobs, golden.b8("old_logp"), advantages, mask, **clip)
    golden.check_loss(F.aggregate(loss, mask, **BY_SEQUENCE), logprobs, expected)
    golden.check(F.aggregate(loss, mask, **OVER_ALL_ROWS), expected["loss_allrows"])
    ratio = F.importance_ratio(logprobs, golden.b8("old_logp"), mask, level="geometric")
    golden.check(ratio[:7, 0], expected["seq_ratio"][:7])


@pytest.mark.parametrize("case", ["sapo_qwen_default", "sapo_qwen_sharp"])
def test_sapo(golden, case):
    inputs, expected = golden.inputs(case), golden.expected(case)
    logprobs, mask = golden.leaf(golden.inputs("B8")["new_logp"]), golden.b8("mask")
    taus = {name: inputs[name] for name in ("tau_pos", "tau_neg")}
    advantages = golden.tensor(inputs["advantages"])
    loss = F.sapo_loss(logprobs, golden.b8("old_logp"), advantages, mask, **taus)
    golden.check(-loss, (golden.tensor(expected["gate"]) * advantages * mask).tolist())
    for name in ("seq-mean-token-mean", "seq-mean-token-mean/allrows"):
        golden.check_loss(F.aggregate(loss, mask, **AGGREGATIONS[name]), logprobs, expected[name])


@pytest.mark.parametrize(
    ("case", "cap"),
    [
        ("cispo_verl_two_sided_0.2_0.28", "two_sided"),
        ("cispo_trl_swift_cap_5.0", "absolute"),
        ("cispo_trl_swift_cap_1.28", "absolute"),
    ],
)
def test_cispo(golden, case, cap):
    inputs = golden.inputs(case)
    logprobs, mask = golden.leaf(golden.inputs("B8")["new_logp"]), golden.b8("mask")
    clip = {"clip_low": inputs["eps_low"], "clip_high": inputs["eps_high"]}
    advantages = golden.tensor(inputs["advantages"])
    loss = F.cispo_loss(logprobs, golden.b8("old_logp"), advantages, mask, cap=cap, **clip)
    golden.check_loss(F.aggregate(loss, mask), logprobs, golden.expected(case))


def test_rloo_clips_the_ratio_of_whole_sequences(golden):
    inputs, expected = golden.inputs("rloo_trl"), golden.expected("rloo_trl")
    logprobs, mask = golden.leaf(golden.inputs("B8")["new_logp"]), golden.b8("mask")
    ratio = F.importance_ratio(logprobs, golden.b8("old_logp"), mask, level="sequence")
    golden.check(ratio[:7, 0], expected["seq_ratio"][:7])
    loss = F.sequence_clip_loss(logprobs, golden.b8("old_logp"), golden.tensor(inputs["adv"]).unsqueeze(1), mask)
    golden.check_loss(F.aggregate(loss, mask, **OVER_ALL_ROWS), logprobs, expected)


def test_reinforce(golden):
    logprobs, mask = golden.leaf(golden.inputs("B8")["new_logp"]), golden.b8("mask")
    advantages = golden.tensor(golden.inputs("reinforce_seq")["adv"]).unsqueeze(1)
    loss = F.aggregate(
        F.reinforce_loss(logprobs, advantages, mask), mask, mode="seq-mean-token-sum", count_empty_rows=True
    )
    golden.check_loss(loss, logprobs, golden.expected("reinforce_seq"))


@pytest.mark.parametrize(
    "loss",
    [
        F.ppo_clip_loss,
        F.gspo_loss,
        F.sapo_loss,
        F.gmpo_loss,
        lambda *arguments: F.cispo_loss(*arguments, clip_high=0.28),
        lambda new, old, advantages, mask: F.reinforce_loss(new, advantages, mask),
    ],
    ids=["ppo", "gspo", "sapo", "gmpo", "cispo", "reinforce"],
)
def test_on_policy_all_losses_have_the_same_gradient(golden, loss):
    logprobs, mask = golden.leaf(golden.inputs("B8")["old_logp"]), golden.b8("mask")
    groups = torch.tensor(golden.inputs("B8")["group"])
    advantages = F.group_advantages(golden.b8("rewards"), groups).unsqueeze(1)
    value = F.aggregate(loss(logprobs, golden.b8("old_logp"), advantages, mask), mask, **BY_SEQUENCE)
    (gradient,) = torch.autograd.grad(value, logprobs)
    golden.check(gradient, golden.expected("on_policy_identity")["grad_all_methods"])


def test_vapo_adds_the_likelihood_of_correct_samples(golden):
    inputs, expected = golden.inputs("vapo_total"), golden.expected("vapo_total")
    logprobs, mask = golden.b8("new_logp"), golden.b8("mask")
    advantages = golden.tensor(golden.inputs("dapo_clip_higher")["advantages"])
    ppo = F.aggregate(F.ppo_clip_loss(logprobs, golden.b8("old_logp"), advantages, mask, clip_high=0.28), mask)
    correct = torch.zeros_like(mask)
    correct[inputs["positive_rows"]] = mask[inputs["positive_rows"]]
    nll = F.aggregate(F.nll_loss(logprobs, correct), correct)
    golden.check(ppo, expected["ppo_token_mean"])
    golden.check(nll, expected["nll_positive"])
    golden.check(ppo + inputs["mu"] * nll, expected["total"])


def test_adaptthink_is_gspo_with_a_wide_clip(golden):
    inputs, expected = golden.inputs("adaptthink_loss"), golden.expected("adaptthink_loss")
    logprobs, old_logprobs = golden.leaf(inputs["new_logp"]), golden.tensor(inputs["old_logp"])
    # AdaptThink samples its first token from a fixed half-half choice, which therefore is the old policy there
    old_logprobs[:, 0] = torch.log(golden.tensor(inputs["p_nothink"]))
    mask, advantages = golden.tensor(inputs["mask"]), golden.tensor(inputs["adv"]).unsqueeze(1)
    golden.check(F.importance_ratio(logprobs, old_logprobs, mask, level="geometric")[:, 0], expected["ratio"])
    loss = F.gspo_loss(logprobs, old_logprobs, advantages, mask, clip_low=inputs["clip"], clip_high=inputs["clip"])
    golden.check_loss(F.aggregate(loss, mask, **BY_SEQUENCE), logprobs, expected)


def test_turn_ratios_are_sequence_ratios_over_turns(golden):
    turns = golden.inputs("rema_turn_ratio")["turn_token_logratios"]
    ratios = golden.tensor([ratio for turn in turns for ratio in turn])
    turn_ids = torch.tensor([turn for turn, tokens in enumerate(turns) for _ in tokens])
    actual = F.importance_ratio(
        ratios, torch.zeros_like(ratios), torch.ones_like(ratios), level="geometric", sequence_ids=turn_ids
    )
    golden.check(actual[[0, 2]], golden.expected("rema_turn_ratio")["turn_ratio_geomean"])


def test_logits_to_gradient_end_to_end(golden):
    inputs, expected = golden.inputs("logits_end_to_end"), golden.expected("logits_end_to_end")
    logits, mask = golden.leaf(inputs["logits"]), golden.tensor(inputs["mask"])
    logprobs = F.token_logprobs(logits, torch.tensor(inputs["token_ids"]))
    golden.check(logprobs, expected["logp"])
    golden.check(F.entropy(logits), expected["entropy"])
    arguments = (logprobs, golden.tensor(inputs["old_logp"]), golden.tensor(inputs["adv"]), mask)
    losses = {
        "ppo": F.aggregate(F.ppo_clip_loss(*arguments, clip_high=0.28), mask),
        "gspo": F.aggregate(F.gspo_loss(*arguments, clip_low=0.2, clip_high=0.2), mask, **BY_SEQUENCE),
        "sapo": F.aggregate(F.sapo_loss(*arguments), mask, **BY_SEQUENCE),
    }
    for name, loss in losses.items():
        golden.check(loss, expected[name]["loss"])
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        golden.check(gradient, expected[name]["grad_logits_fd"])
