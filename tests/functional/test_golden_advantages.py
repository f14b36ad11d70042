import pytest
import torch

from lit_agentrl import functional as F


@pytest.mark.parametrize(
    ("expected", "options"),
    [
        ("grpo_std_ddof1_eps1e6", {}),
        ("grpo_std_ddof1_eps1e4", {"eps": 1e-4}),
        ("grpo_std_ddof0_eps1e6", {"ddof": 0}),
        ("dr_grpo_mean_only", {"scale": "none"}),
        ("batch_std_eps1e4", {"scale": "batch", "eps": 1e-4}),
    ],
)
def test_group_advantages(golden, expected, options):
    inputs = golden.inputs("adv_group")
    actual = F.group_advantages(golden.tensor(inputs["rewards"]), torch.tensor(inputs["group"]), **options)
    golden.check(actual, golden.expected("adv_group")[expected])


def test_rloo_advantages(golden):
    inputs, expected = golden.inputs("adv_group"), golden.expected("adv_group")
    actual = F.rloo_advantages(golden.tensor(inputs["rewards"]), torch.tensor(inputs["group"]))
    golden.check(actual, expected["rloo"])
    golden.check(actual, expected["rloo_equals_drgrpo_times_G_over_Gm1"])


def test_group_of_one_is_zero_and_not_the_raw_reward(golden):
    inputs, expected = golden.inputs("adv_singleton_group"), golden.expected("adv_singleton_group")
    actual = F.group_advantages(golden.tensor(inputs["rewards"]), torch.tensor(inputs["group"]))
    golden.check(actual, [expected["trl_convention"]])


@pytest.mark.parametrize(("ddof", "expected"), [(1, "unbiased"), (0, "biased")])
def test_whiten(golden, ddof, expected):
    inputs = golden.inputs("whiten")
    actual = F.whiten(golden.tensor(inputs["x"]), golden.tensor(inputs["mask"]), ddof=ddof)
    golden.check(actual, golden.expected("whiten")[expected])


@pytest.mark.parametrize(("ddof", "expected"), [(1, "adv_whitened_unbiased"), (0, "adv_whitened_biased")])
def test_reinforce_pp(golden, ddof, expected):
    inputs = golden.inputs("reinforcepp")
    mask = golden.b8("mask")
    returns = F.discounted_returns(golden.tensor(inputs["token_rewards"]), mask, gamma=inputs["gamma"])
    golden.check(returns, golden.expected("reinforcepp")["returns"])
    golden.check(F.reinforce_pp_advantages(returns, mask, ddof=ddof), golden.expected("reinforcepp")[expected])


def test_reinforce_pp_baseline(golden):
    rewards, mask = golden.b8("rewards"), golden.b8("mask")
    actual = F.reinforce_pp_advantages(
        rewards.unsqueeze(1).expand(8, 5), mask, group_ids=torch.tensor(golden.inputs("B8")["group"])
    )
    golden.check(actual, golden.expected("reinforcepp_baseline")["adv"])


@pytest.mark.parametrize(("scale", "expected"), [("none", "mean_norm"), ("std", "mean_std_norm")])
@pytest.mark.parametrize(("omega", "part"), [(1.0, "total_w1"), (0.0, "episode_adv")])
def test_gigpo(golden, scale, expected, omega, part):
    inputs = golden.inputs("gigpo")
    trajectories = torch.tensor(inputs["traj"])
    actual = F.gigpo_advantages(
        golden.tensor(inputs["reward"]),
        torch.zeros_like(trajectories),
        trajectories,
        torch.tensor(inputs["step"]),
        inputs["anchor"],
        episode_returns=golden.tensor(inputs["episode_returns"]),
        gamma=inputs["gamma"],
        omega=omega,
        scale=scale,
        eps=inputs["eps"],
    )
    golden.check(actual, golden.expected("gigpo")[expected][part])


def test_dynamic_sampling_keeps_groups_with_spread(golden):
    correct = golden.tensor(golden.inputs("dapo_dynamic_sampling")["group_correct"])
    groups = torch.arange(6).repeat_interleave(4)
    keep = F.groups_with_spread(correct.flatten(), groups).view(6, 4)
    assert torch.equal(keep.all(1), keep.any(1))
    kept = keep.all(1).nonzero().flatten().tolist()
    assert kept == golden.expected("dapo_dynamic_sampling")["kept_prompt_idx"]


def test_swarm_sharing_draws_from_groups_with_spread(golden):
    inputs, expected = golden.inputs("sapo_swarm_select"), golden.expected("sapo_swarm_select")
    external = [(name, rewards) for node, name, rewards in inputs["pool"] if node != inputs["me"]]
    rewards = golden.tensor([rewards for _, rewards in external]).flatten()
    groups = torch.arange(len(external)).repeat_interleave(4)
    keep = F.groups_with_spread(rewards, groups).view(-1, 4).all(1)
    assert [name for (name, _), kept in zip(external, keep, strict=True) if kept] == expected["external_candidates"]
    advantages = F.group_advantages(rewards, groups).view(-1, 4)
    golden.check(advantages[1], expected["adv_q4"])
    golden.check(advantages[2], expected["adv_q5"])


def test_contexts_of_one_trajectory_share_its_advantage(golden):
    inputs, expected = golden.inputs("memagent_multiconv"), golden.expected("memagent_multiconv")
    advantages = F.group_advantages(golden.tensor(inputs["rewards"]), torch.tensor([0, 0]), scale="none")
    golden.check(advantages, expected["advantage_no_std"])
    # one trajectory wrote contexts of 3 + 2 + 1 tokens, the other 2 + 4: 12 tokens share one denominator
    owner = torch.tensor([0] * sum(inputs["conv_token_counts"][0]) + [1] * sum(inputs["conv_token_counts"][1]))
    weights = F.token_weights(torch.ones(12), owner, mode="token-mean", dtype=golden.dtype)
    golden.check(weights, [expected["weight_per_token"]] * 12)
    logprob_sums = golden.leaf([0.0, 0.0])
    loss = (weights * F.reinforce_loss(logprob_sums[owner], advantages[owner], torch.ones(12))).sum()
    (gradient,) = torch.autograd.grad(loss, logprob_sums)
    # six tokens a trajectory, each with gradient -A/12
    golden.check(gradient / 6, expected["grad_per_rollout_logp_sum"])
