"""The policy-gradient family: each named algorithm trains, parts combine in any way, and terms do what they say."""

import pytest
import torch
from rl_support import EndingPolicy, equal, parity_data, rollout_of, trainer, trajectory, turn, weights

from lit_agentrl.algorithms import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    REINFORCE,
    RLOO,
    SAPO,
    DrGRPO,
    GiGPO,
    OptimizerConfig,
    PolicyGradient,
    ReinforcePP,
)
from lit_agentrl.algorithms.credit import LeaveOneOut
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.algorithms.terms import EntropyTerm, KLTerm, Objectives, OffPolicyTerm, OverlongTerm
from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.segments import batch_from_groups

LR = OptimizerConfig(lr=1e-3)
EVERY = {
    "reinforce": REINFORCE,
    "rloo": RLOO,
    "reinforce_pp": ReinforcePP,
    "dr_grpo": lambda policy, **options: DrGRPO(policy, max_tokens=12, **options),
    "dapo": DAPO,
    "gspo": GSPO,
    "sapo": SAPO,
    "cispo": CISPO,
    "gigpo": GiGPO,
}


def credited(algorithm, *groups):
    rollout = rollout_of(*groups)
    batch = batch_from_groups(rollout.groups)
    steps = algorithm.batches(rollout, batch)
    return batch, steps


@pytest.mark.parametrize("name", EVERY)
def test_every_algorithm_takes_steps(name):
    module = EVERY[name](EndingPolicy(), optimizer=LR, num_minibatches=2, seed=0)
    module.configure_model()
    before = weights(module)
    run = trainer(max_epochs=2)
    run.fit(module, datamodule=parity_data())
    assert run.global_step > 0
    assert not equal(before, weights(module))
    assert all(bool(torch.isfinite(value).all()) for value in weights(module).values())


def test_returns_of_a_turn_count_what_came_after_it():
    """Two turns that earn 1 and 2, discount 0.5: 1 + 0.5 x 2 = 2, and 2."""
    one = trajectory(0, 0, turn([1], [2, 3]), turn([4], [5], parent=0), reward=3.0)
    one.turns[0].reward, one.turns[1].reward = 1.0, 2.0
    batch, _ = credited(REINFORCE(EndingPolicy(), gamma=0.5, baseline="none", seed=0), [one])
    assert batch.advantages.tolist() == pytest.approx([0, 2, 2, 0, 2])


def test_the_baseline_of_reinforce_is_the_mean_of_the_others():
    episodes = [trajectory(0, s, turn([1], [2]), reward=r) for s, r in enumerate([1.0, 2.0, 6.0])]
    batch, _ = credited(REINFORCE(EndingPolicy(), seed=0), episodes)
    assert batch.advantages.tolist() == pytest.approx([0, 1 - 4, 2 - 3.5, 6 - 1.5])


def test_a_constant_rollout_is_exactly_zero_for_every_baseline():
    for module in (REINFORCE(EndingPolicy(), seed=0), ReinforcePP(EndingPolicy(), seed=0)):
        batch, _ = credited(module, [trajectory(0, s, turn([1], [2, 3]), reward=0.3) for s in range(3)])
        assert not batch.advantages.any()


def test_rloo_compares_with_the_others_of_the_group():
    groups = [[trajectory(g, s, turn([1], [2]), reward=float(s * (g + 1))) for s in range(3)] for g in range(2)]
    batch, _ = credited(RLOO(EndingPolicy(), seed=0), *groups)
    assert batch.advantages.tolist() == pytest.approx([0, -1.5, 0, 1.5, 0, -3, 0, 3])


def test_gigpo_adds_a_baseline_over_equal_states():
    """Both episodes pass the state `s`; the one that earns 1 after it stands out there too: 0.5 + 1 x 0.5."""
    won = trajectory(0, 0, turn([1], [2]), turn([3], [4], parent=0), reward=1.0)
    lost = trajectory(0, 1, turn([1], [2]), turn([3], [5], parent=0), reward=0.0)
    won.turns[1].reward = 1.0
    for episode, first in ((won, "a"), (lost, "b")):
        episode.turns[0].state_key, episode.turns[1].state_key = first, "s"
    batch, _ = credited(GiGPO(EndingPolicy(), advantage_scale="none", seed=0), [won, lost])
    assert batch.advantages[batch.reason != TokenReason.CONTEXT].tolist() == pytest.approx([0.5, 1.0, -0.5, -1.0])


