import pytest
import torch

from lit_agentrl import functional as F


def test_gae_of_a_terminated_episode(golden):
    inputs, expected = golden.inputs("gae_terminal"), golden.expected("gae_terminal")
    rewards, values = golden.tensor(inputs["rewards"]), golden.tensor(inputs["values"])
    advantages, returns = F.gae(rewards, values, torch.ones_like(rewards), gamma=inputs["gamma"], lam=inputs["lam"])
    golden.check(advantages, expected["adv"])
    golden.check(returns, expected["returns"])


def test_gae_of_a_truncated_episode_bootstraps(golden):
    inputs, expected = golden.inputs("gae_truncated_bootstrap"), golden.expected("gae_truncated_bootstrap")
    rewards, values = golden.tensor(inputs["rewards"]), golden.tensor(inputs["values"])
    advantages, returns = F.gae(
        rewards,
        values,
        torch.ones_like(rewards),
        gamma=inputs["gamma"],
        lam=inputs["lam"],
        bootstrap=golden.tensor(inputs["bootstrap_value"]),
    )
    golden.check(advantages, expected["adv"])
    golden.check(returns, expected["returns"])


def test_gae_skips_observations(golden):
    inputs, expected = golden.inputs("gae_multiturn_obs_skip"), golden.expected("gae_multiturn_obs_skip")
    rewards, values, mask = (golden.tensor(inputs[name]) for name in ("rewards", "values", "mask"))
    advantages, returns = F.gae(rewards, values, mask, gamma=inputs["gamma"], lam=inputs["lam"])
    golden.check(advantages, expected["adv_skip"])
    golden.check(returns, expected["returns_skip"])
    golden.check(advantages[mask.bool()], expected["compacted_adv"][0])
    naive, _ = F.gae(rewards, values, torch.ones_like(mask), gamma=inputs["gamma"], lam=inputs["lam"])
    golden.check(naive * mask, expected["adv_naive_not_skipping"])


def test_gae_without_discount_is_return_minus_value(golden):
    inputs, expected = golden.inputs("gae_multiturn_g1_l1"), golden.expected("gae_multiturn_g1_l1")
    rewards, values, mask = (golden.tensor(inputs[name]) for name in ("rewards", "values", "mask"))
    advantages, returns = F.gae(rewards, values, mask, gamma=1.0, lam=1.0)
    golden.check(advantages, expected["adv"])
    golden.check(returns, expected["returns"])


def test_turn_gae_and_its_tokens(golden):
    inputs, expected = golden.inputs("turn_gae"), golden.expected("turn_gae")
    rewards, values = golden.tensor([inputs["turn_rewards"]]), golden.tensor([inputs["turn_values"]])
    advantages, _ = F.turn_gae(rewards, values, torch.ones_like(rewards), gamma=inputs["gamma"], lam=inputs["lam"])
    golden.check(advantages[0], expected["turn_adv"])
    turns = torch.arange(3).repeat_interleave(torch.tensor(inputs["tokens_per_turn"])).unsqueeze(0)
    golden.check(F.spread_turns(advantages, turns, torch.ones_like(turns))[0], expected["token_adv"])


def test_vapo_lambda_is_cut_at_zero(golden):
    inputs = golden.inputs("vapo_lambda")
    actual = F.vapo_lambda(golden.tensor(inputs["lengths"]), alpha=inputs["alpha"])
    golden.check(actual, golden.expected("vapo_lambda")["lam_clamped_at_0"])


def test_cross_episode_returns(golden):
    inputs, expected = golden.inputs("lamer_cross_episode"), golden.expected("lamer_cross_episode")
    episodes = inputs["episode_step_rewards"]
    rewards = golden.tensor([[*episode, *[9.0] * (3 - len(episode))] for episode in episodes])
    mask = torch.tensor([[step < len(episode) for step in range(3)] for episode in episodes])
    returns = F.cross_episode_returns(
        rewards.unsqueeze(0), mask.unsqueeze(0), step_gamma=inputs["step_gamma"], episode_gamma=inputs["traj_gamma"]
    )[0]
    golden.check(returns[mask], [value for episode in expected["step_returns"] for value in episode])
    golden.check(returns[1:, 0], expected["reflection_returns"])


def test_overlong_penalty_is_the_papers(golden):
    inputs = golden.inputs("dapo_overlong_reward")
    lengths = golden.tensor(inputs["lengths"])
    actual = F.overlong_penalty(lengths, max_length=inputs["L_max"], buffer=inputs["L_cache"])
    golden.check(actual, golden.expected("dapo_overlong_reward")["paper"])


def test_kl_in_the_reward(golden):
    inputs, expected = golden.inputs("kl_in_reward"), golden.expected("kl_in_reward")
    actual = F.kl_penalized_rewards(
        golden.b8("rewards"), golden.b8("old_logp"), golden.b8("ref_logp"), golden.b8("mask"), beta=inputs["kl_coef"]
    )
    golden.check(actual, expected["token_rewards"])
    golden.check(actual.sum(-1), expected["seq_reward"])


def test_value_loss_with_clip(golden):
    inputs, expected = golden.inputs("value_loss_clip"), golden.expected("value_loss_clip")
    values = golden.leaf(inputs["vpred"])
    old_values, returns = golden.tensor(inputs["old_values"]), golden.tensor(inputs["returns"])
    mask = torch.ones_like(values)
    loss = F.value_loss(values, old_values, returns, mask, clip=inputs["cliprange"])
    golden.check_loss(loss, values, expected)
    clipped = F.clipped_values(values, old_values, returns, mask, clip=inputs["cliprange"])
    assert clipped.double().mean().item() == pytest.approx(expected["clipfrac"])
