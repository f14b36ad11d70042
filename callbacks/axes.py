"""What a run has consumed, next to every validation result, so that results can be plotted against it."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.callbacks import Callback


class ProgressAxes(Callback):
    """Logs `progress/{rollouts,episodes,tokens,env_steps}` with each validation.

    Training batches carry these figures themselves.

    Attributes:
        validated_at: Optimizer steps done at the latest validation inside `fit`; -1 before the first.
    """

    def __init__(self) -> None:
        self.validated_at = -1

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the axes."""
        if trainer.state.fn == "fit":
            self.validated_at = trainer.global_step
        progress = getattr(getattr(trainer, "datamodule", None), "progress", None)
        if progress is not None:
            pl_module.log_dict(progress.metrics(), rank_zero_only=True)
