"""What happens while a dataloader is being read, where Lightning has no hook of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lightning as L

from lit_agentrl.rollouts.rollout import Rollout
from lit_agentrl.types import Phase, Trajectory

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback


class RolloutHooks:
    """Mix this into a Lightning callback to follow rollouts. All methods may be left out."""

    def on_rollout_start(self, trainer: L.Trainer, pl_module: L.LightningModule, phase: Phase, episodes: int) -> None:
        """Episodes are about to be collected."""

    def on_episode_end(self, trainer: L.Trainer, pl_module: L.LightningModule, trajectory: Trajectory) -> None:
        """One episode is over. Called in order of completion, which is not the order of identity."""

    def on_rollout_end(self, trainer: L.Trainer, pl_module: L.LightningModule, rollout: Rollout) -> None:
        """A rollout is complete; in training, credit has been given."""


def notify(trainer: L.Trainer, hook: str, *arguments: Any) -> None:
    """Call a hook of all callbacks that have it."""
    callbacks: list[Callback] = getattr(trainer, "callbacks", [])
    for callback in callbacks:
        if isinstance(callback, RolloutHooks):
            getattr(callback, hook)(trainer, trainer.lightning_module, *arguments)
