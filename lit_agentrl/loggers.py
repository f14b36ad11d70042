"""Loggers that fit a run folder and survive being killed."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only

LOGGERS = ("csv", "tensorboard", "wandb")


class MetricsCSVLogger(Logger):
    """`RUN/metrics.csv`: one row a step, one column a metric, flushed at once.

    Unlike Lightning's CSV logger it keeps what is there: a resumed run drops the rows after its checkpoint, which it
    is about to write again, and appends. Steps never go backwards.
    """

    def __init__(self, run_dir: str | Path) -> None:
        super().__init__()
        self.path = Path(run_dir) / "metrics.csv"
        self._columns: list[str] = []
        self._row: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """Name of the logger."""
        return "csv"

    @property
    def version(self) -> str:
        """Always empty: the run folder is the version."""
        return ""

    @property
    @rank_zero_experiment
    def experiment(self) -> Path:
        """The file."""
        return self.path

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the resolved configuration lies beside, in `config.yaml`."""

    @rank_zero_only
    def resume(self, step: int) -> None:
        """Drop the rows that come after a step."""
        if not self.path.exists():
            return
        with self.path.open(newline="") as file:
            reader = csv.DictReader(file)
            self._columns = list(reader.fieldnames or [])
            rows = [row for row in reader if (row.get("step") or "").isdigit() and int(row["step"]) <= step]
        self._rewrite(rows)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write one row, adding columns as they turn up."""
        row: dict[str, Any] = {"step": step, **metrics}
        new = [name for name in row if name not in self._columns]
        if new:
            rows = self._read()
            self._columns += new
            self._rewrite(rows)
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def _read(self) -> list[dict[str, Any]]:
        if not self._columns or not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            return list(csv.DictReader(file))

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(temporary, self.path)


def make_loggers(names: list[str], run_dir: Path, *, resumed: bool) -> list[Logger]:
    """Return the loggers of a run, writing into its folder.

    Args:
        names: Some of `csv`, `tensorboard`, `wandb`.
        run_dir: Folder of the run.
        resumed: Whether the run goes on; W&B then continues the same run.

    Raises:
        ValueError: A name is unknown.
    """
    loggers: list[Logger] = []
    for name in names:
        if name == "csv":
            loggers.append(MetricsCSVLogger(run_dir))
        elif name == "tensorboard":
            loggers.append(TensorBoardLogger(run_dir, name="tensorboard", version=""))
        elif name == "wandb":
            loggers.append(_wandb(run_dir, resumed=resumed))
        else:
            raise ValueError(f"loggers: {name!r} is unknown; accepted are {', '.join(LOGGERS)}")
    return loggers


def _wandb(run_dir: Path, *, resumed: bool) -> WandbLogger:
    import wandb

    # Without a key W&B would stop and ask; what is recorded offline can be synced later.
    if "WANDB_MODE" not in os.environ and not wandb.api.api_key:
        os.environ["WANDB_MODE"] = "offline"
    offline = os.environ.get("WANDB_MODE") in ("offline", "dryrun")
    identity = run_dir / "wandb_id.txt"
    if not (resumed and identity.exists()):
        identity.write_text(wandb.util.generate_id())
    logger = WandbLogger(
        name=run_dir.name,
        save_dir=str(run_dir),
        project=os.environ.get("WANDB_PROJECT", "lit_agentrl"),
        id=identity.read_text().strip(),
        resume=None if offline else "allow",
        offline=offline,
    )
    experiment = logger.experiment
    for axis in ("progress/rollouts", "progress/episodes", "progress/tokens", "progress/env_steps"):
        experiment.define_metric(axis)
    for phase in ("rollout", "train", "val", "tokens"):
        experiment.define_metric(f"{phase}/*", step_metric="progress/rollouts", step_sync=True)
    return logger
