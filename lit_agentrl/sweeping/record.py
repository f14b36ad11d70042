"""`OUT/ablation.json`: the state of every run, written after every event, so that an ablation can be killed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from lit_agentrl.reporting.files import write_atomically
from lit_agentrl.reporting.runs import ABLATION_FILE
from lit_agentrl.sweeping.plan import AblationPlan

SCHEMA = 1
RunState = Literal["pending", "running", "done", "failed"]


@dataclass(kw_only=True, slots=True)
class RunEntry:
    """One run of an ablation."""

    variant: str
    seed: int
    folder: str
    """Relative to the record, so that the folder can be moved."""
    overrides: list[str]
    """What makes the variant: the command-line arguments after the experiment's."""
    command: list[str]
    state: RunState = "pending"
    cause: str = ""

    @property
    def label(self) -> str:
        """What people call it."""
        return f"{self.variant} seed {self.seed}"


class AblationRecord:
    """The runs of an ablation, on disk at all times.

    Args:
        out: Folder of the ablation.
        plan: What to run.
        num_seeds: Seeds are 0 to `num_seeds - 1`. More than before adds runs.
        fit_command: Command that the arguments of a run are appended to.

    Raises:
        ValueError: If the folder holds an ablation of another experiment file, or of other settings of a variant: its
            finished runs would be compared with runs that they cannot be compared with.
    """

    def __init__(self, out: Path, *, plan: AblationPlan, num_seeds: int, fit_command: Sequence[str]) -> None:
        self.path = out / ABLATION_FILE
        self.metric = plan.metric
        self.base_sha256 = hashlib.sha256(plan.base.read_bytes()).hexdigest()
        self.runs = [
            RunEntry(
                variant=variant,
                seed=seed,
                folder=f"{variant}/seed-{seed}",
                overrides=list(arguments),
                command=[
                    *fit_command,
                    f"--config={plan.base}",
                    *arguments,
                    f"--seed_everything={seed}",
                    f"--run_dir={out / variant / f'seed-{seed}'}",
                ],
            )
            # Seed by seed: an ablation that is stopped early has complete pairs.
            for seed in range(num_seeds)
            for variant, arguments in plan.variants.items()
        ]
        self.asked = list(self.runs)
        """What this call is about; `runs` also has what only earlier calls asked for."""
        if self.path.is_file():
            self._take_over(json.loads(self.path.read_text(encoding="utf-8")))
        self.save()

    def save(self) -> None:
        """Write the record."""
        content = {
            "schema": SCHEMA,
            "metric": self.metric,
            "base_sha256": self.base_sha256,
            "runs": [asdict(run) for run in self.runs],
        }
        write_atomically(self.path, json.dumps(content, indent=1) + "\n")

    def mark(self, run: RunEntry, state: RunState, cause: str = "") -> None:
        """Note what became of a run."""
        run.state, run.cause = state, cause
        self.save()

    def _take_over(self, content: dict[str, object]) -> None:
        """Keep what earlier calls have done; runs that are no longer asked for stay in the record."""
        if content.get("schema") != SCHEMA:
            raise ValueError(f"{self.path} has schema {content.get('schema')!r}, this version reads {SCHEMA}")
        if content["base_sha256"] != self.base_sha256:
            raise ValueError(f"{self.path}: the experiment file has changed since; choose another --out")
        asked = {run.folder: run for run in self.runs}
        entries = content["runs"]
        assert isinstance(entries, list)
        for earlier in (RunEntry(**entry) for entry in entries):
            run = asked.get(earlier.folder)
            if run is None:
                self.runs.append(earlier)
            elif run.overrides != earlier.overrides:
                raise ValueError(
                    f"{self.path}: variant {run.variant!r} was run with {earlier.overrides}, not with {run.overrides}; "
                    "choose another --out"
                )
            else:
                run.state, run.cause = earlier.state, earlier.cause
