"""Every trajectory as a line of JSON in the run's folder."""

from __future__ import annotations

from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback

from lit_agentrl.reporting.records import TurnCredit, trajectories_path, trajectory_record, write_trajectories
from lit_agentrl.rollouts.batch import RolloutBatch, SegmentKind, TokenReason
from lit_agentrl.rollouts.hooks import RolloutHooks
from lit_agentrl.rollouts.rollout import Rollout


class TrajectoryLogger(RolloutHooks, Callback):
    """Writes `RUN/trajectories/{phase}-{rollout}.jsonl`: ids, log-probs, weights, advantages, rewards, stop reasons.

    A file is complete or absent. A resumed run that collects a rollout again writes the same file again.

    Args:
        run_dir: Folder of the run; default: the trainer's `default_root_dir`.
        enabled: Whether anything is written.
    """

    def __init__(self, run_dir: str | None = None, *, enabled: bool = True) -> None:
        self.run_dir = run_dir
        self.enabled = enabled

    def on_rollout_end(self, trainer: L.Trainer, pl_module: L.LightningModule, rollout: Rollout) -> None:
        """Write the rollout."""
        if not self.enabled:
            return
        folder = Path(self.run_dir or trainer.default_root_dir)
        path = trajectories_path(folder, phase=rollout.phase, rollout=rollout.index)
        if trainer.world_size > 1:
            path = path.with_name(f"{path.stem}-rank{trainer.global_rank}{path.suffix}")
        credits = turn_credits(rollout.batch) if rollout.batch is not None else {}
        write_trajectories(
            path,
            [
                trajectory_record(
                    trajectory,
                    phase=rollout.phase,
                    rollout=rollout.index,
                    credit=credits.get(number, []) if rollout.batch is not None else None,
                )
                for number, trajectory in enumerate(rollout.trajectories)
            ],
        )


def turn_credits(batch: RolloutBatch) -> dict[int, list[TurnCredit]]:
    """Return what training made of each turn, by trajectory number, in order of the turns."""
    credits: dict[int, list[TurnCredit]] = {}
    for segment, (trajectory, kind) in enumerate(zip(batch.trajectory.tolist(), batch.kind.tolist(), strict=True)):
        if kind != SegmentKind.TURN:
            continue
        span = batch.span(segment)
        reasons = batch.reason[span]
        sampled = reasons != TokenReason.CONTEXT
        credits.setdefault(trajectory, []).append(
            TurnCredit(
                weights=batch.weight[span][sampled].tolist(),
                advantages=batch.advantages[span][sampled].tolist(),
                reasons=[TokenReason(reason).name.lower() for reason in reasons[sampled].tolist()],
            )
        )
    return credits