def test_overlong_episodes_lose_reward():
    episodes = [trajectory(0, s, turn([1], [2] * n), reward=1.0) for s, n in enumerate([2, 8])]
    module = GRPO(EndingPolicy(), advantage_scale="none", overlong=OverlongTerm(max_length=10, buffer=4), seed=0)
    batch, _ = credited(module, episodes)
    # 8 tokens: (10 - 4 - 8) / 4 = -0.5, so the rewards are 1 and 0.5.
    assert batch.advantages[[1, 3]].tolist() == pytest.approx([0.25, -0.25])


def test_dynamic_sampling_drops_groups_without_spread_and_refills():
    module = DAPO(EndingPolicy(), optimizer=LR, seed=0)
    data = parity_data(num_groups=4, group_size=2)
    seen = []
    original = module.batches
    module.batches = lambda rollout, batch: seen.append((rollout, batch)) or original(rollout, batch)
    trainer(max_epochs=1).fit(module, datamodule=data)
    ((rollout, batch),) = seen
    kept = set(module.kept_groups(rollout))
    assert len(rollout.groups) > 4  # of pairs with a coin's chance, half are constant
    assert len({group.group for group in rollout.groups}) == len(rollout.groups)
    assert len(kept) <= 4
    for group in rollout.groups:
        rewards = {t.reward for t in group.trajectories}
        assert (len(rewards) > 1) == (group.group in kept)
    dropped = {n for n, t in enumerate(rollout.trajectories) if t.group not in kept}
    owner = batch.trajectory[batch.segment]
    for token in range(batch.num_tokens):
        if int(owner[token]) in dropped and batch.reason[token] != TokenReason.CONTEXT:
            assert batch.reason[token] == TokenReason.FILTERED
    assert data.progress.episodes == 2 * len(rollout.groups)


def test_dynamic_sampling_stops_when_nothing_has_spread():
    module = DAPO(EndingPolicy(), max_refills=2, seed=0)
    module.kept_groups = lambda rollout: []
    with pytest.raises(RuntimeError, match=r"all 12 groups earned the same reward.*max_refills.*group_size"):
        trainer(max_epochs=1).fit(module, datamodule=parity_data())


def test_the_reference_is_the_policy_that_training_began_with():
    """P27: the first KL is 0, later ones are not, and the reference stays where it was."""
    module = GRPO(EndingPolicy(), optimizer=LR, kl=KLTerm(coefficient=0.1), num_minibatches=2, seed=0)
    module.configure_model()
    start = weights(module)
    first = []
    original = module.batches
    module.batches = lambda rollout, batch: first.append(original(rollout, batch)) or first[-1]
    trainer(max_epochs=2).fit(module, datamodule=parity_data())
    mask = first[0][0].reason == TokenReason.TRAINED
    torch.testing.assert_close(
        first[0][0].columns["ref_logprobs"][mask], first[0][0].old_logprobs[mask], atol=1e-5, rtol=0
    )
    later = first[1][0]
    mask = later.reason == TokenReason.TRAINED
    assert (later.columns["ref_logprobs"][mask] - later.old_logprobs[mask]).abs().max() > 1e-4
    held = {f"policy.model.{name}": weight for name, weight in module.reference.policy.causal_lm.named_parameters()}
    assert equal(held, start)
    assert not any("reference" in name for name, _ in module.named_parameters())


def test_with_a_kl_in_the_loss_tokens_without_advantage_are_trained():
    constant = [trajectory(0, s, turn([1], [2, 3]), reward=1.0) for s in range(2)]
    module = GRPO(EndingPolicy(), kl=KLTerm(), seed=0)
    module._read_reference = lambda batch: None
    batch, _ = credited(module, constant)
    assert (batch.reason == TokenReason.NO_SIGNAL).sum() == 0


