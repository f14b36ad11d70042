"""A progress bar that goes on through rollouts and evaluations, where Lightning's own stands still."""

from __future__ import annotations

import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from lit_agentrl.rollouts.hooks import RolloutHooks
from lit_agentrl.rollouts.rollout import Rollout
from lit_agentrl.types import Phase, Trajectory

_NAMES: dict[str, str] = {"train": "rollout", "val": "validation", "test": "test", "predict": "predict"}


class RolloutProgressBar(RolloutHooks, ProgressBar):
    """Shows episodes as they end, optimizer steps, success, reward and speed, then one line per epoch that stays.

    Without a terminal only the lines are printed, so that logs stay readable.

    Args:
        enabled: Whether anything is shown.

    Attributes:
        epoch_name: What an epoch is called where there are no rollouts.
    """

    epoch_name: str = "epoch"

    def __init__(self, *, enabled: bool = True) -> None:
        super().__init__()
        self._enabled = enabled
        self._console = Console()
        self._bar: Progress | None = None
        self._task: Any = None
        self._started = time.monotonic()
        self._first_epoch = 0
        self._successes = 0
        self._valid = 0
        self._tokens = 0
        self._rewards = 0.0
        self._collect_started = 0.0
        self._line: dict[str, str] = {}

    def disable(self) -> None:
        """Show nothing."""
        self._enabled = False

    def enable(self) -> None:
        """Show progress."""
        self._enabled = True

    @property
    def is_enabled(self) -> bool:
        """Whether anything is shown."""
        return self._enabled

    @property
    def _shown(self) -> bool:
        return self._enabled and (self._trainer is None or self.trainer.is_global_zero)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self._started = time.monotonic()
        self._first_epoch = trainer.current_epoch

    def on_rollout_start(self, trainer: L.Trainer, pl_module: L.LightningModule, phase: Phase, episodes: int) -> None:
        """Begin a bar of episodes."""
        self._successes = self._valid = self._tokens = 0
        self._rewards = 0.0
        self._collect_started = time.monotonic()
        name = _NAMES[phase]
        if phase == "train" and trainer.max_epochs and trainer.max_epochs > 0:
            name = f"rollout {trainer.current_epoch + 1}/{trainer.max_epochs}"
        self._begin(name, episodes)

    def on_episode_end(self, trainer: L.Trainer, pl_module: L.LightningModule, trajectory: Trajectory) -> None:
        """Advance by one episode."""
        if trajectory.status != "failed":
            self._valid += 1
            self._successes += trajectory.success
            self._rewards += trajectory.reward
        self._tokens += trajectory.num_tokens
        speed = self._tokens / max(time.monotonic() - self._collect_started, 1e-9)
        valid = max(self._valid, 1)
        self._advance(f"success {self._successes / valid:.0%}  reward {self._rewards / valid:.2f}  {speed:.0f} tok/s")

    def on_rollout_end(self, trainer: L.Trainer, pl_module: L.LightningModule, rollout: Rollout) -> None:
        """Keep the rollout's figures for the epoch's line."""
        self._end()
        if rollout.phase == "train":
            metrics = rollout.metrics
            self._line = {
                "rollout": f"success {metrics['rollout/success']:6.1%}  reward {metrics['rollout/reward']:5.2f}",
                "speed": (
                    f"{metrics['rollout/steps_per_s']:4.0f} steps/s"
                    if "rollout/steps_per_s" in metrics
                    else f"{metrics['rollout/tokens_per_s']:4.0f} tok/s"
                ),
            }
            self._begin("optimize", int(trainer.num_training_batches))

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin a bar of steps where there is no rollout (supervised training)."""
        if self._bar is None:
            name = f"{self.epoch_name} {trainer.current_epoch + 1}/{trainer.max_epochs}"
            self._begin(name, int(trainer.num_training_batches))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Advance by one optimizer step."""
        loss = trainer.callback_metrics.get("train/loss")
        self._advance("" if loss is None else f"loss {float(loss):.4f}")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print the result of a validation, inside the epoch's line when there is one."""
        self._end()
        metrics = trainer.callback_metrics
        if "val/success" in metrics:
            text = (
                f"held-out {float(metrics['val/success']):6.1%} "
                f"[{float(metrics['val/success_low']):.1%}, {float(metrics['val/success_high']):.1%}]"
            )
        elif "val/reward_accuracy" in metrics:
            text = f"held-out accuracy {float(metrics['val/reward_accuracy']):6.1%}"
        else:
            return
        if trainer.state.fn == "fit":
            self._line["validation"] = text
        else:
            self._print(f"validation      {text}")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print the epoch's line."""
        self._end()
        parts = [f"{self.epoch_name} {trainer.current_epoch + 1:>3}/{trainer.max_epochs}"]
        parts += [self._line[key] for key in ("rollout", "validation", "speed") if key in self._line]
        if "rollout" not in self._line and "train/loss" in trainer.callback_metrics:
            parts.insert(1, f"loss {float(trainer.callback_metrics['train/loss']):.4f}")
        spent = time.monotonic() - self._started
        if trainer.max_epochs and trainer.max_epochs > 0:
            done = trainer.current_epoch + 1 - self._first_epoch
            left = spent / done * (trainer.max_epochs - trainer.current_epoch - 1)
            parts.append(f"{_clock(left)} left")
        self._print("  ".join(parts))
        self._line = {}

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Take the bar away before a traceback is printed."""
        self._end()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Take the bar away."""
        self._end()

    def _begin(self, name: str, total: int) -> None:
        self._end()
        if not self._shown or not self._console.is_terminal:
            return
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<16}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(name, total=total, figures="")
        self._bar.start()

    def _advance(self, figures: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, advance=1, figures=figures)

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, text: str) -> None:
        if self._shown:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
