"""Every algorithm on a small task, 5 seeds each: final success, steps, samples, seconds; writes docs/results/algorithms.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from lit_agentrl.sweeping.ablate import run_ablation
from lit_agentrl.sweeping.plan import AblationPlan, read_plan

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "runs/algorithms"


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    args = parser.parse_args()
    make_teacher(OUT / "teacher")
    for name, plan in plans().items():
        run_ablation(plan, out=OUT / name, num_seeds=args.seeds, num_workers=args.workers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
