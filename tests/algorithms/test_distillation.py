"""On-policy distillation: the teacher's log-probs are the advantage, and the policy comes nearer to the teacher."""

import pytest
import torch
from rl_support import EndingPolicy, build, parity_data, rollout_of, trainer, trajectory, turn, weights

from lit_agentrl.algorithms import Distillation, OptimizerConfig
from lit_agentrl.algorithms.credit import GroupRelative
from lit_agentrl.algorithms.credit_values import GeneralizedAdvantage
from lit_agentrl.policies.tiny import TinyPolicy
from lit_agentrl.rollouts.segments import batch_from_groups


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    build(EndingPolicy(), seed=7).export(folder)
    return str(folder)


def distillation(teacher, **options):
    return Distillation(EndingPolicy(), teacher=teacher, **({"seed": 0} | options))


def test_the_advantage_is_the_gap_between_the_two(teacher):
    module = distillation(teacher, weight=0.5)
    module.configure_model()
    rollout = rollout_of([trajectory(0, 0, turn([1, 2], [3, 4]))])
    batch = batch_from_groups(rollout.groups)
    module.batches(rollout, batch)
    wanted = batch.reason == 1
    index, own, _ = module.policy_logprobs(batch, wanted)
    _, shown, _ = module.policy_logprobs(batch, wanted, policy=build(EndingPolicy(), seed=7))
    torch.testing.assert_close(batch.advantages[index], 0.5 * (shown - own).detach(), atol=1e-5, rtol=1e-5)
    assert rollout.metrics["rollout/teacher_kl"] == pytest.approx((own - shown).mean().item(), abs=1e-5)


def test_rewards_may_have_a_say_too(teacher):
    module = distillation(teacher, reward=GroupRelative(scale="none"))
    module.configure_model()
    episodes = [trajectory(0, s, turn([1, 2], [3, 4]), reward=float(s)) for s in range(2)]
    rollout = rollout_of(episodes)
    batch = batch_from_groups(rollout.groups)
    module.batches(rollout, batch)
    lost, won = batch.advantages[2:4], batch.advantages[4:6]  # the same tokens, so the teacher says the same
    torch.testing.assert_close(won - lost, torch.ones(2))


def test_the_policy_comes_nearer_to_its_teacher(teacher):
    kl = []
    module = distillation(teacher, optimizer=OptimizerConfig(lr=5e-3))
    learnt = module.batches

    def recorded(rollout, batch):
        steps = learnt(rollout, batch)
        kl.append(rollout.metrics["rollout/teacher_kl"])
        return steps

    module.batches = recorded
    trainer(max_epochs=40).fit(module, datamodule=parity_data())
    assert kl[0] > 0.005
    assert sum(kl[-3:]) / 3 < 0.7 * sum(kl[:3]) / 3


def test_the_teacher_is_no_part_of_the_module(teacher):
    module = distillation(teacher)
    module.configure_model()
    assert {name.split(".")[0] for name, _ in module.named_parameters()} == {"policy"}
    before = weights(module._teacher[0])
    trainer(max_epochs=1).fit(module, datamodule=parity_data())
    assert all(torch.equal(before[name], weight) for name, weight in weights(module._teacher[0]).items())


def test_a_teacher_with_other_words_is_refused(tmp_path):
    other = TinyPolicy(32, 1, 2)
    other.build()
    other.tokenizer.add_tokens(["zebra"])
    other.causal_lm.resize_token_embeddings(len(other.tokenizer))
    other.export(tmp_path)
    with pytest.raises(ValueError, match=r"model\.init_args\.teacher is .*another vocabulary"):
        distillation(str(tmp_path)).configure_model()


def test_bad_settings_name_their_key(teacher, tmp_path):
    with pytest.raises(ValueError, match=r"model\.init_args\.teacher is .*nowhere"):
        distillation(str(tmp_path / "nowhere")).configure_model()
    with pytest.raises(ValueError, match=r"model\.init_args\.weight"):
        distillation(teacher, weight=0.0)
    with pytest.raises(ValueError, match=r"model\.init_args\.reward: GeneralizedAdvantage"):
        distillation(teacher, reward=GeneralizedAdvantage())
    with pytest.raises(ValueError, match=r"data\.init_args\.group_size is 1: model\.init_args\.reward"):
        distillation(teacher, reward=GroupRelative()).check_sizes(num_groups=4, group_size=1)
