"""Loggers that fit a run folder and survive being killed."""

from __future__ import annotations

import csv
import netrc
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
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
    def resume(self, *, next_step: int, rows_before_training: int = 0) -> None:
        """Drop what an earlier attempt logged and this one will log again.

        Args:
            next_step: First step that will be logged.
            rows_before_training: Rows at the top, of evaluations before the first step, that are kept in any case.
        """
        if not self.path.exists():
            return
        with self.path.open(newline="") as file:
            reader = csv.DictReader(file)
            self._columns = list(reader.fieldnames or [])
            rows = list(reader)
        kept = [
            row
            for number, row in enumerate(rows)
            if number < rows_before_training or ((row["step"] or "").isdigit() and int(row["step"]) < next_step)
        ]
        # Columns that only dropped rows had will come again; their order should not tell of the interruption.
        self._columns = [name for name in self._columns if name == "step" or any(row[name] for row in kept)]
        self._rewrite([{name: row[name] for name in self._columns} for row in kept])

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


class HyperparameterTensorBoardLogger(TensorBoardLogger):
    """TensorBoard, with the configuration under HPARAMS next to success in training and validation."""

    @rank_zero_only
    def log_hyperparams(self, params: Any, metrics: Any = None, step: int | None = None) -> None:
        """Write the configuration; the named metrics take their values from the curves of the same names."""
        from torch.utils.tensorboard.summary import hparams

        super().log_hyperparams(params, metrics={}, step=step)
        for summary in hparams(dict(_flat(params)), dict.fromkeys(("val/success", "rollout/success"), 0.0)):
            self.experiment._get_file_writer().add_summary(summary)


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    for key, value in params.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value if isinstance(value, bool | int | float | str) else str(value)


def make_loggers(names: list[str], run_dir: Path, *, resumed: bool, next_step: int | None = None) -> list[Logger]:
    """Return the loggers of a run, writing into its folder.

    Args:
        names: Some of `csv`, `tensorboard`, `wandb`.
        run_dir: Folder of the run.
        resumed: Whether the run goes on; W&B then continues the same run.
        next_step: First step that will be logged, if a checkpoint lies before it; TensorBoard hides later ones.

    Raises:
        ValueError: A name is unknown.
    """
    loggers: list[Logger] = []
    for name in names:
        if name == "csv":
            loggers.append(MetricsCSVLogger(run_dir))
        elif name == "tensorboard":
            loggers.append(
                HyperparameterTensorBoardLogger(run_dir, name="tensorboard", version="", purge_step=next_step)
            )
        elif name == "wandb":
            loggers.append(_wandb(run_dir, resumed=resumed))
        else:
            raise ValueError(f"loggers: {name!r} is unknown; accepted are {', '.join(LOGGERS)}")
    return loggers


def _wandb(run_dir: Path, *, resumed: bool) -> WandbLogger:
    """Return a W&B logger whose axes are the run's progress.

    Nothing is ever dropped on the server for a step that goes backwards, because no internal step is given: the axes
    are ordinary metrics. A resumed run logs what comes after its checkpoint a second time, with the same values.
    """
    mode = os.environ.get("WANDB_MODE")
    # Without a key W&B would stop and ask; what is recorded offline can be synced later.
    offline = mode in ("offline", "dryrun") or (mode is None and not _has_wandb_key())
    identity = run_dir / "wandb_id.txt"
    if not (resumed and identity.exists()) and getattr(rank_zero_only, "rank", 0) == 0:
        identity.write_text(uuid.uuid4().hex[:8])
    logger = WandbLogger(
        name=run_dir.name,
        save_dir=str(run_dir),
        project=os.environ.get("WANDB_PROJECT", "lit_agentrl"),
        id=identity.read_text().strip() if identity.exists() else None,
        resume=None if offline else "allow",
        offline=offline,
        mode="offline" if offline else mode,
    )
    experiment = logger.experiment
    for axis in ("progress/rollouts", "progress/episodes", "progress/tokens", "progress/env_steps"):
        experiment.define_metric(axis)
    for phase in ("rollout", "train", "val", "tokens"):
        experiment.define_metric(f"{phase}/*", step_metric="progress/rollouts", step_sync=True)
    return logger


def _has_wandb_key() -> bool:
    """Say whether a W&B key is at hand, without asking W&B, which would ask the user."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
        host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").partition("://")[2].strip("/")
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
