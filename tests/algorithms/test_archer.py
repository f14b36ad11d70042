"""Utterance-level Q learning: what Q and V regress to, that they judge, and that policy and critic take turns."""

import dataclasses
import itertools

import pytest
import torch
from rl_support import EndingPolicy, equal, parity_data, rollout_of, trainer, trajectory, turn, weights

from lit_agentrl.algorithms import ArCHer, OptimizerConfig
from lit_agentrl.algorithms.action_values import ActionValueConfig, turn_marks
from lit_agentrl.algorithms.terms import KLTerm, Objectives
from lit_agentrl.rollouts.segments import batch_from_groups

LR = OptimizerConfig(lr=1e-3)


def built(*, dtype=torch.float64, values=None, objectives=None, **critic):
    """A module in float64; Q and V of critic and target are constant if `values` (q, v, target q, target v) say so."""
    module = ArCHer(EndingPolicy(), critic=ActionValueConfig(**critic), objectives=objectives, whiten=False, seed=0)
    module.configure_model()
    module.to(dtype)
    if values is not None:
        q, v, slow_q, slow_v = values
        for part, (one, other) in ((module.critic, (q, v)), (module.target, (slow_q, slow_v))):
            torch.nn.init.zeros_(part.head.weight)
            part.head.bias.data.copy_(torch.tensor([one, one, other, other], dtype=dtype))
    return module


def two_turns(sample=0, **fields):
    episode = trajectory(0, sample, turn([1], [2, 3]), turn([4], [5], parent=0), reward=3.0, **fields)
    episode.turns[0].reward, episode.turns[1].reward = 1.0, 2.0
    return episode


def critic_loss(module, *episodes):
    rollout = rollout_of(episodes)
    batches = module.batches(rollout, batch_from_groups(rollout.groups))
    module._critic_step = True
    return module.loss(batches[-1])


def test_marks_are_the_first_and_the_last_sampled_token_of_each_turn():
    batch = batch_from_groups(rollout_of([two_turns()]).groups)
    before, after = turn_marks(batch)
    assert before.tolist() == [False, True, False, False, True]
    assert after.tolist() == [False, False, True, False, True]


def test_targets_by_hand():
    """gamma 0.5, target V 4, target Q 10: Q of turn 0 regresses to 1 + 0.5 x 4 = 3, of turn 1 to 2; V to 10.

    With Q = 1 and V = 7: twice the mean of (2², 1²), and twice 3², since the twins are alike.
    """
    module = built(values=(1.0, 7.0, 10.0, 4.0), gamma=0.5)
    loss, terms = critic_loss(module, two_turns())
    assert terms["q_loss"].item() == pytest.approx(2 * (4 + 1) / 2)
    assert terms["v_loss"].item() == pytest.approx(2 * 9)
    assert loss.item() == pytest.approx(5 + 18)


def test_an_episode_that_was_cut_between_turns_goes_on_and_one_that_ended_does_not():
    """Both have one turn without reward; target V is 4, gamma 0.5: targets 2 and 0, Q is 3: (1 + 9)/2, twice."""
    module = built(values=(3.0, 0.0, 0.0, 4.0), gamma=0.5)
    cut = trajectory(0, 0, turn([1], [2]), status="truncated", closing_ids=(7,))
    _, terms = critic_loss(module, cut, trajectory(0, 1, turn([1], [3])))
    assert terms["q_loss"].item() == pytest.approx(2 * (1 + 9) / 2)
    _, terms = critic_loss(module, cut)
    assert terms["q_loss"].item() == pytest.approx(2 * 1)


def test_an_episode_that_was_cut_without_room_for_a_closing_goes_on_and_a_cut_reply_ends():
    """As above, read after the last token: target 2 for the first, 0 for the second."""
    module = built(values=(3.0, 0.0, 0.0, 4.0), gamma=0.5)
    _, terms = critic_loss(module, trajectory(0, 0, turn([1], [2]), status="truncated"))
    assert terms["q_loss"].item() == pytest.approx(2 * 1)
    reply = turn([1], [2])
    reply.completion = dataclasses.replace(reply.completion, stop_reason="length")
    _, terms = critic_loss(module, trajectory(0, 0, reply, status="truncated"))
    assert terms["q_loss"].item() == pytest.approx(2 * 9)


def test_a_turn_without_tokens_is_no_step_and_what_it_earned_is_not_lost():
    """Turns earn 1, 5, 2; the second has no tokens. gamma 0.5, target V 4: Q regresses to 1 + 5 + 0.5 x 4 = 8, to 2."""
    episode = trajectory(0, 0, turn([1], [2, 3]), turn([4], [], parent=0), turn([5], [6], parent=1), reward=8.0)
    for one, reward in zip(episode.turns, (1.0, 5.0, 2.0), strict=True):
        one.reward = reward
    _, terms = critic_loss(built(values=(1.0, 0.0, 0.0, 4.0), gamma=0.5), episode)
    assert terms["q_loss"].item() == pytest.approx(2 * (7**2 + 1**2) / 2)


