"""Draw a run's success against episodes: `python benchmarks/curve.py RUN --out docs/quickstart.png`."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with (args.run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))

    def points(*names: str) -> list[tuple[float, ...]]:
        return [tuple(float(row[name]) for name in names) for row in rows if all(row.get(name) for name in names)]

    figure, axes = plt.subplots(figsize=(6.4, 3.4), dpi=120)
    train = points("progress/episodes", "rollout/success")
    axes.plot([x for x, _ in train], [y for _, y in train], "o-", color="#9aa5b1", label="training rollouts")
    held_out = points("progress/episodes", "val/success", "val/success_low", "val/success_high")
    axes.errorbar(
        [x for x, *_ in held_out],
        [y for _, y, *_ in held_out],
        yerr=[[y - low for _, y, low, _ in held_out], [high - y for _, y, _, high in held_out]],
        fmt="s-",
        color="#1f6feb",
        capsize=3,
        label="held out, 95 % Wilson interval",
    )
    axes.set(xlabel="training episodes", ylabel="success", ylim=(-0.02, 1.02))
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(args.out)


if __name__ == "__main__":
    main()
