import pytest
import torch

from lit_agentrl import functional as F


@pytest.mark.parametrize(
    ("expected", "options"),
    [
        ("loss_sigmoid", {}),
        ("loss_label_smoothing_0p1", {"label_smoothing": 0.1}),
        ("loss_hinge", {"variant": "hinge"}),
        ("loss_ipo_sum", {"variant": "ipo", "chosen_lengths": torch.ones(1), "rejected_lengths": torch.ones(1)}),
    ],
)
def test_dpo(golden, expected, options):
    inputs = golden.inputs("dpo")
    logprobs = [golden.tensor([inputs[name]]) for name in _DPO_INPUTS]
    loss = F.dpo_loss(*logprobs, beta=inputs["beta"], **options)
    golden.check(loss, [golden.expected("dpo")[expected]])


_DPO_INPUTS = ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")


def test_dpo_gradient_and_implicit_rewards(golden):
    inputs, expected = golden.inputs("dpo"), golden.expected("dpo")
    chosen, rejected = golden.leaf([inputs["policy_chosen"]]), golden.leaf([inputs["policy_rejected"]])
    ref_chosen, ref_rejected = golden.tensor([inputs["ref_chosen"]]), golden.tensor([inputs["ref_rejected"]])
    F.dpo_loss(chosen, rejected, ref_chosen, ref_rejected).sum().backward()
    golden.check(chosen.grad, [expected["grad_policy_chosen"]])
    golden.check(rejected.grad, [expected["grad_policy_rejected"]])
    golden.check(F.implicit_rewards(chosen, ref_chosen), [expected["reward_chosen"]])
    golden.check(F.implicit_rewards(rejected, ref_rejected), [expected["reward_rejected"]])


def _padded(golden, turns, fill):
    """Turn sums of one trajectory, padded to 4 turns."""
    return golden.tensor([[sum(turn) for turn in turns] + [fill] * (4 - len(turns))])


@pytest.mark.parametrize("gamma", ["1.0", "0.9", "0.1"])
def test_dmpo(golden, gamma):
    inputs, expected = golden.inputs("dmpo"), golden.expected("dmpo")[gamma]
    chosen, rejected = (_padded(golden, inputs[name], 7.0) for name in ("win_policy_turn_token_logps", "lose_policy"))
    ref_chosen, ref_rejected = (_padded(golden, inputs[name], 5.0) for name in ("win_ref", "lose_ref"))
    chosen_mask, rejected_mask = torch.tensor([[1, 1, 1, 0]]), torch.tensor([[1, 1, 0, 0]])
    loss = F.dmpo_loss(
        chosen,
        rejected,
        ref_chosen,
        ref_rejected,
        chosen_mask=chosen_mask,
        rejected_mask=rejected_mask,
        gamma=float(gamma),
        beta=inputs["beta"],
    )
    golden.check(loss, [expected["loss"]])
    for mask, weights in ((chosen_mask, "alpha_win"), (rejected_mask, "alpha_lose")):
        actual = F.dmpo_weights(mask, gamma=float(gamma), dtype=golden.dtype)
        golden.check(actual[mask.bool()], expected[weights])


def test_eto_is_dpo_over_action_tokens(golden):
    inputs, expected = golden.inputs("dmpo"), golden.expected("eto_trajectory_dpo")
    tokens = {
        name: golden.tensor([[logp for turn in inputs[name] for logp in turn]]) for name in inputs if name != "beta"
    }
    # an observation token of log-prob -50 after them must not count
    noisy = {name: torch.cat([row, row.new_full((1, 1), -50.0)], 1) for name, row in tokens.items()}
    loss = F.eto_loss(
        noisy["win_policy_turn_token_logps"],
        noisy["lose_policy"],
        torch.nn.functional.pad(tokens["win_ref"], (0, 1)),
        noisy["lose_ref"],
        chosen_mask=torch.tensor([[1] * 6 + [0]]),
        rejected_mask=torch.tensor([[1] * 3 + [0]]),
        beta=inputs["beta"],
    )
    golden.check(loss, [expected["loss"]])


def test_online_dpo_pairs_best_with_worst(golden):
    inputs, expected = golden.inputs("online_dpo_pairing"), golden.expected("online_dpo_pairing")
    assert F.best_worst_pair(golden.tensor(inputs["scores"])) == (expected["chosen"], expected["rejected"])
    assert F.best_worst_pair(golden.tensor([0.4, 0.4])) is None


def test_archer(golden):
    inputs, expected = golden.inputs("q_archer"), golden.expected("q_archer")
    r, done, v_next, q_policy, q, v, q2, v2 = (
        golden.tensor(inputs[name]) for name in ("r", "done", "target_v_next", "target_q_pi", "q", "v", "q2", "v2")
    )
    targets = F.archer_targets(r, done, v_next, q_policy, gamma=inputs["gamma"])
    golden.check(targets.q, expected["q_target"])
    golden.check(targets.v, expected["v_target"])
    golden.check((q - targets.q).square().mean(), expected["q_mse"])
    golden.check((v - targets.v).square().mean(), expected["v_mse"])
    golden.check(F.archer_advantages(q, q2, v, v2), expected["adv_min"])


def test_expectile(golden):
    inputs, expected = golden.inputs("q_expectile"), golden.expected("q_expectile")
    values = golden.leaf([0.0, 0.0, 0.0])
    loss = F.expectile_loss(golden.tensor(inputs["u_q_minus_v"]), values, expectile=inputs["tau"]).mean()
    golden.check_loss(loss, values, {"loss": expected["loss"], "grad": expected["grad_v"]})


def test_cql_penalty(golden):
    inputs = golden.inputs("q_cql")
    penalty = F.cql_penalty(golden.tensor([inputs["q_all"]]), torch.tensor([inputs["action"]]))
    golden.check(penalty, [golden.expected("q_cql")["penalty"]])


def test_agent_q_mixes_values_and_pairs_siblings(golden):
    inputs, expected = golden.inputs("q_agentq_mix"), golden.expected("q_agentq_mix")
    q = F.mixed_q(golden.tensor(inputs["q_mcts"]), golden.tensor(inputs["q_critic"]), alpha=inputs["alpha"])
    golden.check(q, expected["q"])
    assert F.preference_pairs(q, min_gap=inputs["theta"]).tolist() == expected["pairs_gap_over_theta"]


def test_digirl(golden):
    inputs, expected = golden.inputs("q_digirl"), golden.expected("q_digirl")
    step = F.digirl_weights(*(golden.tensor([inputs[name]]) for name in ("v", "v_next", "r", "mc_return")))
    golden.check(step.advantages, [expected["clipped"]])
    golden.check(step.weights, [expected["weight"]])


def test_implicit_q_of_a_preference_model(golden):
    inputs = golden.inputs("q_implicit_from_dpo")
    actual = F.implicit_rewards(
        golden.tensor(inputs["logp_pi"]), golden.tensor(inputs["logp_ref"]), beta=inputs["beta"]
    )
    golden.check(actual, golden.expected("q_implicit_from_dpo")["q_minus_v"])
