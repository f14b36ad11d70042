"""DQN: targets by hand, the exact solution of a small MDP, and what a step may move."""

import gymnasium
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from q_support import ACTIONS, batch_of, cell, corridor_data, dqn, random_walk, seen, transition
from rl_support import equal, parity_data, trainer, weights

from datamodules import ReplayDataModule
from lit_agentrl import functional as F
from lit_agentrl.algorithms import DQN, Exploration, OptimizerConfig
from lit_agentrl.algorithms.exploration import pick
from lit_agentrl.rollouts.stream import SizedStream


def with_values(module, online, target):
    """Make linear networks whose Q of cell s is row s of the given tables."""
    module.configure_model()
    for network, table in zip(module.networks, (online, target), strict=True):
        (layer,) = network.layers
        layer.weight.data = torch.tensor(table).T.contiguous()
        layer.bias.data.zero_()
    return module


def fit(module, batches, **options):
    run = trainer(max_epochs=1, **options)
    run.fit(module, SizedStream(lambda: iter(batches), len(batches)).loader())
    return run


# Targets --------------------------------------------------------------------------------------------------------------

ONLINE = [[0.0, 1.0, 2.0], [5.0, 3.0, 4.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
TARGET = [[0.0, 0.0, 0.0], [10.0, 40.0, 20.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("double_q", "after", "expected"),
    [
        # From cell 0, `walk east` (Q = 1) earns 1 and leads to cell 1; gamma is 0.5.
        (True, cell(1, ACTIONS), 1 + 0.5 * 10.0),  # the online network prefers `wait` (5), the target values it at 10
        (False, cell(1, ACTIONS), 1 + 0.5 * 40.0),  # the target's own best
        (True, cell(1, ACTIONS[1:]), 1 + 0.5 * 20.0),  # `wait` is not offered: `walk west` (4) is next, at 20
        (False, cell(1, ["wait", "walk west"]), 1 + 0.5 * 20.0),
        (True, cell(1), 1 + 0.5 * 10.0),  # nothing is listed: everything is valid
    ],
)
def test_targets_by_hand(double_q, after, expected):
    module = with_values(dqn(hidden_sizes=(), gamma=0.5, double_q=double_q, huber_delta=100.0), ONLINE, TARGET)
    batch = batch_of(module, [transition(cell(0, ACTIONS), "walk east", 1.0, after, terminated=False)])
    loss, terms = module.loss(batch)
    loss = loss.detach()
    assert float(terms["q_target"]) == pytest.approx(expected)
    assert float(loss) == pytest.approx(0.5 * (1.0 - expected) ** 2)
    assert float(terms["td_error"]) == pytest.approx(abs(1.0 - expected))


def test_truncation_bootstraps_and_termination_does_not():
    module = with_values(dqn(hidden_sizes=(), gamma=0.5, double_q=False), ONLINE, TARGET)
    # What the collector makes of an episode that was cut short: not terminated, and the state that it stopped in.
    cut = transition(cell(0, ACTIONS), "wait", 1.0, cell(1, ACTIONS), terminated=False)
    over = transition(cell(0, ACTIONS), "wait", 1.0, cell(1, ACTIONS), terminated=True)
    for step, expected in ((cut, 21.0), (over, 1.0)):
        assert float(module.loss(batch_of(module, [step]))[1]["q_target"]) == pytest.approx(expected)


def test_a_cut_without_a_state_is_left_out():
    module = dqn()
    steps = [
        transition(cell(0, ACTIONS), "wait", 0.0, None, terminated=False),
        transition(cell(2, ACTIONS), "walk east", 1.0, None, terminated=True),
    ]
    columns = module.columns(steps)
    assert columns["reward"].tolist() == [1.0]
    assert columns["next_actions"].tolist() == [[-1, -1, -1]]


def test_errors_above_delta_count_linearly():
    module = with_values(dqn(hidden_sizes=(), huber_delta=2.0), ONLINE, TARGET)
    far = transition(cell(0), "walk west", 10.0, None)  # Q = 2, so the error is 8
    near = transition(cell(0), "walk west", 3.0, None)
    assert module.loss(batch_of(module, [far]))[0].item() == pytest.approx(2.0 * (8.0 - 1.0))
    assert module.loss(batch_of(module, [near]))[0].item() == pytest.approx(0.5)


# The exact solution ---------------------------------------------------------------------------------------------------


def frozen_lake():
    """Return (next state, reward, done), [S, A] each, of the lake that does not slip, and which states are not ends."""
    env = gymnasium.make("FrozenLake-v1", is_slippery=False).unwrapped
    table = [[env.P[s][a][0][1:] for a in range(4)] for s in range(16)]
    after, reward, done = (torch.tensor([[float(entry[k]) for entry in row] for row in table]) for k in range(3))
    ends = torch.tensor([cell in b"HG" for cell in env.desc.flatten()])
    return after.long(), reward, done.bool(), ~ends


def value_iteration(after, reward, done, *, gamma):
    q = torch.zeros_like(reward, dtype=torch.float64)
    for _ in range(200):
        q = reward + gamma * (~done) * q.max(-1).values[after]
    return q


def test_tabular_q_learning_with_these_targets_converges_to_value_iteration():
    after, reward, done, _ = frozen_lake()
    q = torch.zeros(16, 4, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4000):
        s, a = (int(torch.randint(n, (), generator=generator)) for n in (16, 4))
        target = F.td_targets(reward[s, a][None], done[s, a][None], q[after[s, a]][None], gamma=0.9)
        q[s, a] += 0.5 * (target[0] - q[s, a])
    torch.testing.assert_close(q, value_iteration(after, reward, done, gamma=0.9), rtol=0, atol=1e-3)


def test_dqn_reaches_the_optimal_policy_and_its_values():
    after, reward, done, alive = frozen_lake()
    best = value_iteration(after, reward, done, gamma=0.9)[alive]
    names = ["left", "down", "right", "up"]
    module = DQN(
        actions=names,
        num_features=16,
        hidden_sizes=(),
        gamma=0.9,
        target_tau=1.0,
        target_every_n_steps=15,
        optimizer=OptimizerConfig(lr=0.05, max_grad_norm=0, schedule="linear"),
        seed=0,
    )
    module.configure_model()
    steps = [
        transition(
            cell(s, names, length=16),
            names[a],
            float(reward[s, a]),
            cell(int(after[s, a]), names, length=16),
            terminated=bool(done[s, a]),
        )
        for s in range(16)
        if alive[s]
        for a in range(4)
    ]
    fit(module, [batch_of(module, steps)] * 400)
    with torch.no_grad():
        learnt = module.networks[0](torch.eye(16))[alive].double()
    torch.testing.assert_close(learnt, best, rtol=0, atol=0.02)
    chosen = learnt.argmax(-1, keepdim=True)
    assert torch.allclose(best.gather(1, chosen).squeeze(1), best.max(-1).values)  # ties may go either way


def test_it_learns_the_corridor_from_its_own_episodes():
    class Successes(Callback):
        def __init__(self):
            self.values = []

        def on_validation_end(self, trainer, pl_module):
            self.values.append(float(trainer.callback_metrics["val/success"]))

    validations = Successes()
    data = corridor_data(env={"length": 6, "limit": 20}, env_steps_per_epoch=200, updates_per_epoch=60)
    module = dqn(
        num_features=6, hidden_sizes=(16,), exploration=Exploration(epsilon_decay_steps=600), target_tau=0.1, gamma=0.9
    )
    run = trainer(max_epochs=4, limit_val_batches=1.0, check_val_every_n_epoch=1, callbacks=[validations])
    run.validate(module, datamodule=data, verbose=False)
    run.fit(module, datamodule=data)
    assert (validations.values[0], validations.values[-1]) == (0.0, 1.0)
    figures = run.callback_metrics
    assert float(figures["progress/env_steps"]) >= 800
    assert float(figures["progress/tokens"]) == 0
    assert float(figures["replay/size"]) == float(figures["progress/env_steps"])
    assert float(figures["val/reward"]) == 1.0


# What a step moves ----------------------------------------------------------------------------------------------------


def moved(module, batch, **options):
    module.configure_model()
    before = weights(module)
    fit(module, [batch], **options)
    return {name.split(".")[0] for name, value in weights(module).items() if not torch.equal(value, before[name])}


def test_only_the_q_network_moves_until_the_target_is_due():
    module = dqn(target_every_n_steps=2, optimizer=OptimizerConfig(lr=1e-2, weight_decay=0.1))
    assert moved(module, batch_of(module, random_walk(20))) == {"network"}
    assert all(parameter.grad is None for parameter in module.networks[1].parameters())


@pytest.mark.parametrize(("tau", "every"), [(0.25, 1), (1.0, 3)])
def test_the_target_moves_as_configured(tau, every):
    module = dqn(target_tau=tau, target_every_n_steps=every)
    module.configure_model()
    expected = weights(module.networks[1])
    problems = []

    class Follow(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step % every == 0:
                online = weights(module.networks[0])
                for name in expected:
                    expected[name] = (1 - tau) * expected[name] + tau * online[name]
            now = weights(module.networks[1])
            problems.extend(n for n in now if not torch.allclose(now[n], expected[n], atol=1e-7))

    fit(module, [batch_of(module, random_walk(20))] * 5, callbacks=[Follow()])
    assert problems == []
    assert not equal(weights(module.networks[0]), weights(module.networks[1])) or every == 1


def test_a_batch_without_weight_changes_nothing():
    module = dqn()
    assert moved(module, batch_of(module, random_walk(8), weight=0.0)) == set()


# Micro-batches --------------------------------------------------------------------------------------------------------


def gradient(module, batch, rows):
    module.micro_batch_rows = rows
    module.zero_grad()
    pieces = module.pieces(batch, batch.weight != 0)
    for piece in pieces:
        module.loss(piece)[0].backward()
    return len(pieces), torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


@pytest.mark.parametrize("double_q", [True, False])
def test_micro_batches_do_not_change_the_gradient(double_q):
    module = dqn(double_q=double_q)
    module.configure_model()
    module.double()
    batch = batch_of(module, random_walk(37))
    batch.weight = torch.linspace(0.1, 1.0, len(batch)) / len(batch)
    count, whole = gradient(module, batch, 1000)
    assert count == 1
    assert whole.norm() > 0
    for rows in (1, 5, 36):
        pieces, cut = gradient(module, batch, rows)
        assert pieces > 1
        assert float((cut - whole).norm() / whole.norm()) < 1e-6


def test_the_buffer_is_told_every_error_in_order():
    module = with_values(dqn(hidden_sizes=(), gamma=0.5, micro_batch_rows=2, double_q=False), ONLINE, TARGET)
    told = []
    steps = [transition(cell(0), "walk west", reward, None) for reward in (2.0, 3.0, 5.0, -1.0, 2.0)]
    batch = batch_of(module, steps)
    batch.feedback = told.append
    fit(module, [batch])
    assert told[0].tolist() == pytest.approx([0.0, -1.0, -3.0, 3.0, 0.0])  # Q = 2 in all of them


def test_priorities_come_from_the_errors():
    data = corridor_data(priority_alpha=0.6)
    trainer(max_epochs=1).fit(dqn(), datamodule=data)
    assert data.replay._priorities[: len(data.replay)].unique().numel() > 2


# Exploration ----------------------------------------------------------------------------------------------------------


def test_epsilon_falls_linearly():
    exploration = Exploration(epsilon_start=1.0, epsilon_end=0.2, epsilon_decay_steps=100)
    assert [exploration.epsilon(steps) for steps in (0, 50, 100, 1000)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


def test_how_actions_are_drawn():
    import numpy as np

    values = np.array([1.0, 3.0, 2.0])

    def shares(**options):
        drawn = [pick(values, seed=seed, **options) for seed in range(3000)]
        return np.bincount(drawn, minlength=3) / 3000

    assert shares(epsilon=0.0, temperature=0.0).tolist() == [0, 1, 0]
    assert shares(epsilon=0.6, temperature=0.0) == pytest.approx([0.2, 0.6, 0.2], abs=0.03)
    softmax = np.exp(values) / np.exp(values).sum()
    assert shares(epsilon=0.0, temperature=1.0) == pytest.approx(softmax, abs=0.03)
    assert pick(values, seed=4, epsilon=0.5, temperature=1.0) == pick(values, seed=4, epsilon=0.5, temperature=1.0)


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_features": 0}, "model.init_args.num_features is 0"),
        ({"observe": "pixels"}, "model.init_args.observe is 'pixels'"),
        ({"gamma": 1.1}, "model.init_args.gamma is 1.1"),
        ({"huber_delta": 0.0}, "model.init_args.huber_delta is 0.0"),
        ({"target_tau": 0.0}, "model.init_args.target_tau is 0.0"),
        ({"target_every_n_steps": 0}, "model.init_args.target_every_n_steps is 0"),
        ({"micro_batch_rows": 0}, "model.init_args.micro_batch_rows is 0"),
        ({"hidden_sizes": (0,)}, "model.init_args.hidden_sizes"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        dqn(**options)


@pytest.mark.parametrize("actions", [[], ["a", "a"]])
def test_actions_are_named_once_each(actions):
    with pytest.raises(ValueError, match=r"model.init_args.actions"):
        DQN(actions=actions, num_features=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon_start": 1.5}, "model.init_args.exploration.epsilon_start is 1.5"),
        ({"epsilon_end": -0.1}, "model.init_args.exploration.epsilon_end is -0.1"),
        ({"epsilon_decay_steps": 0}, "model.init_args.exploration.epsilon_decay_steps is 0"),
        ({"temperature": -1.0}, "model.init_args.exploration.temperature is -1.0"),
    ],
)
def test_bad_exploration(options, message):
    with pytest.raises(ValueError, match=message):
        Exploration(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env_steps_per_epoch": 0}, "data.init_args.env_steps_per_epoch is 0"),
        ({"updates_per_epoch": 0}, "data.init_args.updates_per_epoch is 0"),
        ({"batch_size": 0}, "data.init_args.batch_size is 0"),
        ({"capacity": 0}, "data.init_args.capacity is 0"),
    ],
)
def test_bad_data(options, message):
    with pytest.raises(ValueError, match=message):
        corridor_data(**options)


def test_environment_and_network_must_fit_together():
    run = trainer(max_epochs=1)
    with pytest.raises(ValueError, match=r"model.init_args.num_features is 5, but .* have 4 numbers"):
        run.fit(dqn(num_features=5), datamodule=corridor_data())
    with pytest.raises(ValueError, match=r"model.init_args.actions .* the environment also offers \['walk east'\]"):
        run.fit(DQN(actions=["wait"], num_features=4), datamodule=corridor_data())
    with pytest.raises(ValueError, match=r"model.init_args.observe is array"):
        dqn().features(seen("no numbers here"))


def test_the_data_module_and_the_module_must_fit_together():
    from rl_support import EndingPolicy

    from lit_agentrl.algorithms import GRPO

    with pytest.raises(ValueError, match=r"model.class_path: GRPO does not learn from replay"):
        trainer(max_epochs=1).fit(GRPO(EndingPolicy()), datamodule=corridor_data())
    with pytest.raises(ValueError, match=r"model.class_path: DQN trains no language model"):
        trainer(max_epochs=1).fit(dqn(), datamodule=parity_data())


def test_nothing_to_learn_from_is_said():
    data = ReplayDataModule(
        {"class_path": "q_envs.Corridor", "init_args": {"limit": 1, "silent": True}}, max_concurrent_episodes=2, seed=0
    )
    with pytest.raises(RuntimeError, match="rollout 0 left no transition to learn from"):
        trainer(max_epochs=1).fit(dqn(), datamodule=data)
