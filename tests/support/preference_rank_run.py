"""Trains every preference algorithm for two epochs: `python preference_rank_run.py RANKS FILE`, once for each rank.

With more than one rank, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say which process this is.
"""

import sys
import tempfile
from pathlib import Path

import torch
from preference_support import EVERY, sums, write_lines
from rl_support import EndingPolicy, parity_data, trainer

from datamodules import PreferenceDataModule
from lit_agentrl.algorithms import OptimizerConfig

ROLLOUTS = ("online_dpo", "eto", "dmpo")


def offline(folder: Path, name: str) -> PreferenceDataModule:
    """Batches of five and one: with two ranks, one has nothing of the last batch."""
    records = sums(9)
    if name == "step_dpo":
        candidates = [{"reply": "go", "q": 0.9}, {"reply": "no idea", "q": 0.1}]
        records = [{"messages": [{"role": "user", "content": f"{n}?"}], "candidates": candidates} for n in range(9)]
    file = write_lines(folder / f"{name}.jsonl", records)
    return PreferenceDataModule([file], batch_size=5, held_out=0.3, seed=0)


def main() -> None:
    ranks, path = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: offline(Path(folder), name) for name in EVERY if name != "online_dpo"}
        runs |= {f"{name}, rollouts": parity_data(num_val_episodes=6) for name in ROLLOUTS}
        for name, data in runs.items():
            kind = name.partition(",")[0]
            more = {"num_minibatches": 3} if "rollouts" in name else {}
            module = EVERY[kind](
                EndingPolicy(), optimizer=OptimizerConfig(lr=1e-3), micro_batch_tokens=60, seed=0, **more
            )
            run = trainer(
                max_epochs=2,
                devices=ranks,
                strategy="ddp" if ranks > 1 else "auto",
                precision="64-true",
                limit_val_batches=1.0,
                log_every_n_steps=1,
            )
            run.fit(module, datamodule=data)
            metrics = {key: float(value) for key, value in run.callback_metrics.items()}
            # After a fit under DDP the policy is unwrapped again, and all ranks hold the same weights.
            results[name] = {"weights": module.policy.state_dict(), "metrics": metrics, "step": run.global_step}
        if run.is_global_zero:
            torch.save(results, path)


if __name__ == "__main__":
    main()
