"""Checkpoints at rollout boundaries: the last one to resume from, the best one to use."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint


class RunCheckpoint(Checkpoint):
    """Keeps `RUN/checkpoints/last.ckpt` and, when a validation beats all before it, `best.ckpt`.

    Both are written beside and then moved into place, so a full disk or a killed process leaves the one before intact.
    Checkpoints are taken at the end of an epoch, which is a rollout boundary: a resumed run collects the next rollout
    exactly as the interrupted one did.

    Args:
        monitor: Metric that decides which is best; its first best value wins ties.
        mode: Whether more or less of it is better.
        every_n_rollouts: How often `last.ckpt` is written; the last epoch always is.
        enabled: Whether anything is written.
    """

    def __init__(
        self,
        monitor: str = "val/success",
        *,
        mode: str = "max",
        every_n_rollouts: int = 1,
        enabled: bool = True,
    ) -> None:
        if mode not in ("max", "min"):
            raise ValueError(f"checkpoint.mode is {mode!r}: it must be max or min")
        if every_n_rollouts < 1:
            raise ValueError(f"checkpoint.every_n_rollouts is {every_n_rollouts}: it must be at least 1")
        self.monitor = monitor
        self.mode = mode
        self.every_n_rollouts = every_n_rollouts
        self.enabled = enabled
        self.best_score: float | None = None
        self.best_epoch: int | None = None
        self._improved = False

    def folder(self, trainer: L.Trainer) -> Path:
        """Return where the checkpoints lie."""
        return Path(trainer.default_root_dir) / "checkpoints"

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Remember whether this validation is the best so far."""
        value = trainer.callback_metrics.get(self.monitor)
        if not self.enabled or value is None or trainer.state.fn != "fit":
            return
        score = float(value)
        if not math.isfinite(score):
            return
        better = self.best_score is None or (score > self.best_score if self.mode == "max" else score < self.best_score)
        if better:
            self.best_score, self.best_epoch, self._improved = score, trainer.current_epoch, True

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write what is due.

        Raises:
            FloatingPointError: A weight is not finite. The files are those of the last rollout before.
        """
        if not self.enabled:
            return
        done = trainer.current_epoch + 1
        _check_finite(trainer, pl_module)
        if self._improved:
            self._improved = False
            trainer.save_checkpoint(self.folder(trainer) / "best.ckpt", weights_only=True)
        if done % self.every_n_rollouts == 0 or done == trainer.max_epochs or trainer.should_stop:
            trainer.save_checkpoint(self.folder(trainer) / "last.ckpt")

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know."""
        return {"best_score": self.best_score, "best_epoch": self.best_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self.best_score = state_dict["best_score"]
        self.best_epoch = state_dict["best_epoch"]


def _check_finite(trainer: L.Trainer, module: L.LightningModule) -> None:
    """Refuse to put diverged weights in the place of good ones; all ranks stop together."""
    bad = [name for name, weight in module.named_parameters() if not bool(torch.isfinite(weight).all())]
    if int(trainer.strategy.reduce(torch.tensor(len(bad), device=module.device), reduce_op="sum")):
        which = f"{bad[0]} and {len(bad) - 1} more" if len(bad) > 1 else "".join(bad) or "those of another rank"
        raise FloatingPointError(
            f"after optimizer step {trainer.global_step} weights are not finite ({which}); the checkpoints are of "
            "an earlier rollout: lower model.init_args.optimizer.lr, and resume from the last one"
        )
