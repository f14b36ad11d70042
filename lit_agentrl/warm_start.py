"""Before reinforcement learning: supervised steps on demonstrations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import torch

from callbacks.progress import RolloutProgressBar
from datamodules._environment import EnvironmentDataModule
from datamodules.demonstrations import DemonstrationDataModule
from lit_agentrl.algorithms.base import Algorithm
from lit_agentrl.algorithms.optimizer import OptimizerConfig
from lit_agentrl.algorithms.sft import SFT
from lit_agentrl.checkpointing import save_atomically
from lit_agentrl.loggers import MetricsCSVLogger


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Supervised fine-tuning on demonstrations of training tasks.

    Args:
        num_steps: Optimizer steps; 0 is no warm start.
        batch_size: Demonstrations per step.
        optimizer: AdamW and schedule.
    """

    num_steps: int = 0
    batch_size: int = 8
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(lr=1e-4, schedule="linear", warmup_steps=4)
    )

    def __post_init__(self) -> None:
        if self.num_steps < 0:
            raise ValueError(f"warm_start.num_steps is {self.num_steps}: it must be 0 (none) or more")
        if self.batch_size < 1:
            raise ValueError(f"warm_start.batch_size is {self.batch_size}: it must be at least 1")


def run_warm_start(
    settings: WarmStart,
    *,
    model: Algorithm,
    datamodule: EnvironmentDataModule,
    run_dir: Path,
    trainer_settings: Mapping[str, Any],
    show_progress: bool = True,
) -> None:
    """Train the model's policy on demonstrations, or load what an earlier attempt of the same run kept.

    Args:
        settings: How much and how.
        model: Owns the policy.
        datamodule: Its environment, agent and workers are used.
        run_dir: The run's folder; everything goes into `RUN/warm_start`.
        trainer_settings: The run's trainer arguments, for accelerator, strategy and precision.
        show_progress: Whether progress is shown.
    """
    folder = run_dir / "warm_start"
    kept = folder / "policy.pt"
    model.configure_model()
    if kept.exists():
        model.policy.load_state_dict(torch.load(kept, map_location="cpu", weights_only=True))
        return
    demonstrations = DemonstrationDataModule.beside(
        datamodule, batch_size=settings.batch_size, batches_per_epoch=settings.num_steps
    )
    learner = SFT(
        model.policy,
        optimizer=settings.optimizer,
        micro_batch_tokens=model.micro_batch_tokens,
        seed=model.run_seed,
    )
    progress = RolloutProgressBar(enabled=show_progress)
    progress.epoch_name = "warm start"
    kept_settings = ("accelerator", "devices", "num_nodes", "strategy", "precision")
    trainer = L.Trainer(
        **{key: trainer_settings[key] for key in kept_settings if trainer_settings.get(key) is not None},
        max_epochs=1,
        limit_val_batches=0,
        logger=MetricsCSVLogger(folder),
        callbacks=[progress],
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        log_every_n_steps=1,
    )
    trainer.fit(learner, datamodule=demonstrations)
    if trainer.is_global_zero:
        save_atomically(model.policy.state_dict(), kept)
    trainer.strategy.barrier()
