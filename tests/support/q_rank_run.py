"""Trains a value function on the given number of ranks and keeps weights and metrics: `python q_rank_run.py N FILE`."""

import sys

import torch
from q_support import corridor_data, dqn, drrn
from rl_support import trainer

from lit_agentrl.algorithms import OptimizerConfig


def main() -> None:
    ranks, path = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    found = {}
    for name, make in (("dqn", dqn), ("drrn", drrn)):
        module = make(optimizer=OptimizerConfig(lr=1e-2, weight_decay=0.1), micro_batch_rows=3)
        # An odd batch: one rank has more of it than the other. Priorities have to agree on all ranks.
        data = corridor_data(batch_size=9, priority_alpha=0.6, num_val_episodes=6)
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
        found[name] = {
            "weights": module.state_dict(),
            "metrics": metrics,
            "step": run.global_step,
            "replay": data.replay.state_dict(),
        }
    if run.is_global_zero:
        torch.save(found, path)


if __name__ == "__main__":
    main()
