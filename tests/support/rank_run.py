"""Trains for a few updates on the given number of ranks and keeps weights and metrics: `python rank_run.py N FILE`."""

import sys

import torch
from rl_support import EndingPolicy, parity_data, trainer

from lit_agentrl.algorithms import GRPO, OptimizerConfig


def main() -> None:
    ranks, path = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    module = GRPO(
        EndingPolicy(),
        optimizer=OptimizerConfig(lr=1e-3, weight_decay=0.1),
        # Four groups in three minibatches: with two ranks, some rank has nothing of a minibatch.
        num_minibatches=3,
        micro_batch_tokens=120,
        advantage_scale="batch",
        seed=0,
    )
    run = trainer(
        max_epochs=2,
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        precision="64-true",
        limit_val_batches=1.0,
        log_every_n_steps=1,
    )
    run.fit(module, datamodule=parity_data(num_val_episodes=6))
    if run.is_global_zero:
        metrics = {name: float(value) for name, value in run.callback_metrics.items()}
        torch.save({"weights": module.policy.state_dict(), "metrics": metrics, "step": run.global_step}, path)


if __name__ == "__main__":
    main()
