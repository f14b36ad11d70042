"""Reading run folders: `RUN/config.yaml`, `RUN/metrics.csv`, and the `ablation.json` of a folder of runs."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

ABLATION_FILE = "ablation.json"
# Where a run writes, which seed it has, what it is continued from: these make no variant.
_NO_VARIANT = {
    "seed_everything",
    "run_dir",
    "ckpt_path",
    "save_dir",
    "default_root_dir",
    "dirpath",
    "log_dir",
    "logger",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run as far as its folder tells."""

    folder: Path
    variant: str
    seed: int | None
    state: str = "done"
    """`done` unless an ablation recorded `pending`, `running` or `failed`."""
    cause: str = ""


def read_metric(folder: Path, metric: str) -> tuple[float | None, int | None]:
    """Return the last value of a metric and the last step that the run logged anything at.

    Cells are sparse: each logged row fills only some columns. Non-finite values are values.
    """
    value, last_step = None, None
    path = folder / "metrics.csv"
    if not path.is_file():
        return None, None
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row.get("step"):
                last_step = max(last_step or 0, int(float(row["step"])))
            if row.get(metric):
                value = float(row[metric])
    return value, last_step


def metric_names(folder: Path) -> list[str]:
    """Return the columns of a run's metrics, sorted."""
    path = folder / "metrics.csv"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return sorted(set(next(csv.reader(file), [])) - {"step", "epoch"})


def read_config(folder: Path) -> dict[str, Any]:
    """Return a run's configuration with dotted keys; empty when there is none.

    Raises:
        ValueError: If the file is not YAML.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        return {}
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    return dict(_flatten(config, ""))


def find_runs(folders: Sequence[Path], *, by: str | None = None) -> list[Run]:
    """Return the runs of run folders and of folders of runs, each with its variant and seed.

    A variant is, in this order: the value of the configuration key `by`; what `ablation.json` says; the folder's name
    in `VARIANT/seed-N/`; the configuration keys in which the runs differ.

    Raises:
        ValueError: If a folder holds no run, or a run has no configuration key `by`.
    """
    named: list[Run] = []
    unnamed: list[Path] = []
    for folder in folders:
        if (folder / ABLATION_FILE).is_file():
            named.extend(read_ablation(folder))
        elif _is_run(folder):
            recorded = [run for run in _recorded_beside(folder) if run.folder.resolve() == folder.resolve()]
            if recorded:
                named.extend(recorded)
            else:
                unnamed.append(folder)
        elif children := sorted(child.parent for child in folder.glob("*/seed-*/config.yaml")):
            named.extend(Run(folder=child, variant=child.parent.name, seed=_seed(child)) for child in children)
        else:
            raise ValueError(
                f"{folder} is neither a run (config.yaml, metrics.csv) nor a folder of VARIANT/seed-N runs"
            )
    if by is not None:
        runs = named + [Run(folder=folder, variant="", seed=_seed(folder)) for folder in unnamed]
        return [replace(run, variant=f"{by}={_value_of(run.folder, by)}") for run in runs]
    return named + _by_differences(unnamed)


def read_ablation(folder: Path) -> list[Run]:
    """Return the runs that an ablation recorded, in its order.

    Raises:
        ValueError: If `ablation.json` is damaged.
    """
    path = folder / ABLATION_FILE
    try:
        return [
            Run(
                folder=folder / entry["folder"],
                variant=entry["variant"],
                seed=entry["seed"],
                state=entry["state"],
                cause=entry["cause"],
            )
            for entry in json.loads(path.read_text(encoding="utf-8"))["runs"]
        ]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the record of an ablation: {error!r}") from error


def _is_run(folder: Path) -> bool:
    return (folder / "metrics.csv").is_file() or (folder / "config.yaml").is_file()


def _recorded_beside(folder: Path) -> list[Run]:
    """The ablation that a single run folder `OUT/VARIANT/seed-N` belongs to, if any."""
    out = folder.resolve().parent.parent
    return read_ablation(out) if (out / ABLATION_FILE).is_file() else []


def _seed(folder: Path) -> int | None:
    seed = read_config(folder).get("seed_everything")
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else None


def _value_of(folder: Path, key: str) -> Any:
    config = read_config(folder)
    if not config:
        return "?"  # a run that failed before it wrote its configuration is named all the same
    if key in config:
        return config[key]
    inner = {name: value for name, value in config.items() if name.startswith(f"{key}.")}
    if not inner:
        raise ValueError(f"--by {key}: {folder / 'config.yaml'} has no such key")
    return inner.get(f"{key}.class_path", json.dumps(inner, sort_keys=True, default=str))


def _by_differences(folders: Sequence[Path]) -> list[Run]:
    """Name each run after the keys in which the given runs differ."""
    configs = [
        {key: value for key, value in read_config(folder).items() if not _NO_VARIANT & set(key.split("."))}
        for folder in folders
    ]
    keys = sorted({key for config in configs for key in config})
    differing = [key for key in keys if len({repr(config.get(key)) for config in configs}) > 1]
    # The last part of a dotted key is enough where it is unambiguous.
    short = {key: key.rsplit(".", 1)[-1] for key in differing}
    names = list(short.values())
    labels = {key: label if names.count(label) == 1 else key for key, label in short.items()}
    return [
        Run(
            folder=folder,
            variant=", ".join(f"{labels[key]}={config.get(key)}" for key in differing) or "all",
            seed=_seed(folder),
        )
        for folder, config in zip(folders, configs, strict=True)
    ]


def _flatten(value: Any, prefix: str) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flatten(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _flatten(item, f"{prefix}.{index}")
    elif prefix:
        yield prefix, value


def is_usable(value: float | None) -> bool:
    """Whether a final metric can enter a mean."""
    return value is not None and math.isfinite(value)
