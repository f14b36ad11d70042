"""The progress bar, in a pipe and in a terminal, and the axes next to validations."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from callbacks import ProgressAxes, RolloutProgressBar
from lit_agentrl.rollouts.rollout import Progress
from lit_agentrl.types import Task, Trajectory


def trainer(**fields):
    defaults = {
        "is_global_zero": True,
        "current_epoch": 0,
        "max_epochs": 4,
        "num_training_batches": 2,
        "callback_metrics": {},
        "state": SimpleNamespace(fn="fit"),
        "global_step": 7,
    }
    return SimpleNamespace(**(defaults | fields))


def bar(*, terminal, enabled=True):
    shown = RolloutProgressBar(enabled=enabled)
    output = io.StringIO()
    shown._console = Console(file=output, force_terminal=terminal, width=100)
    return shown, output


def one_epoch(shown, fake):
    task = Task(id="t", family="f", split="train", seed=0)
    shown.on_fit_start(fake, None)
    shown.on_rollout_start(fake, None, "train", 2)
    for sample in range(2):
        shown.on_episode_end(fake, None, Trajectory(task=task, group=0, sample=sample, success=sample == 0, reward=0.5))
    metrics = {"rollout/success": 0.5, "rollout/reward": 0.5, "rollout/tokens_per_s": 120.0}
    shown.on_rollout_end(fake, None, SimpleNamespace(phase="train", metrics=metrics))
    shown.on_train_epoch_start(fake, None)
    shown.on_train_batch_end(fake, None, None, None, 0)
    shown.on_train_epoch_end(fake, None)


def test_a_pipe_gets_one_line_per_epoch_without_control_codes():
    shown, output = bar(terminal=False)
    one_epoch(shown, trainer())
    (line,) = output.getvalue().splitlines()
    assert line.startswith("epoch   1/4  success  50.0%  reward  0.50")
    assert line.endswith("0:00 left")
    assert "\x1b" not in line


def test_a_terminal_sees_episodes():
    shown, output = bar(terminal=True)
    one_epoch(shown, trainer())
    assert "rollout 1/4" in output.getvalue()
    assert "epoch   1/4" in output.getvalue()


@pytest.mark.parametrize("fake", [trainer(is_global_zero=False)])
def test_other_ranks_are_silent(fake):
    shown, output = bar(terminal=False)
    shown._trainer = fake
    one_epoch(shown, fake)
    assert output.getvalue() == ""


def test_switched_off():
    shown, output = bar(terminal=True, enabled=False)
    one_epoch(shown, trainer())
    assert output.getvalue() == ""


def test_axes_are_logged_with_validations():
    logged = {}
    module = SimpleNamespace(log_dict=lambda values, **_: logged.update(values))
    axes = ProgressAxes()
    progress = Progress(rollouts=2, episodes=48, tokens=100, env_steps=48)
    axes.on_validation_epoch_end(trainer(datamodule=SimpleNamespace(progress=progress)), module)
    assert logged == {
        "progress/rollouts": 2.0,
        "progress/episodes": 48.0,
        "progress/tokens": 100.0,
        "progress/env_steps": 48.0,
    }
    assert axes.validated_at == 7


def test_axes_need_no_rollouts():
    """A data module without progress, such as one of demonstrations, logs none."""
    ProgressAxes().on_validation_epoch_end(trainer(datamodule=None), SimpleNamespace())
