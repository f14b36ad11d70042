"""What GRPO adds to the quickstart's warm start, with and without the calculator: 3 seeds, 500 held-out episodes each.

Runs `configs/ablation/quickstart.yaml` (resumes where it was stopped) and writes `docs/results/quickstart.md`.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path

from scipy import stats

from lit_agentrl.reporting.records import read_trajectories
from lit_agentrl.reporting.statistics import mean_interval

ROOT = Path(__file__).resolve().parents[1]

_KEPT = "\nOne run as shipped"
"""What stands from here on in the results is written by hand and stays."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "quickstart-experiment")
    args = parser.parse_args()
    command = [
        *(sys.executable, "-m", "lit_agentrl", "ablate", str(ROOT / "configs/ablation/quickstart.yaml")),
        *("--seeds", str(args.seeds), "--workers", str(args.workers), "--out", str(args.out)),
    ]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    text = report(args.out, seeds=args.seeds)
    path = ROOT / "docs/results/quickstart.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    known = path.read_text() if path.exists() else ""
    path.write_text(text + (known[known.index(_KEPT) :] if _KEPT in known else ""))
    print(text)
    return status


def report(folder: Path, *, seeds: int) -> str:
    lines = [
        "# Quickstart: what GRPO adds to the warm start",
        "",
        f"`make experiment-quickstart` on {date.today():%Y-%m-%d}, {platform.machine()}, CPU, float32. "
        f"{seeds} seeds, 500 fixed held-out episodes each, sampled at temperature 1. A run's interval is that of the "
        "paired difference over its episodes (95 %, normal); the last row's is over seeds (95 %, t).",
        "",
        "| arm | seed | warm start | after GRPO | gain | 95 % interval |",
        "|---|---|---|---|---|---|",
    ]
    for arm in ("calculator", "no_tools"):
        gains = []
        for seed in range(seeds):
            run = folder / arm / f"seed-{seed}"
            milestones = run / "milestones.json"
            entries = {e["name"]: e for e in json.loads(milestones.read_text())} if milestones.exists() else {}
            if not {"warm start", "GRPO"} <= entries.keys():
                lines.append(f"| {arm} | {seed} | not finished | | | |")
                continue
            warm, final = (entries[name]["success"] for name in ("warm start", "GRPO"))
            low, high = paired_interval(run)
            gains.append(final - warm)
            lines.append(
                f"| {arm} | {seed} | {warm:.1%} | {final:.1%} | {final - warm:+.1%} | {low:+.1%} to {high:+.1%} |"
            )
        if gains:
            summary = mean_interval(gains)
            between = "" if summary.low is None else f"{summary.low:+.1%} to {summary.high:+.1%}"
            lines.append(f"| {arm} | mean | | | {summary.mean:+.1%} | {between} |")
    return "\n".join(lines) + "\n"


def paired_interval(run: Path) -> tuple[float, float]:
    """Return the 95 % interval of the mean difference between the last two validations, episode by episode."""
    files = sorted((run / "trajectories").glob("val-*.jsonl"))
    before, after = ({r["id"]: float(r["success"]) for r in read_trajectories(path)} for path in files[-2:])
    differences = [after[name] - before[name] for name in before]
    mean = sum(differences) / len(differences)
    error = stats.sem(differences)
    return mean - 1.96 * error, mean + 1.96 * error


if __name__ == "__main__":
    sys.exit(main())
