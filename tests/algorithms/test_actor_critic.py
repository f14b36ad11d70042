"""Policy gradients with a critic: what values learn, who moves, and when the policy waits."""

import pytest
import torch
from rl_support import EndingPolicy, equal, parity_data, rollout_of, trainer, trajectory, turn, weights

from lit_agentrl.algorithms import GRPO, PPO, VAPO, ActorCritic, OptimizerConfig, PolicyGradient
from lit_agentrl.algorithms.credit import LeaveOneOut
from lit_agentrl.algorithms.credit_values import GeneralizedAdvantage
from lit_agentrl.algorithms.optimizer import ParameterGroup
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.policies.critic import CriticConfig
from lit_agentrl.rollouts.segments import batch_from_groups

LR = OptimizerConfig(lr=1e-3)


def built(module, *, value=None):
    """A module with weights; its critic answers `value` everywhere, if one is given."""
    module.configure_model()
    if value is not None:
        torch.nn.init.constant_(module.critic.head.bias, value)
    return module


def credited(module, *groups):
    rollout = rollout_of(*groups)
    batch = batch_from_groups(rollout.groups)
    (step,) = module.batches(rollout, batch)
    return batch, step


def two_turns(**fields):
    """Turns of two tokens and of one, which earn 1 and 2."""
    episode = trajectory(0, 0, turn([1], [2, 3]), turn([4], [5], parent=0), reward=3.0, **fields)
    episode.turns[0].reward, episode.turns[1].reward = 1.0, 2.0
    return episode


def test_token_advantages_by_hand():
    """Values 0.5, gamma 0.5, lam 1: returns 2 + ..: token 3 earns 2, token 2 1 + 0.5 x 2 = 2, token 1 0.5 x 2 = 1."""
    module = built(PPO(EndingPolicy(), gamma=0.5, lam=1.0, whiten=False, seed=0), value=0.5)
    batch, step = credited(module, [two_turns()])
    assert batch.columns["returns"].tolist() == pytest.approx([0, 1, 2, 0, 2])
    assert batch.advantages.tolist() == pytest.approx([0, 0.5, 1.5, 0, 1.5])
    assert step.further_weights["value"].tolist() == pytest.approx([0, 1 / 3, 1 / 3, 0, 1 / 3])


def test_turn_advantages_by_hand():
    """A turn is the step: 1 + 0.5 x 2 = 2 before the first, 2 before the second; values sit at each turn's start."""
    module = built(PPO(EndingPolicy(), step="turn", gamma=0.5, lam=1.0, whiten=False, seed=0), value=0.5)
    batch, step = credited(module, [two_turns()])
    assert batch.advantages.tolist() == pytest.approx([0, 1.5, 1.5, 0, 1.5])
    assert step.further_weights["value"].tolist() == pytest.approx([0, 0.5, 0, 0, 0.5])


@pytest.mark.parametrize("step", ["token", "turn"])
def test_a_truncated_episode_goes_on_in_the_critics_eyes_and_a_finished_one_does_not(step):
    """P18. One token, reward 0, value 1 everywhere: the truncated one is worth 1 to come, the finished one 0."""
    episodes = [trajectory(0, s, turn([1], [2]), status=status) for s, status in enumerate(["truncated", "completed"])]
    module = built(PPO(EndingPolicy(), step=step, lam=1.0, whiten=False, seed=0), value=1.0)
    batch, _ = credited(module, episodes)
    assert batch.advantages[[1, 2]].tolist() == pytest.approx([0.0, -1.0])
    module.advantage = GeneralizedAdvantage(step=step, lam=1.0, whiten=False, bootstrap=False)
    batch, _ = credited(module, episodes)
    assert batch.advantages[[1, 2]].tolist() == pytest.approx([-1.0, -1.0])


def test_the_value_after_a_truncation_is_read_behind_what_would_have_come_next():
    module = built(PPO(EndingPolicy(), seed=0))
    torch.nn.init.normal_(module.critic.head.weight, generator=torch.Generator().manual_seed(0))
    plain = trajectory(0, 0, turn([1], [2, 3]), status="truncated")
    closed = trajectory(0, 1, turn([1], [2, 3]), status="truncated", closing_ids=(7, 8))
    longer = trajectory(0, 2, turn([1], [2, 3]), turn([7, 8], [9], parent=0))
    bootstrap = module._bootstrap(rollout_of([plain, closed, longer]), 1.0)
    rollout = rollout_of([longer])
    batch = batch_from_groups(rollout.groups)
    values = module._values(batch, batch.reason == 1)
    assert float(bootstrap[1]) == pytest.approx(float(values[-1]), abs=1e-6)  # before the 9 that follows 7, 8
    assert float(bootstrap[0]) != pytest.approx(float(bootstrap[1]), abs=1e-4)
    assert float(bootstrap[2]) == 0.0


