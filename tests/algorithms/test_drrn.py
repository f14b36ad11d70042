"""DRRN: actions are texts, and there are others in every state."""

import pytest
import torch
from q_support import ACTIONS, batch_of, cell, corridor_data, drrn, random_walk, seen, transition
from rl_support import trainer, weights

from lit_agentrl.algorithms import DRRN, Exploration
from lit_agentrl.policies.text_features import text_features
from lit_agentrl.rollouts.action_collector import ChoiceRequest
from lit_agentrl.rollouts.replay import ReplayBuffer


def request(observation, **options):
    return ChoiceRequest(
        identity=(0, 0, 0, 0), observation=observation, seed=1, **({"epsilon": 0.0, "temperature": 0.0} | options)
    )


def q(module, text, action):
    """Q as its definition says: the inner product of what the two encoders make of hashed words."""
    network = module.networks[0]
    state, features = (torch.from_numpy(text_features(words, 32).copy()) for words in (text, action))
    return float(network.state_encoder(state) @ network.action_encoder(features))


@pytest.fixture
def module():
    made = drrn()
    made.configure_model()
    return made.requires_grad_(False)


def test_values_are_inner_products_whatever_else_is_in_the_batch(module):
    sets = [["wait", "walk east"], ["dance"], ["walk east", "open the door", "wait"]]
    states = torch.stack([torch.from_numpy(text_features(f"cell {n}", 32).copy()) for n in range(3)])
    values = module.values_of_texts(states, sets)
    assert [len(row) for row in values] == [2, 1, 3]
    for number, (texts, row) in enumerate(zip(sets, values, strict=True)):
        assert row.tolist() == pytest.approx([q(module, f"cell {number}", text) for text in texts], abs=1e-6)


def test_the_best_of_the_valid_actions_is_chosen(module):
    texts = ["wait", "walk east", "dance", "open the door"]
    best = sorted(texts, key=lambda text: q(module, "cell 2", text))
    observations = [seen("cell 2", texts), seen("cell 2", best[:2]), seen("cell 2", best[:1])]
    assert module.choose([request(observation) for observation in observations]) == [best[3], best[1], best[0]]


def test_targets_go_over_the_actions_that_were_valid_next(module):
    module.target.load_state_dict({name: 2 * value for name, value in module.network.state_dict().items()})
    module.double_q = False
    after = ["dance", "walk west"]
    steps = [
        transition(seen("cell 0", ["wait"]), "wait", 0.0, seen("cell 9", ["never valid later"]), terminated=False),
        transition(seen("cell 1", ["go"]), "go", 1.0, seen("cell 2", after), terminated=False),
    ]
    batch = batch_of(module, steps)
    assert batch.next_actions.tolist() == [[1, -1, -1, -1], [3, 4, -1, -1]]
    network = module.networks[1]
    features = [torch.from_numpy(text_features(text, 32).copy()) for text in ("cell 2", *after)]
    best = max(float(network.state_encoder(features[0]) @ network.action_encoder(action)) for action in features[1:])
    _, terms = module.loss(batch.select(slice(1, 2)))
    assert float(terms["q_target"]) == pytest.approx(1.0 + module.gamma * best, abs=1e-6)


def test_the_state_is_the_last_part_of_the_last_message(module):
    assert module.features(seen("cell 1")).tolist() == text_features("cell 1", 32).tolist()
    opening = corridor_opening()
    assert len(opening.messages[0].content) == 2
    assert module.features(opening).tolist() == text_features("cell 0", 32).tolist()


def corridor_opening():
    from q_envs import Corridor

    env = Corridor()
    return env.reset(env.sample_task(0, "train"))


def test_features_are_the_same_for_the_same_words():
    one, same, other, none = (text_features(text, 64) for text in ("Go East!", "go  east !", "east go!", " "))
    assert one.tolist() == same.tolist() != other.tolist()  # pairs of words know the order
    assert float((one * one).sum()) == pytest.approx(1.0)
    assert not none.any()


