"""`lit-agentrl compare RUNS…`: the final metric of variants over seeds, as a Markdown table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lit_agentrl.reporting.runs import Run, find_runs, is_usable, metric_names, read_metric
from lit_agentrl.reporting.statistics import MeanInterval, PairedDifference, mean_interval, paired_difference

DEFAULT_METRIC = "val/success"


@dataclass(kw_only=True, slots=True)
class VariantRow:
    """One variant: its values by seed, and what follows from them."""

    name: str
    num_runs: int = 0
    """Runs that exist or were meant to; those without a usable value are named in the notes."""
    values: dict[int, float] = field(default_factory=dict)
    """Final metric by seed. Runs that recorded no seed get negative keys and enter no pair."""
    interval: MeanInterval | None = None
    difference: PairedDifference | None = None
    """Against the base, over the seeds that both have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A table and everything that a reader of it must know."""

    metric: str
    base: str
    rows: list[VariantRow]
    notes: list[str]


def compare_runs(runs: Sequence[Run], *, metric: str = DEFAULT_METRIC, base: str | None = None) -> Comparison:
    """Summarise the final metric of every variant, and its paired difference to the base.

    Args:
        runs: As `find_runs` returns them.
        metric: Column of `metrics.csv`; the last value logged counts.
        base: Variant to compare with. By default the one called `base`, else the first.

    Raises:
        ValueError: If no run logged the metric, or there is no variant called `base`.
    """
    rows: dict[str, VariantRow] = {}
    notes: list[str] = []
    steps: dict[str, int] = {}
    for run in runs:
        row = rows.setdefault(run.variant, VariantRow(name=run.variant))
        row.num_runs += 1
        seed = run.seed if run.seed is not None else -row.num_runs
        label = f"{run.variant} {'seed ' + str(run.seed) if run.seed is not None else run.folder}"
        value, last_step = read_metric(run.folder, metric)
        if problem := _why_unusable(run, value, metric):
            notes.append(f"{label}: left out, {problem}")
            continue
        assert value is not None
        if seed in row.values:
            notes.append(f"{label}: left out, this seed is there already ({run.folder})")
            continue
        row.values[seed] = value
        if last_step is not None:
            steps[label] = last_step
    if not any(row.values for row in rows.values()):
        names = sorted({name for run in runs for name in metric_names(run.folder)})
        reasons = "; ".join(notes) or "there are no runs"
        raise ValueError(f"no run has a final {metric} ({reasons}). Metrics found: {', '.join(names) or 'none'}")
    base = base if base is not None else ("base" if "base" in rows else next(iter(rows)))
    if base not in rows:
        raise ValueError(f"--base {base}: there is no such variant; variants: {', '.join(rows)}")
    longest = max(steps.values(), default=0)
    notes += [
        f"{label}: ended at step {step}, the longest run at {longest}"
        for label, step in steps.items()
        if step < longest
    ]
    for row in rows.values():
        notes += _summarise(row, rows[base])
    ordered = [rows[base], *(row for row in rows.values() if row.name != base)]
    return Comparison(metric=metric, base=base, rows=ordered, notes=notes)


def markdown_table(comparison: Comparison) -> str:
    """Return the comparison as a Markdown table, followed by its notes as a list."""
    header = [
        "variant",
        "seeds",
        comparison.metric,
        "95 % interval",
        f"against {comparison.base}",
        "95 % interval",
        "p",
    ]
    table = [header, ["---"] + ["---:"] * (len(header) - 1)]
    for row in comparison.rows:
        seeds = str(len(row.values)) if len(row.values) == row.num_runs else f"{len(row.values)} of {row.num_runs}"
        cells = [row.name, seeds, *_interval_cells(row.interval, sign="")]
        cells += _interval_cells(row.difference, sign="+")
        p_value = None if row.difference is None else row.difference.p_value
        cells.append("-" if p_value is None else "<0.001" if p_value < 0.001 else f"{p_value:.3f}")
        table.append(cells)
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in table]
    if comparison.notes:
        lines += ["", *(f"- {note}" for note in comparison.notes)]
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `compare` to a parser."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folder, or a folder of VARIANT/seed-N runs"
    )
    parser.add_argument("--metric", default=DEFAULT_METRIC, help="column of metrics.csv (default: %(default)s)")
    parser.add_argument("--by", metavar="KEY", help="group by this configuration key, for example model.init_args.lr")
    parser.add_argument("--base", metavar="VARIANT", help="compare with this variant (default: base, else the first)")


def main(args: argparse.Namespace) -> int:
    """Print the table; 0 when there is one, 2 when the request cannot be served."""
    try:
        comparison = compare_runs(find_runs(args.runs, by=args.by), metric=args.metric, base=args.base)
    except ValueError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    print(markdown_table(comparison))
    return 0


def _why_unusable(run: Run, value: float | None, metric: str) -> str:
    if run.state == "failed":
        return f"failed: {run.cause}"
    if run.state != "done":
        return f"unfinished ({run.state})"
    if value is None:
        return f"it logged no {metric}"
    return "" if is_usable(value) else f"its {metric} is {value}"


def _summarise(row: VariantRow, base: VariantRow) -> list[str]:
    """Fill in interval and difference; return what has to be said about them."""
    if not row.values:
        return [f"{row.name}: no usable run"]
    notes = []
    row.interval = mean_interval(list(row.values.values()))
    if row.interval.note:
        notes.append(f"{row.name}: {row.interval.note}")
    if row is base or not base.values:
        return notes
    common = sorted(seed for seed in row.values.keys() & base.values.keys() if seed >= 0)
    if row.values.keys() != base.values.keys() or len(common) < len(row.values):
        pairs = f"paired over seeds {', '.join(map(str, common))} only" if common else "no pairs"
        notes.append(f"{row.name}: not the same seeds as {base.name}, {pairs}")
    if common:
        row.difference = paired_difference(
            [row.values[seed] for seed in common], [base.values[seed] for seed in common]
        )
        if row.difference.note and row.difference.note != row.interval.note:
            notes.append(f"{row.name} against {base.name}: {row.difference.note}")
    return notes


def _interval_cells(result: MeanInterval | PairedDifference | None, *, sign: str) -> list[str]:
    if result is None:
        return ["-", "-"]
    if result.low is None or result.high is None:
        return [f"{result.mean:{sign}.3f}", "-"]
    return [f"{result.mean:{sign}.3f}", f"[{result.low:{sign}.3f}, {result.high:{sign}.3f}]"]
