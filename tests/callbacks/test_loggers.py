"""The run folder's loggers."""

import csv

import pytest

from lit_agentrl.loggers import MetricsCSVLogger, make_loggers


def rows(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_columns_are_added_as_they_turn_up(tmp_path):
    logger = MetricsCSVLogger(tmp_path)
    logger.log_metrics({"val/success": 0.5}, step=0)
    logger.log_metrics({"train/loss": 1.5}, step=0)
    assert rows(tmp_path) == [
        {"step": "0", "val/success": "0.5", "train/loss": ""},
        {"step": "0", "val/success": "", "train/loss": "1.5"},
    ]


def test_resuming_drops_what_will_be_logged_again(tmp_path):
    first = MetricsCSVLogger(tmp_path)
    first.log_metrics({"val/success": 0.0}, step=0)  # before training
    for step in range(4):
        first.log_metrics({"train/loss": float(step)}, step=step)
    second = MetricsCSVLogger(tmp_path)
    second.resume(next_step=2, rows_before_training=1)
    second.log_metrics({"train/loss": 20.0}, step=2)
    assert [(row["step"], row["train/loss"]) for row in rows(tmp_path)] == [
        ("0", ""),
        ("0", "0.0"),
        ("1", "1.0"),
        ("2", "20.0"),
    ]


def test_resuming_before_the_first_checkpoint_keeps_evaluations_only(tmp_path):
    first = MetricsCSVLogger(tmp_path)
    first.log_metrics({"val/success": 0.25}, step=0)
    first.log_metrics({"train/loss": 1.0}, step=0)
    second = MetricsCSVLogger(tmp_path)
    second.resume(next_step=0, rows_before_training=1)
    assert rows(tmp_path) == [{"step": "0", "val/success": "0.25"}]


def test_a_row_cut_off_by_a_kill_is_dropped(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,train/loss\n0,1.0\n1,2.0\n2")
    logger = MetricsCSVLogger(tmp_path)
    logger.resume(next_step=2)
    assert [row["step"] for row in rows(tmp_path)] == ["0", "1"]


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(ValueError, match="loggers: 'mlflow' is unknown; accepted are csv, tensorboard, wandb"):
        make_loggers(["mlflow"], tmp_path, resumed=False)


def test_wandb_offline_without_key_and_network(lit_agentrl, game_config, tmp_path):
    """One line in the configuration; nothing is asked, everything lies in the run's folder."""
    environment = {"WANDB_API_KEY": "", "HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    command = ("fit", "--config", game_config, "--run_dir", tmp_path / "run", "--loggers", "[csv,wandb]")
    outcome = lit_agentrl(*command, "--trainer.max_epochs", 1, env=environment)
    assert outcome.code == 0, outcome.output
    assert "api key" not in outcome.output.lower()
    (first,) = (tmp_path / "run/wandb").glob("offline-run-*")
    identity = (tmp_path / "run/wandb_id.txt").read_text()
    assert first.name.endswith(identity)

    outcome = lit_agentrl(*command, "--trainer.max_epochs", 2, "--resume", "true", env=environment)
    assert outcome.code == 0, outcome.output
    folders = list((tmp_path / "run/wandb").glob("offline-run-*"))
    assert folders
    assert all(folder.name.endswith(identity) for folder in folders), "the resumed run is another run"
