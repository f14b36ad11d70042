"""Every algorithm on a small task, 5 seeds each: success against steps, samples and seconds.

Runs the ablations named below (resumes where it was stopped) and writes `docs/results/algorithms.md`.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np

from lit_agentrl.reporting.runs import Run, read_ablation
from lit_agentrl.reporting.statistics import mean_interval
from lit_agentrl.sweeping.ablate import run_ablation
from lit_agentrl.sweeping.plan import AblationPlan, read_plan

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "runs/algorithms"
STEPS, EPISODES = 12, 1536
"""What GRPO takes: the common measure of runs that learn from rollouts."""


def plans() -> dict[str, AblationPlan]:
    """Return what is run, by the folder that it goes to."""
    experiments = ROOT / "configs/experiment"
    return {
        "rollouts": read_plan(ROOT / "configs/ablation/algorithms.yaml"),
        "offline": read_plan(ROOT / "configs/ablation/algorithms_offline.yaml"),
        "sft": AblationPlan(base=experiments / "tiny_sft.yaml", variants={"sft": ()}),
        "dqn": AblationPlan(base=experiments / "dqn_frozen_lake.yaml", variants={"dqn": ()}),
        "drrn": AblationPlan(base=experiments / "drrn_frozen_lake.yaml", variants={"drrn": ()}),
    }


def make_teacher(folder: Path) -> None:
    """Train a policy of another seed and export it, once."""
    if (folder / "config.json").exists():
        return
    run, command = folder.parent / "teacher-run", (sys.executable, "-m", "lit_agentrl")
    fit = ("fit", "--config", "configs/experiment/tiny.yaml", "--seed_everything", "100", "--run_dir", str(run))
    if not (run / "checkpoints/best.ckpt").exists():
        subprocess.run([*command, *fit], cwd=ROOT, check=True)
    subprocess.run([*command, "export", str(run), "--out", str(folder)], cwd=ROOT, check=True)


_KEPT = "\n## Notes"
"""What stands from here on in the page is written by hand and stays."""
_HEAD = f"""\
# All algorithms on one small task

`make experiment-algorithms` on {{date}}, {{machine}}, CPU, float32, one thread a run. {{seeds}} seeds; mean and
95 % interval (t) over them of the success on held-out episodes. Every algorithm runs with its file under
`configs/algorithm/` as shipped. Nothing was tuned for this table but the learning rates in those files: it
shows that each learns, not which is best. Seconds are the median wall clock of a run on a shared machine, warm
start and validations included; they are no comparison.

## From rollouts

`configs/experiment/tiny.yaml`: a model of 0.14 million weights, taught by 50 supervised steps to ask one of two
sources and to repeat the answer, finds out which one to trust. 12 rollouts of 128 episodes (DAPO draws more,
`archer_iql` takes 20), 200 held-out episodes. The columns after `final` are read off the curves: success after
{STEPS} optimizer steps, and after {EPISODES:,} episodes.

| algorithm | seeds | start | final | equal steps | equal samples | steps | episodes | s |
|---|---:|---:|---:|---:|---:|---:|---:|---:|"""
_OFFLINE = """
## From files, demonstrations and replay

Preferences: `configs/experiment/tiny_preferences.yaml`, the same policy after the same warm start, 256 pairs of
first replies, which say nothing of the second. SFT: `configs/experiment/tiny_sft.yaml`, from random weights.
DQN and DRRN: FrozenLake without slipping, one game, 50 held-out episodes.

| algorithm | seeds | start | final | steps | s |
|---|---:|---:|---:|---:|---:|"""


@dataclass(frozen=True)
class Curve:
    """What one run measured."""

    start: float
    """Success where learning began: after the warm start, if there was one."""
    steps: list[float]
    episodes: list[float]
    success: list[float]
    seconds: float
    """Wall clock, warm start and validations included."""

    @classmethod
    def of(cls, run: Run) -> Curve:
        """Read a run's folder."""
        with (run.folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["val/success"]]
        milestones = json.loads((run.folder / "milestones.json").read_text(encoding="utf-8"))
        before = [entry["success"] for entry in milestones if entry["step"] == 0]
        trained = [row for row in rows if float(row["step"]) > 0 or float(row.get("progress/episodes") or 0) > 0]
        return cls(
            start=before[-1],
            steps=[0.0, *(float(row["step"]) + 1 for row in trained)],
            episodes=[0.0, *(float(row.get("progress/episodes") or 0) for row in trained)],
            success=[before[-1], *(float(row["val/success"]) for row in trained)],
            seconds=(run.folder / "metrics.csv").stat().st_mtime - (run.folder / "config.yaml").stat().st_mtime,
        )


def curves(folder: Path) -> dict[str, list[Curve]]:
    """Return the finished runs of an ablation by variant."""
    found: dict[str, list[Curve]] = {}
    for run in read_ablation(folder):
        found.setdefault(run.variant, [])
        if run.state == "done":
            found[run.variant].append(Curve.of(run))
    return found


def report(seeds: int) -> str:
    """Return the page."""
    lines = [_HEAD.format(date=f"{date.today():%Y-%m-%d}", machine=platform.machine(), seeds=seeds)]
    for name, runs in curves(OUT / "rollouts").items():
        if not runs:
            lines.append(f"| {name} | 0 | not run | | | | | | |")
            continue
        cells = [
            name,
            str(len(runs)),
            f"{statistics.mean(run.start for run in runs):.1%}",
            _mean(run.success[-1] for run in runs),
            _mean(float(np.interp(STEPS, run.steps, run.success)) for run in runs),
            _mean(float(np.interp(EPISODES, run.episodes, run.success)) for run in runs),
            f"{statistics.mean(run.steps[-1] for run in runs):.0f}",
            f"{statistics.mean(run.episodes[-1] for run in runs):,.0f}",
            _seconds(runs),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append(_OFFLINE)
    for folder in ("offline", "sft", "dqn", "drrn"):
        for name, runs in curves(OUT / folder).items() if (OUT / folder).exists() else ():
            if runs:
                final, steps = _mean(run.success[-1] for run in runs), statistics.mean(run.steps[-1] for run in runs)
                start = statistics.mean(run.start for run in runs)
                lines.append(f"| {name} | {len(runs)} | {start:.1%} | {final} | {steps:.0f} | {_seconds(runs)} |")
            else:
                lines.append(f"| {name} | 0 | not run | | | |")
    return "\n".join(lines) + "\n"


def _mean(values: Iterable[float]) -> str:
    summary = mean_interval(list(values))
    if summary.low is None or summary.high is None:
        return f"{summary.mean:.1%}"
    # A share lies in [0, 1]; an interval over few seeds does not know that.
    return f"{summary.mean:.1%} ({max(summary.low, 0.0):.1%} to {min(summary.high, 1.0):.1%})"


def _seconds(runs: Sequence[Curve]) -> str:
    return f"{statistics.median(run.seconds for run in runs):.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    args = parser.parse_args()
    make_teacher(OUT / "teacher")
    for name, plan in plans().items():
        run_ablation(plan, out=OUT / name, num_seeds=args.seeds, num_workers=args.workers)
    text, path = report(args.seeds), ROOT / "docs/results/algorithms.md"
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(text + (known[known.index(_KEPT) :] if _KEPT in known else ""), encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