def test_failed_episodes_teach_the_critic_nothing():
    module = built(PPO(EndingPolicy(), seed=0))
    episodes = [trajectory(0, 0, turn([1], [2]), reward=1.0), trajectory(0, 1, turn([1], [2]), status="failed")]
    _, step = credited(module, episodes)
    assert step.further_weights["value"].count_nonzero() == 1


@pytest.mark.parametrize("config", [CriticConfig(trunk="own"), CriticConfig(trunk="shared")], ids=["own", "shared"])
def test_the_gradient_of_the_values_stays_out_of_the_policy(config):
    module = built(PPO(EndingPolicy(), critic=config, seed=0), value=0.2)
    torch.nn.init.constant_(module.critic.head.weight, 0.1)
    _, step = credited(module, [two_turns(), trajectory(0, 1, turn([1], [5]))])
    step.weight = torch.zeros_like(step.weight)
    module.loss(step)[0].backward()
    assert all(p.grad is None or not p.grad.any() for p in module.policy.parameters())
    assert module.critic.head.weight.grad.any()
    if config.trunk == "own":
        assert all(p.grad is not None and p.grad.any() for p in module.critic.trunk.parameters() if p.ndim == 2)


def test_a_shared_trunk_learns_from_values_if_it_is_told_to():
    config = CriticConfig(trunk="shared", shared_gradient=True)
    module = built(PPO(EndingPolicy(), critic=config, seed=0), value=0.2)
    torch.nn.init.constant_(module.critic.head.weight, 0.1)
    _, step = credited(module, [two_turns()])
    step.weight = torch.zeros_like(step.weight)
    module.loss(step)[0].backward()
    assert any(p.grad is not None and bool(p.grad.any()) for p in module.policy.parameters())


@pytest.mark.parametrize("trunk", ["own", "shared"])
def test_the_policy_waits_while_the_critic_warms_up(trunk):
    module = PPO(EndingPolicy(), critic=CriticConfig(trunk=trunk, warmup_rollouts=1), optimizer=LR, seed=0)
    module.configure_model()
    policy, critic = weights(module.policy), weights(module.critic)
    run = trainer(max_epochs=1)
    run.fit(module, datamodule=parity_data())
    assert run.global_step == 1
    assert equal(policy, weights(module.policy))
    moved = {name for name, weight in weights(module.critic).items() if not torch.equal(weight, critic[name])}
    assert "head.bias" in moved
    run = trainer(max_epochs=2)
    run.fit(module, datamodule=parity_data())
    assert not equal(policy, weights(module.policy))


@pytest.mark.parametrize("trunk", ["own", "shared"])
def test_policy_and_critic_move_and_are_clipped_apart(trunk):
    """P29 and the clip: a critic of huge gradient does not make the policy's step small."""
    module = PPO(
        EndingPolicy(),
        critic=CriticConfig(trunk=trunk, coefficient=1e4, lr=1e-2, clip=None),
        optimizer=OptimizerConfig(lr=1e-3, max_grad_norm=1e-2),
        seed=0,
    )
    module.configure_model()
    before, norms = weights(module), {}
    module.on_before_optimizer_step = lambda optimizer: norms.update(
        {
            name: float(torch.cat([p.grad.flatten() for p in part.parameters() if p.grad is not None]).norm())
            for name, part in (("policy", module.policy), ("critic", module.critic))
        }
    )
    run = trainer(max_epochs=1)
    run.fit(module, datamodule=parity_data(temperature=1.2))
    after = weights(module)
    assert norms == pytest.approx({"policy": 1e-2, "critic": 1.0}, rel=1e-3)
    assert float(run.callback_metrics["train/grad_norm_critic"]) > 100
    assert float(run.callback_metrics["train/lr_critic"]) == pytest.approx(1e-2)
    still = {name for name in before if torch.equal(before[name], after[name])}
    # The head starts at zero, so the trunk below it has no gradient in the very first step.
    assert all(name.startswith("critic.trunk.") for name in still)


def test_imitation_raises_the_likelihood_of_solved_episodes_only():
    module = built(VAPO(EndingPolicy(), imitation=1.0, critic=CriticConfig(), seed=0))
    solved = trajectory(0, 0, turn([1], [2, 3]), reward=0.0, success=True)
    _, step = credited(module, [solved, trajectory(0, 1, turn([1], [5]), reward=0.0)])
    assert step.further_weights["solved"].tolist() == pytest.approx([0, 0.5, 0.5, 0])
    assert not step.weight.any() or not step.advantages.any()
    _, terms = module.loss(step)
    _, logprobs, _ = module.policy_logprobs(step, step.further_weights["solved"] > 0)
    assert float(terms["imitation"]) == pytest.approx(-logprobs.mean().item(), rel=1e-5)


