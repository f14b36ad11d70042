"""P36 for value functions: replay buffer, priorities, target network and exploration survive a kill at any moment."""

import json

import pytest
from resumed import assert_same, checkpoint, columns, trajectories

CONFIG = """
seed_everything: 3
milestones: true
trainer: {max_epochs: 3, check_val_every_n_epoch: 2}
env: {class_path: q_envs.Corridor, init_args: {length: 5}}
model:
  class_path: lit_agentrl.algorithms.drrn.DRRN
  init_args:
    num_features: 32
    num_action_features: 32
    hidden_sizes: [8]
    target_tau: 1.0
    target_every_n_steps: 5
    exploration: {epsilon_start: 1.0, epsilon_end: 0.1, epsilon_decay_steps: 150}
    optimizer: {lr: 1.0e-2}
data:
  class_path: datamodules.ReplayDataModule
  init_args: {env_steps_per_epoch: 60, updates_per_epoch: 6, batch_size: 16, capacity: 100, priority_alpha: 0.6,
              max_concurrent_episodes: 4, num_val_episodes: 6}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "corridor.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def reference(_command_line, config, tmp_path_factory):
    """The run that nobody killed."""
    folder = tmp_path_factory.mktemp("reference")
    outcome = _command_line.run("fit", "--config", config, "--run_dir", folder / "run", log=folder / "log")
    assert outcome.code == 0, outcome.output
    return folder / "run"


def test_the_reference_learns_something(reference):
    """Otherwise equal weights would prove nothing."""
    saved = checkpoint(reference)
    replay = saved["ReplayDataModule"]["replay"]
    assert replay["added"] >= 180
    assert len(replay["columns"]["reward"]) == 100
    assert replay["columns"]["reward"].any()
    assert replay["priorities"].unique().numel() > 3
    assert set(saved["replayed_actions"]) == {"wait", "walk east", "walk west"}
    assert (
        float([row for row in columns(reference / "metrics.csv") if row["train/grad_norm"]][-1]["train/grad_norm"]) > 0
    )


@pytest.mark.parametrize(
    ("event", "count"),
    [
        ("optimizer step", 9),  # the third of the second epoch: priorities have moved, the checkpoint has the old ones
        pytest.param("episode", 3, marks=pytest.mark.slow),  # before the first checkpoint
        pytest.param("episode", 12, marks=pytest.mark.slow),
        pytest.param("checkpoint", 1, marks=pytest.mark.slow),  # while it is being written
        pytest.param("validation episode", 8, marks=pytest.mark.slow),
        pytest.param("epoch", 3, marks=pytest.mark.slow),
    ],
)
def test_killed_and_resumed(lit_agentrl, config, reference, tmp_path, event, count):
    run = tmp_path / "run"
    init_args = {"marker": str(tmp_path / "marker"), "event": event, "count": count}
    callbacks = json.dumps([{"class_path": "saboteurs.Saboteur", "init_args": init_args}])
    command = ["fit", "--config", config, "--run_dir", run, "--trainer.callbacks", callbacks]
    killed = lit_agentrl(*command)
    assert killed.code == -9, killed.output
    resumed = lit_agentrl(*command, "--resume", "true")
    assert resumed.code == 0, resumed.output
    assert_same(checkpoint(run), checkpoint(reference))
    assert columns(run / "metrics.csv") == columns(reference / "metrics.csv")
    assert trajectories(run) == trajectories(reference)
    assert (run / "milestones.json").read_text() == (reference / "milestones.json").read_text()
