"""Value functions on the command line: no policy, no agent; what has no language model to work on says so."""

import json

import pytest
import yaml

CONFIG = """
seed_everything: 3
milestones: true
trainer: {max_epochs: 2, check_val_every_n_epoch: 2}
env: {class_path: q_envs.Corridor}
model:
  class_path: lit_agentrl.algorithms.dqn.DQN
  init_args: {actions: [wait, walk east, walk west], num_features: 4, hidden_sizes: [8]}
data:
  class_path: datamodules.ReplayDataModule
  init_args: {env_steps_per_epoch: 40, updates_per_epoch: 4, batch_size: 8, max_concurrent_episodes: 4,
              num_val_episodes: 4, num_test_episodes: 6}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "corridor.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def run(_command_line, config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("value")
    outcome = _command_line.run("fit", "--config", config, "--run_dir", folder / "run", log=folder / "log")
    assert outcome.code == 0, outcome.output
    return folder / "run"


def test_what_a_run_leaves(run):
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert not (run / "tokenizer").exists()
    assert yaml.safe_load((run / "config.yaml").read_text()).get("policy") is None
    assert [entry["name"] for entry in json.loads((run / "milestones.json").read_text())] == ["start", "DQN"]
    printed = (run.parent / "log").read_text()
    assert "steps/s" in printed
    assert "lit_agentrl export" not in printed


def test_its_trajectories_can_be_read(lit_agentrl, run):
    outcome = lit_agentrl("view", run, "--limit", 1)
    assert outcome.code == 0, outcome.output
    assert "no tokens: an action that was chosen" in outcome.output
    assert "assistant: wa" in outcome.output


def test_it_is_compared_and_tested_like_any_run(lit_agentrl, run):
    outcome = lit_agentrl("compare", run)
    assert outcome.code == 0, outcome.output
    outcome = lit_agentrl("test", "--config", run / "config.yaml", "--run_dir", run)
    assert outcome.code == 0, outcome.output
    assert json.loads((run / "test/result.json").read_text())["metrics"]["test/episodes"] == 6


def test_there_is_nothing_to_export(lit_agentrl, run, tmp_path):
    outcome = lit_agentrl("export", run, "--out", tmp_path / "exported")
    assert outcome.code != 0
    assert "trained no language model" in outcome.output
    assert "Traceback" not in outcome.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--warm_start.num_steps", 2),
            "error: warm_start.num_steps: demonstrations are shown by",
        ),
        (("--agent", "lit_agentrl.agents.tool_agent.ToolAgent"), "error: agent.class_path: ToolAgent speaks"),
        (("--model.init_args.actions", "[]"), "error: model.init_args.actions"),
        (("--data.init_args.max_new_tokens", 8), "data.init_args.max_new_tokens"),
    ],
)
def test_errors_are_one_line(lit_agentrl, config, tmp_path, options, message):
    outcome = lit_agentrl("fit", "--config", config, "--run_dir", tmp_path / "run", *options)
    assert outcome.code == 2
    assert message in outcome.output
    assert "Traceback" not in outcome.output


def test_a_language_model_algorithm_asks_for_its_policy(lit_agentrl, game_config, tmp_path):
    settings = yaml.safe_load(game_config.read_text())
    del settings["policy"]
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    outcome = lit_agentrl("fit", "--config", path, "--run_dir", tmp_path / "run")
    assert outcome.code == 2
    assert "error: policy: GRPO needs one; add it to the experiment file" in outcome.output
