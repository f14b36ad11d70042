"""P36: a run killed with signal 9 at any moment and resumed ends exactly like one that was never killed."""

import json

import pytest
from resumed import assert_same, checkpoint, columns, trajectories


def assert_same_run(run, reference):
    assert_same(checkpoint(run), checkpoint(reference))
    assert_same(checkpoint(run, "best")["state_dict"], checkpoint(reference, "best")["state_dict"])
    assert columns(run / "metrics.csv") == columns(reference / "metrics.csv")
    assert columns(run / "warm_start/metrics.csv") == columns(reference / "warm_start/metrics.csv")
    assert trajectories(run) == trajectories(reference)
    assert (run / "milestones.json").read_text() == (reference / "milestones.json").read_text()


@pytest.fixture(scope="module")
def reference(_command_line, game_config, tmp_path_factory):
    """The run that nobody killed."""
    folder = tmp_path_factory.mktemp("reference")
    outcome = _command_line.run("fit", "--config", game_config, "--run_dir", folder / "run", log=folder / "log")
    assert outcome.code == 0, outcome.output
    return folder / "run"


def sabotage(event, count, marker):
    init_args = {"marker": str(marker), "event": event, "count": count}
    return "--trainer.callbacks", json.dumps([{"class_path": "saboteurs.Saboteur", "init_args": init_args}])


def killed_policy(count, marker):
    init_args = {"marker": str(marker), "count": count}
    return "--policy", json.dumps({"class_path": "saboteurs.KilledPolicy", "init_args": init_args})


def kill_and_resume(lit_agentrl, command):
    killed = lit_agentrl(*command)
    assert killed.code == -9, killed.output
    resumed = lit_agentrl(*command, "--resume", "true")
    assert resumed.code == 0, resumed.output


def test_the_reference_learns_something(reference):
    """Otherwise equal weights would prove nothing."""
    first, *_, last = [row for row in columns(reference / "metrics.csv") if row["rollout/success"]]
    assert float(first["rollout/groups_with_spread"]) > 0
    assert float(first["train/grad_norm"]) > 0
    assert last["train/loss"] != ""


@pytest.mark.parametrize(
    ("event", "count"),
    [
        ("episode", 30),  # the sixth of 24 episodes of the second rollout
        ("optimizer step", 4),  # the second of the second rollout: gradients are there, weights are old
        ("checkpoint", 1),  # while the second checkpoint is being written
        pytest.param("episode", 5, marks=pytest.mark.slow),  # before the first checkpoint, after the warm start
        pytest.param("optimizer step", 1, marks=pytest.mark.slow),
        pytest.param("validation episode", 3, marks=pytest.mark.slow),  # in the evaluation before anything
        pytest.param("validation episode", 15, marks=pytest.mark.slow),  # in the one after the warm start
        pytest.param("validation episode", 30, marks=pytest.mark.slow),  # in the second epoch's validation
        pytest.param("checkpoint", 0, marks=pytest.mark.slow),
        pytest.param("epoch", 3, marks=pytest.mark.slow),  # at the end, the last checkpoint not yet written
    ],
)
def test_killed_in_training(lit_agentrl, game_config, reference, tmp_path, event, count):
    run = tmp_path / "run"
    command = ["fit", "--config", game_config, "--run_dir", run, *sabotage(event, count, tmp_path / "marker")]
    kill_and_resume(lit_agentrl, command)
    assert_same_run(run, reference)


@pytest.mark.parametrize("count", [10, pytest.param(24, marks=pytest.mark.slow)])
def test_killed_in_the_warm_start(lit_agentrl, game_config, reference, tmp_path, count):
    run = tmp_path / "run"
    command = ["fit", "--config", game_config, "--run_dir", run, *killed_policy(count, tmp_path / "marker")]
    kill_and_resume(lit_agentrl, command)
    assert_same_run(run, reference)


@pytest.mark.slow
def test_the_warm_start_is_not_repeated(lit_agentrl, game_config, tmp_path):
    """Killed before the first checkpoint: the warm start's result is read from RUN/warm_start/policy.pt."""
    run = tmp_path / "run"
    command = ["fit", "--config", game_config, "--run_dir", run, *sabotage("episode", 5, tmp_path / "marker")]
    assert lit_agentrl(*command).code == -9
    written = (run / "warm_start/metrics.csv").stat().st_mtime_ns
    assert lit_agentrl(*command, "--resume", "true", "--trainer.max_epochs", 1).code == 0
    assert (run / "warm_start/metrics.csv").stat().st_mtime_ns == written


@pytest.mark.slow
def test_killed_twice(lit_agentrl, game_config, reference, tmp_path):
    run = tmp_path / "run"
    command = ["fit", "--config", game_config, "--run_dir", run]
    assert lit_agentrl(*command, *sabotage("optimizer step", 3, tmp_path / "first")).code == -9
    assert lit_agentrl(*command, *sabotage("episode", 20, tmp_path / "second"), "--resume", "true").code == -9
    assert lit_agentrl(*command, "--resume", "true").code == 0
    assert_same_run(run, reference)