def test_with_objectives_all_is_paid_at_the_end():
    """The objective is success, 1 here: Q regresses to 0.5 x 4 = 2 and to 1, whatever the turns earned."""
    module = built(values=(0.0, 0.0, 0.0, 4.0), gamma=0.5, objectives=Objectives(weights={"success": 1.0}))
    _, terms = critic_loss(module, two_turns(success=True))
    assert terms["q_loss"].item() == pytest.approx(2 * (2**2 + 1**2) / 2)


def test_the_critic_does_not_run_a_shared_policy_for_its_gradient():
    module = built(trunk="shared")
    loss, _ = critic_loss(module, two_turns())
    trunk = dict(module.policy.named_parameters())
    gradients = torch.autograd.grad(loss, list(trunk.values()))
    assert not any(gradient.any() for gradient in gradients)
    states = module.turn_states
    seen = []
    module.turn_states = lambda *args, **options: seen.append(states(*args, **options)) or seen[-1]
    critic_loss(module, two_turns())
    assert len(seen) == 2  # one of the judgement, one of the step
    assert not any(tensor.requires_grad for found in seen for tensor in found)


def test_critic_steps_alone_need_no_old_logprobs():
    module = built(updates=4)
    rollout = rollout_of([two_turns()])
    batch = batch_from_groups(rollout.groups)
    module.batches(rollout, batch)
    assert batch.old_logprobs is None


def test_judging_leaves_every_part_in_its_mode():
    module = built()
    module.train()
    module.target.eval()
    with module.scoring():
        assert not any(part.training for part in module.modules())
    assert module.critic.training
    assert module.policy.causal_lm.training
    assert not any(part.training for part in module.target.modules())


def test_an_expectile_weighs_surprises_upwards():
    """Q target 10, V 7: 0.9 x 3²; Q target 4: 0.1 x 3²; twice."""
    above, below = (
        critic_loss(built(values=(0.0, 7.0, q, 0.0), value_rule="expectile", expectile=0.9), two_turns())[1]["v_loss"]
        for q in (10.0, 4.0)
    )
    assert above.item() == pytest.approx(2 * 0.9 * 9)
    assert below.item() == pytest.approx(2 * 0.1 * 9)


def test_the_conservative_penalty_compares_what_a_group_said_in_one_state():
    """Two replies to one prompt with equal Q: ln 2 each; second turns stand alone: 0. Mean over 4 turns, twice."""
    module = built(values=(1.0, 0.0, 0.0, 0.0), cql=1.0)
    _, terms = critic_loss(module, two_turns(0), two_turns(1))
    assert terms["cql"].item() == pytest.approx(2 * 2 * 0.6931472 / 4, rel=1e-6)
    alone = critic_loss(module, two_turns(0))[1]
    assert alone["cql"].item() == pytest.approx(0.0)


def test_failed_episodes_teach_nothing():
    module = built(values=(1.0, 7.0, 10.0, 4.0), gamma=0.5)
    _, with_failure = critic_loss(module, two_turns(), trajectory(0, 1, turn([1], [2]), status="failed"))
    _, alone = critic_loss(module, two_turns())
    assert with_failure["q_loss"].item() == alone["q_loss"].item()


def test_the_advantage_is_the_smaller_q_minus_the_smaller_v():
    module = built()
    torch.nn.init.zeros_(module.critic.head.weight)
    module.critic.head.bias.data.copy_(torch.tensor([3.0, 2.0, 0.5, 1.0]))
    rollout = rollout_of([two_turns()])
    batch = batch_from_groups(rollout.groups)
    module.batches(rollout, batch)
    assert batch.advantages.tolist() == pytest.approx([0, 1.5, 1.5, 0, 1.5])