def test_a_moving_average_follows_the_policy():
    module = GRPO(EndingPolicy(), optimizer=LR, kl=KLTerm(reference="average", decay=0.5), seed=0)
    module.configure_model()
    start = weights(module)
    trainer(max_epochs=1).fit(module, datamodule=parity_data())
    name = next(iter(start))
    held = dict(module.reference.policy.causal_lm.named_parameters())[name.removeprefix("policy.model.")]
    torch.testing.assert_close(held, (start[name] + weights(module)[name]) / 2)


def test_a_kl_in_the_reward_lowers_what_strays_from_the_reference():
    module = RLOO(EndingPolicy(), optimizer=LR, kl=KLTerm(coefficient=0.1, estimator="k1", place="reward"), seed=0)
    seen = []
    original = module.batches
    module.batches = lambda rollout, batch: seen.append((rollout, original(rollout, batch))) or seen[-1][1]
    trainer(max_epochs=2).fit(module, datamodule=parity_data())
    rollout, (batch,) = seen[1]
    kl = torch.where(batch.reason != TokenReason.CONTEXT, batch.old_logprobs - batch.columns["ref_logprobs"], 0.0)
    paid = torch.tensor([t.reward for t in rollout.trajectories]).index_add(
        0, batch.trajectory[batch.segment].clamp_min(0), -0.1 * kl
    )
    expected = (paid.view(4, 4) - paid.view(4, 4).mean(1, keepdim=True)).flatten() * 4 / 3
    first = [int((batch.trajectory[batch.segment] == e).nonzero()[-1]) for e in range(16)]
    torch.testing.assert_close(batch.advantages[first], expected, atol=1e-4, rtol=1e-4)


def test_an_entropy_target_moves_the_coefficient():
    term = EntropyTerm(coefficient=0.01, target=100.0, step=0.005)
    module = GRPO(EndingPolicy(), optimizer=LR, entropy=term, seed=0)
    trainer(max_epochs=2).fit(module, datamodule=parity_data())
    assert float(module.coefficients[1]) == pytest.approx(0.02)


def test_corrections_weigh_what_another_sampler_drew():
    module = GRPO(EndingPolicy(), optimizer=LR, correction=OffPolicyTerm(mode="tis", high=2.0), seed=0)
    run = trainer(max_epochs=1)
    run.fit(module, datamodule=parity_data())
    assert float(run.callback_metrics["train/correction"]) == pytest.approx(1.0, abs=1e-4)


def own_loss(logprobs, advantages, mask, *, power: float):
    return -advantages.sign() * advantages.abs() ** power * logprobs * mask