def test_lambda_of_vapo_grows_with_length():
    """40 tokens: 1 - 1/(0.05 x 40) = 0.5; 10 tokens: 0, which is the one-step advantage."""
    module = built(VAPO(EndingPolicy(), seed=0), value=0.0)
    episodes = [trajectory(0, s, turn([1], [2] * n), reward=1.0) for s, n in enumerate([40, 10])]
    batch, _ = credited(module, episodes)
    long, short = batch.advantages[1:41], batch.advantages[41:]
    assert long[-1] == 1.0
    assert float(long[-2]) == pytest.approx(0.5)
    assert short.tolist() == [0.0] * 9 + [1.0]
    assert batch.columns["returns"][41:].tolist() == [1.0] * 10  # the critic's lambda is 1


def test_explained_variance_is_logged():
    module = PPO(EndingPolicy(), optimizer=LR, seed=0)
    run = trainer(max_epochs=1)
    run.fit(module, datamodule=parity_data(temperature=1.2))
    assert float(run.callback_metrics["rollout/explained_variance"]) <= 1.0
    assert float(run.callback_metrics["train/value_loss"]) > 0


@pytest.mark.parametrize("trunk", ["own", "shared"])
def test_a_resumed_run_keeps_its_critic(trunk, tmp_path):
    def fit(folder, epochs, **options):
        module = PPO(EndingPolicy(), critic=CriticConfig(trunk=trunk), optimizer=LR, seed=0)
        run = trainer(max_epochs=epochs, enable_checkpointing=False)
        run.fit(module, datamodule=parity_data(), **options)
        run.save_checkpoint(folder)
        return weights(module)

    whole = fit(tmp_path / "whole.ckpt", 3)
    fit(tmp_path / "part.ckpt", 2)
    assert equal(whole, fit(tmp_path / "resumed.ckpt", 3, ckpt_path=tmp_path / "part.ckpt", weights_only=True))


def test_an_estimator_without_values_is_no_use_to_a_critic_and_the_other_way_round():
    with pytest.raises(ValueError, match=r"advantage: LeaveOneOut reads no critic.*model\.init_args\.critic"):
        ActorCritic(EndingPolicy(), advantage=LeaveOneOut(), policy_loss=PolicyLoss())
    with pytest.raises(ValueError, match=r"model\.init_args\.advantage: GeneralizedAdvantage.*model\.class_path"):
        PolicyGradient(EndingPolicy(), advantage=GeneralizedAdvantage(), policy_loss=PolicyLoss())


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: CriticConfig(trunk="none"), "critic.trunk"),
        (lambda: CriticConfig(shared_gradient=True), "critic.shared_gradient"),
        (lambda: CriticConfig(clip=0.0), "critic.clip"),
        (lambda: CriticConfig(lr=0.0), "critic.lr"),
        (lambda: CriticConfig(warmup_rollouts=-1), "critic.warmup_rollouts"),
        (lambda: GeneralizedAdvantage(lam=1.5), "advantage.init_args.lam"),
        (lambda: GeneralizedAdvantage(step="word"), "advantage.init_args.step"),
        (lambda: GeneralizedAdvantage(step="turn", length_alpha=0.1), "advantage.init_args.length_alpha"),
        (lambda: VAPO(EndingPolicy(), imitation=-1.0), "imitation"),
        (lambda: ParameterGroup(match="*", lr=0.0), "optimizer.groups"),
    ],
)
def test_bad_settings_name_their_key(make, key):
    with pytest.raises(ValueError, match=r"model\.init_args\." + key.replace(".", r"\.")):
        make()


def test_a_group_of_parameters_has_a_rate_of_its_own():
    groups = {"norms": ParameterGroup(match="*norm*", lr=0.5), "nothing": ParameterGroup(match="zebra")}
    config = OptimizerConfig(lr=1e-3, groups={"norms": groups["norms"]})
    module = built(GRPO(EndingPolicy(), optimizer=config, seed=0))
    optimizer = config.make_optimizer(module.named_parameters())
    rates = {group["name"]: (group["lr"], len(group["params"])) for group in optimizer.param_groups}
    assert rates["norms"] == (0.5, 5)  # two layers of two, and the last
    assert rates[""][0] == 1e-3
    with pytest.raises(ValueError, match=r"optimizer\.groups\.nothing\.match is 'zebra'"):
        OptimizerConfig(groups=groups).make_optimizer(module.named_parameters())
