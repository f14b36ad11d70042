"""P37: logged steps never go backwards, and nothing is dropped after a run was killed and resumed."""

import csv
import json

import pytest

pytest.importorskip("tensorboard")


def rows(run):
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def resumed(_command_line, game_config, tmp_path_factory):
    """A run of three rollouts of two steps each, killed in the third rollout's first step and resumed."""
    folder = tmp_path_factory.mktemp("p37")
    init_args = {"marker": str(folder / "marker"), "event": "optimizer step", "count": 6}
    command = (
        *("fit", "--config", game_config, "--run_dir", folder / "run", "--loggers", "[csv,tensorboard]"),
        *("--trainer.callbacks", json.dumps([{"class_path": "saboteurs.Saboteur", "init_args": init_args}])),
    )
    assert _command_line.run(*command, log=folder / "log").code == -9
    killed = rows(folder / "run")
    outcome = _command_line.run(*command, "--resume", "true", log=folder / "log")
    assert outcome.code == 0, outcome.output
    return folder / "run", killed


def test_the_killed_run_had_logged_what_is_logged_again(resumed):
    """Otherwise the tests below would prove nothing: step 4 was logged, but lies after the last checkpoint."""
    _, killed = resumed
    assert [row["step"] for row in killed][-1] == "4"


def test_csv(resumed):
    run, _ = resumed
    steps = [int(row["step"]) for row in rows(run)]
    assert steps == sorted(steps)
    # Two evaluations before training; steps 0 to 5, one of them twice: the validation after the second rollout;
    # and the evaluation at the end, because the last rollout had no validation.
    assert steps == [0, 0, 0, 1, 2, 3, 3, 4, 5, 6]


def test_progress_never_goes_back(resumed):
    run, _ = resumed
    rollouts = [float(row["progress/rollouts"]) for row in rows(run) if row["progress/rollouts"]]
    assert rollouts == sorted(rollouts)
    assert rollouts[-1] == 3


def test_validations_carry_the_axes(resumed):
    run, _ = resumed
    validations = [row for row in rows(run) if row["val/success"]]
    # At the start, after the warm start, after the second rollout, at the end.
    assert [float(row["progress/rollouts"]) for row in validations] == [0, 0, 2, 3]
    assert [float(row["progress/episodes"]) for row in validations] == [0, 0, 48, 72]  # 6 groups of 4 a rollout


def test_tensorboard(resumed):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, _ = resumed
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    steps = [event.step for event in events.Scalars("train/loss")]
    assert steps == [0, 1, 2, 3, 4, 5]
    # Lightning repeats what the first batch of an epoch logged at the others.
    assert [event.step for event in events.Scalars("rollout/success")] == steps


def test_tensorboard_knows_the_hyperparameters(resumed):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    run, _ = resumed
    contents = EventAccumulator(str(run / "tensorboard")).Reload().summary_metadata
    raw = contents["_hparams_/session_start_info"].plugin_data.content
    hparams = plugin_data_pb2.HParamsPluginData.FromString(raw).session_start_info.hparams
    assert hparams["data/init_args/group_size"].number_value == 4
    assert hparams["model/class_path"].string_value == "lit_agentrl.algorithms.grpo.GRPO"