def test_a_new_loss_is_one_function():
    loss = PolicyLoss(function=f"{__name__}.own_loss", options={"power": 0.5})
    module = PolicyGradient(EndingPolicy(), advantage=LeaveOneOut(), policy_loss=loss, optimizer=LR, seed=0)
    run = trainer(max_epochs=1)
    run.fit(module, datamodule=parity_data())
    assert run.global_step == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolicyLoss(function="no_loss"), r"policy_loss\.function is 'no_loss'.*ppo_clip_loss"),
        (lambda: PolicyLoss(function="no.such.place"), r"policy_loss\.function is 'no\.such\.place'"),
        (
            lambda: PolicyLoss(options={"tau": 1}),
            r"policy_loss\.options\.tau: ppo_clip_loss has no such option.*clip_low",
        ),
        (lambda: PolicyLoss(function="cispo_loss"), r"policy_loss\.options: cispo_loss needs clip_high"),
        (lambda: KLTerm(estimator="k1"), r"kl\.estimator: k1 in .*kl\.place: loss has no gradient"),
        (lambda: KLTerm(coefficient=0), r"kl\.coefficient is 0: it must be above 0"),
        (lambda: OffPolicyTerm(mode="icepop"), r"correction\.low belongs to"),
        (lambda: OffPolicyTerm(mode="none"), r"nothing would be corrected"),
        (lambda: OverlongTerm(max_length=4, buffer=5), r"overlong: max_length is 4 and buffer 5"),
        (lambda: EntropyTerm(coefficient=0), r"entropy\.coefficient is 0"),
        (lambda: DAPO(EndingPolicy(), max_refills=-1), r"max_refills is -1"),
        (lambda: DrGRPO(EndingPolicy(), max_tokens=0), r"max_tokens is 0"),
        (lambda: SAPO(EndingPolicy(), tau_neg=0), r"tau_neg is 0"),
    ],
)
def test_bad_settings_name_their_key(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_weights_below_an_adapter_need_an_adapter():
    module = GRPO(EndingPolicy(), kl=KLTerm(reference="adapter_off"), seed=0)
    with pytest.raises(ValueError, match=r"kl\.reference: adapter_off needs policy\.init_args\.lora"):
        trainer(max_epochs=1).fit(module, datamodule=parity_data())


def test_a_resumed_run_holds_on_to_the_same_reference(tmp_path):
    def module():
        return GRPO(EndingPolicy(), optimizer=LR, kl=KLTerm(coefficient=0.1, target=0.01), seed=0)

    whole, first, second = module(), module(), module()
    trainer(max_epochs=3).fit(whole, datamodule=parity_data())
    run = trainer(max_epochs=1)
    run.fit(first, datamodule=parity_data())
    run.save_checkpoint(tmp_path / "half.ckpt")
    trainer(max_epochs=3).fit(second, datamodule=parity_data(), ckpt_path=tmp_path / "half.ckpt")
    assert equal(weights(whole), weights(second))
    held, expected = (dict(m.reference.policy.causal_lm.named_parameters()) for m in (second, whole))
    assert equal(held, expected)
    assert torch.equal(whole.coefficients, second.coefficients)


def two_rewards(success, parts):
    episodes = [trajectory(0, s, turn([1], [2]), reward=9.0) for s in range(len(success))]
    for episode, solved, short in zip(episodes, success, parts, strict=True):
        episode.success, episode.reward_parts = bool(solved), {"short": short}
    return episodes


def test_objectives_replace_the_reward():
    """Weights 1 and -0.5: 1 - 0.5 x 2 = 0 and 0 - 0.5 x 0 = 0 for the first two, 1 for the third."""
    module = GRPO(
        EndingPolicy(), advantage_scale="none", objectives=Objectives(weights={"success": 1.0, "short": -0.5}), seed=0
    )
    batch, _ = credited(module, two_rewards([1, 0, 1], [2.0, 0.0, 0.0]))
    assert batch.advantages[1:].tolist() == pytest.approx([-1 / 3, -1 / 3, 2 / 3])


def test_objectives_are_paid_at_the_end():
    episode = trajectory(0, 0, turn([1], [2]), turn([3], [4], parent=0), reward=7.0, success=True)
    episode.turns[0].reward = 7.0
    module = REINFORCE(EndingPolicy(), gamma=0.5, baseline="none", objectives=Objectives(weights={"success": 2.0}))
    batch, _ = credited(module, [episode])
    assert batch.advantages.tolist() == pytest.approx([0, 1, 0, 2])


def test_an_objective_that_no_episode_has_names_its_key():
    module = GRPO(EndingPolicy(), objectives=Objectives(weights={"shrot": 1.0}), seed=0)
    with pytest.raises(ValueError, match=r"objectives\.weights\.shrot: .* there are reward, short, success"):
        credited(module, two_rewards([1, 0], [2.0, 0.0]))


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"weights": {}}, "weights"),
        ({"weights": {"success": 0.0}}, r"weights\.success"),
        ({"weights": {"success": 1.0}, "mode": "sum"}, "mode"),
        ({"weights": {"success": 1.0}, "tolerance": 0.1}, "tolerance"),
    ],
)
def test_bad_objectives_name_their_key(options, key):
    with pytest.raises(ValueError, match=r"model\.init_args\.objectives\." + key):
        Objectives(**options)


def test_objectives_that_compare_need_groups():
    objectives = Objectives(weights={"success": 1.0}, mode="lexicographic")
    module = REINFORCE(EndingPolicy(), objectives=objectives)
    with pytest.raises(ValueError, match=r"data\.init_args\.group_size is 1: model\.init_args\.objectives\.mode"):
        module.check_sizes(num_groups=4, group_size=1)
