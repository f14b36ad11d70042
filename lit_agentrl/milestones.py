"""Held-out success at the turning points of a run, and as the result of an evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lit_agentrl.reporting.files import write_atomically


class Milestones:
    """The record, kept in `RUN/milestones.json`."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "milestones.json"
        self._entries: list[dict[str, Any]] = json.loads(self._path.read_text()) if self._path.exists() else []

    def count(self, *, step: int) -> int:
        """Return how many milestones were recorded at a step."""
        return sum(entry["step"] == step for entry in self._entries)

    def has(self, name: str, *, step: int) -> bool:
        """Say whether a milestone has been recorded at a step."""
        return any(entry["name"] == name and entry["step"] == step for entry in self._entries)

    def record(self, name: str, metrics: Mapping[str, Any], *, step: int) -> None:
        """Write down the success of the latest validation."""
        if "val/success" not in metrics:
            return
        entry = {"name": name, "step": step, **_entry("val", metrics)}
        self._entries = [known for known in self._entries if known["name"] != name] + [entry]
        write_atomically(self._path, json.dumps(self._entries, indent=1) + "\n")

    def print(self, run_dir: Path) -> None:
        """Print the table, if there were episodes to count, and what to do next."""
        console = Console()
        console.print()
        if self._entries:
            console.print(_table("held-out success", "after", self._entries))
        shown = _shortest(run_dir)
        console.print(f"\nThe run lies in {shown}. Next:", highlight=False, markup=False)
        commands = [
            f"python -m lit_agentrl view {shown}",
            f"python -m lit_agentrl export {shown} --out exported",
            f"tensorboard --logdir {shown}",
        ]
        if not (run_dir / "tokenizer").is_dir():  # no language model, nothing to export
            del commands[1]
        for command in commands:
            console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)


def print_result(metrics: Mapping[str, Any], *, folder: Path, checkpoint: str | None) -> None:
    """Print what `validate` or `test` measured, and keep it in `result.json`.

    Args:
        metrics: The trainer's metrics, `val/…` or `test/…`.
        folder: Where the evaluation writes.
        checkpoint: What was evaluated.
    """
    values = {name: float(value) for name, value in metrics.items()}
    if not values:
        return
    phase = "test" if any(name.startswith("test/") for name in values) else "val"
    episodes = f"{phase}/success" in values
    if episodes:
        Console().print(_table("held-out success", "split", [{"name": phase, **_entry(phase, metrics)}]))
    else:
        for name, value in sorted(values.items()):
            print(f"{name:<24} {value:.4g}")
    record = {
        "checkpoint": checkpoint,
        "metrics": {name: value if math.isfinite(value) else None for name, value in values.items()},
    }
    write_atomically(folder / "result.json", json.dumps(record, indent=1) + "\n")
    if episodes:
        print(f"trajectories: python -m lit_agentrl view {_shortest(folder)}")


def _entry(phase: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: float(metrics[f"{phase}/{key}"]) for key in ("success", "success_low", "success_high")}
    return {"episodes": int(metrics[f"{phase}/episodes"]), **values}


def _table(title: str, first: str, entries: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for heading in ("success", "95 % interval (Wilson)", "episodes"):
        table.add_column(heading, justify="right")
    for entry in entries:
        interval = f"{entry['success_low']:.1%} to {entry['success_high']:.1%}"
        table.add_row(entry["name"], f"{entry['success']:.1%}", interval, str(entry["episodes"]))
    return table


def _shortest(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