@pytest.mark.parametrize("share_prefixes", [True, False])
@pytest.mark.parametrize("options", [{}, {"cql": 0.5, "value_rule": "expectile"}, {"trunk": "shared"}])
def test_the_critics_gradient_does_not_depend_on_micro_batches(options, share_prefixes):
    """P12."""
    module = built(**options)
    module.share_prefixes = share_prefixes
    episodes = [two_turns(s) for s in range(3)]
    episodes.append(trajectory(0, 3, turn([1], [9] * 7), turn([8, 8], [7], parent=0), status="truncated"))
    episodes[-1].closing_ids = (5, 5, 5)
    episodes.append(trajectory(0, 4, turn([1], [2]), turn([9, 9], [3, 4])))
    others = [trajectory(1, s, turn([4, 4, 4], [s + 1] * (s + 1)), reward=float(s)) for s in range(4)]
    rollout = rollout_of(episodes, others, [trajectory(2, 0)])
    batch = module.batches(rollout, batch_from_groups(rollout.groups))[-1]
    module._critic_step = True

    def gradient(budget):
        module.micro_batch_tokens = budget
        module.zero_grad()
        pieces = module.pieces(batch, module.wanted(batch))
        for piece in pieces:
            module.loss(piece)[0].backward()
        return len(pieces), torch.cat([p.grad.flatten() for p in module.critic.parameters()])

    count, whole = gradient(100_000)
    assert count == 1
    for budget in (1, 15, 30):
        pieces, cut = gradient(budget)
        assert pieces > 1
        assert float((cut - whole).norm() / whole.norm()) < 1e-6


def test_policy_and_critic_take_turns_and_the_target_follows():
    module = ArCHer(EndingPolicy(), critic=ActionValueConfig(updates=2, tau=0.5), optimizer=LR, seed=0)
    module.configure_model()
    states = [(weights(module.policy), weights(module.critic), weights(module.target))]
    step = module.training_step

    def recorded(batch, batch_idx):
        step(batch, batch_idx)
        states.append((weights(module.policy), weights(module.critic), weights(module.target)))

    module.training_step = recorded
    run = trainer(max_epochs=1)
    run.fit(module, datamodule=parity_data(temperature=1.2))
    assert run.global_step == 3
    moved = [
        [not equal(before, after) for before, after in zip(*pair, strict=True)] for pair in itertools.pairwise(states)
    ]
    assert moved[1:] == [[False, True, True]] * 2
    assert moved[0][0]
    _, critic, target = states[-1]
    for name, weight in target.items():
        torch.testing.assert_close(weight, 0.5 * states[-2][2][name] + 0.5 * critic[name])


def test_q_learns_to_judge():
    """Replies 5 earn 1, replies 6 nothing: after some critic steps Q tells them apart, and `judge` says so."""
    module = ArCHer(
        EndingPolicy(),
        critic=ActionValueConfig(updates=1, lr=1e-2, tau=1.0),
        optimizer=OptimizerConfig(lr=1e-3),
        seed=0,
    )
    module.configure_model()
    episodes = [trajectory(0, s, turn([1, 2], [5 + s]), reward=1.0 - s) for s in range(2)]
    rollout = rollout_of(episodes)
    optimizer = torch.optim.AdamW(module.critic.parameters(), lr=1e-2)
    for _ in range(60):
        batch = module.batches(rollout, batch_from_groups(rollout.groups))[-1]
        module._critic_step = True
        optimizer.zero_grad()
        module.loss(batch)[0].backward()
        optimizer.step()
        module.after_step({})
        module._critic_step = False
    (good,), (bad,) = module.judge(rollout.groups)
    assert good == pytest.approx(1.0, abs=0.15)
    assert bad == pytest.approx(0.0, abs=0.15)


@pytest.mark.parametrize("replay_rollouts", [1, 3])
def test_a_resumed_run_goes_on_exactly(replay_rollouts, tmp_path):
    def fit(name, epochs, **options):
        critic = ActionValueConfig(updates=2, batch_size=6, replay_rollouts=replay_rollouts)
        module = ArCHer(EndingPolicy(), critic=critic, optimizer=LR, seed=0)
        run = trainer(max_epochs=epochs)
        run.fit(module, datamodule=parity_data(), **options)
        run.save_checkpoint(tmp_path / name)
        return weights(module)

    whole = fit("whole.ckpt", 4)
    fit("part.ckpt", 2)
    assert equal(whole, fit("resumed.ckpt", 4, ckpt_path=tmp_path / "part.ckpt", weights_only=True))


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"trunk": "other"}, "trunk"),
        ({"value_rule": "median"}, "value_rule"),
        ({"gamma": 1.5}, "gamma"),
        ({"tau": -0.1}, "tau"),
        ({"expectile": 1.0}, "expectile"),
        ({"cql": -1.0}, "cql"),
        ({"updates": 0}, "updates"),
        ({"batch_size": 0}, "batch_size"),
        ({"lr": 0.0}, "lr"),
    ],
)
def test_bad_settings_name_their_key(options, key):
    with pytest.raises(ValueError, match=r"model\.init_args\.critic\." + key):
        ActionValueConfig(**options)


def test_a_kl_in_the_reward_would_have_no_effect():
    with pytest.raises(ValueError, match=r"model\.init_args\.kl\.place: reward would have no effect"):
        ArCHer(EndingPolicy(), kl=KLTerm(estimator="k1", place="reward"), seed=0)