def test_it_learns_a_corridor_of_texts():
    data = corridor_data(env={"length": 5, "limit": 16}, env_steps_per_epoch=160, updates_per_epoch=50)
    module = drrn(
        gamma=0.9,
        target_tau=0.1,
        exploration=Exploration(epsilon_start=1.0, epsilon_end=0.1, epsilon_decay_steps=500, temperature=0.01),
    )
    run = trainer(max_epochs=4, limit_val_batches=1.0, check_val_every_n_epoch=4)
    run.fit(module, datamodule=data)
    assert float(run.callback_metrics["val/success"]) == 1.0


def test_only_the_q_network_moves_until_the_target_is_due():
    module = drrn(target_every_n_steps=100)
    module.configure_model()
    before = weights(module)
    trainer(max_epochs=1).fit(module, datamodule=corridor_data())
    moved = {name for name, value in weights(module).items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if name.startswith("network.")}


@pytest.mark.parametrize("double_q", [True, False])
def test_micro_batches_do_not_change_the_gradient(double_q):
    module = drrn(double_q=double_q)
    module.configure_model()
    module.double()
    batch = batch_of(module, random_walk(23))

    def gradient(rows):
        module.micro_batch_rows = rows
        module.zero_grad()
        for piece in module.pieces(batch, batch.weight != 0):
            module.loss(piece)[0].backward()
        return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])

    whole = gradient(1000)
    assert whole.norm() > 0
    for rows in (1, 4, 22):
        assert float((gradient(rows) - whole).norm() / whole.norm()) < 1e-6


def test_a_checkpoint_keeps_what_the_numbers_mean(module):
    module.columns(random_walk(5))
    checkpoint = checkpointed(module)
    other = drrn()
    other.configure_model()
    other.on_load_checkpoint(checkpoint)
    other.load_state_dict(module.state_dict())
    texts = checkpoint["replayed_actions"]
    assert set(texts) <= set(ACTIONS)
    assert other.action_numbers([*reversed(texts), "new"]) == [*reversed(range(len(texts))), len(texts)]
    numbers = torch.arange(len(texts)).unsqueeze(0)
    state = torch.from_numpy(text_features("cell 1", 32).copy()).unsqueeze(0)
    one, two = (m.values_of_numbers(m.networks[0], state, numbers) for m in (module, other))
    assert torch.equal(one, two)


def test_actions_that_left_the_buffer_are_forgotten_and_the_others_keep_their_values(module, monkeypatch):
    monkeypatch.setattr("lit_agentrl.algorithms.drrn._FULL", 20)
    module._full_at = 20
    replay = ReplayBuffer(4)

    def values():
        rows = replay.rows(torch.arange(len(replay)))
        numbers = torch.cat([rows["action"].unsqueeze(1), rows["next_actions"]], dim=1)
        found = module.values_of_numbers(module.networks[0], rows["state"], numbers)
        return torch.where(numbers >= 0, found, 0.0)

    sizes = []
    for step in range(60):
        after = seen(f"cell {step + 1}", actions=(f"go {step + 1}", "wait", f"look {step}"))
        replay.add(module.columns([transition(seen(f"cell {step}"), f"go {step}", 0.0, after)]))
        before = values()
        module.forget_unused(replay)
        torch.testing.assert_close(values(), before)
        sizes.append(len(checkpointed(module)["replayed_actions"]))
    assert len(set(sizes)) > 5
    assert max(sizes) <= 20


def checkpointed(module):
    checkpoint = {}
    module.on_save_checkpoint(checkpoint)
    return checkpoint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_action_features": 0}, "model.init_args.num_action_features is 0"),
        ({"hidden_sizes": ()}, "model.init_args.hidden_sizes is"),
        ({"max_actions": 0}, "model.init_args.max_actions is 0"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        DRRN(**options)


def test_environments_must_list_actions_and_not_too_many():
    with pytest.raises(ValueError, match=r"model.class_path: DRRN chooses among the actions"):
        trainer(max_epochs=1).fit(drrn(), datamodule=corridor_data(env={"lists": False}))
    with pytest.raises(ValueError, match=r"model.init_args.max_actions is 1, but the environment offers 2 actions"):
        drrn(max_actions=1).valid_actions(cell(0, ["a", "b"]))


def test_a_cut_episode_whose_last_state_lists_no_action_is_left_out(module):
    steps = [transition(cell(1, ACTIONS), "wait", 0.0, cell(2), terminated=False)] * 2
    assert len(module.columns(steps)["reward"]) == 0
