"""Batches of demonstrations that the environment itself makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from lightning.pytorch.utilities import rank_zero_warn

from datamodules._environment import EnvironmentDataModule
from lit_agentrl.agents.base import Agent
from lit_agentrl.policies.chat import ChatFormat
from lit_agentrl.rollouts.batch import RolloutBatch
from lit_agentrl.rollouts.collector import run_coroutine
from lit_agentrl.rollouts.segments import batch_from_demonstrations
from lit_agentrl.rollouts.stream import SizedStream
from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import Demonstration, Split

DemonstrationRow: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Ids, and a mask that is 1 on those to be trained."""


class DemonstrationDataModule(EnvironmentDataModule):
    """Solved episodes of training tasks, as an agent would have lived them. No demonstration is shown twice.

    Those that are longer than the context are left out, and counted as `demonstrations/too_long`.

    Args:
        env: The environment; it needs a `demonstrate` method.
        agent: Gives the tools and the system prompt.
        batch_size: Demonstrations per optimizer step, over all ranks.
        batches_per_epoch: Optimizer steps per epoch.
        kwargs: See `EnvironmentDataModule`.
    """

    def __init__(
        self, env: dict[str, Any], agent: Agent, *, batch_size: int = 8, batches_per_epoch: int = 32, **kwargs: Any
    ) -> None:
        super().__init__(env, agent, **kwargs)
        for key, value in (("batch_size", batch_size), ("batches_per_epoch", batches_per_epoch)):
            if value < 1:
                raise ValueError(f"data.init_args.{key} is {value}: it must be at least 1")
        self.batch_size = batch_size
        self.batches_per_epoch = batches_per_epoch
        self._epochs = 0
        self._fitting = 0
        self._too_long = 0

    @classmethod
    def beside(
        cls, other: EnvironmentDataModule, *, batch_size: int, batches_per_epoch: int
    ) -> DemonstrationDataModule:
        """Return a data module with the environment, agent and workers of another one."""
        module = cls(
            {"class_path": other.env_spec.class_path, "init_args": dict(other.env_spec.init_args)},
            other.agent,
            batch_size=batch_size,
            batches_per_epoch=batches_per_epoch,
            engine=other.engine,
            num_workers=other.num_workers,
            max_concurrent_episodes=other.max_concurrent_episodes,
            max_context=other.max_context,
            seed=other.run_seed,
        )
        module.pool = other.pool
        module.keep_workers = True
        return module

    def train_dataloader(self) -> Any:
        """Return a loader of demonstration batches."""
        return SizedStream(self._batches, self.batches_per_epoch).loader()

    def _batches(self) -> Iterator[RolloutBatch]:
        trainer, algorithm = self.trainer, self.algorithm
        assert trainer is not None
        epoch = self._epochs
        self._epochs += 1
        chat = algorithm.policy.chat
        assert chat is not None
        split: Split = "train"
        mine = range(trainer.global_rank, self.batch_size, trainer.world_size)
        for number in range(self.batches_per_epoch):
            seeds = [(derive_seed(self.run_seed, "demonstration", epoch, number, sample), split) for sample in mine]
            tasks = run_coroutine(self.pool.sample_tasks(seeds))
            demonstrations = run_coroutine(self.pool.demonstrate(tasks))
            batch = batch_from_demonstrations(self._fitting_rows(demonstrations, chat))
            algorithm.fold_weights(batch, mode="token-mean")
            batch.metrics = {"demonstrations/too_long": float(self._too_long)}
            yield batch

    def _fitting_rows(self, demonstrations: Sequence[Demonstration], chat: ChatFormat) -> list[DemonstrationRow]:
        """Return the rows of this rank's demonstrations, without those that are longer than the context.

        Raises:
            ValueError: Not one has fitted so far.
        """
        preface = tuple(self.agent.preface())
        rows = [
            row for shown in demonstrations for row in chat.demonstration_rows(preface + shown.messages, shown.tools)
        ]
        limit = self.context_limit
        fitting = [row for row in rows if len(row[0]) <= limit]
        counts = self.algorithm.gather_objects((len(rows), len(fitting), min((len(ids) for ids, _ in rows), default=0)))
        dropped = sum(total - kept for total, kept, _ in counts)
        self._fitting += sum(kept for _, kept, _ in counts)
        if not self._fitting:
            shortest = min(length for total, _, length in counts if total)
            raise ValueError(
                f"data.init_args.max_context: no demonstration fits in {limit} tokens, the shortest has {shortest}; "
                "raise it if the model can read more, or choose easier tasks (env.init_args)"
            )
        if dropped and not self._too_long:
            rank_zero_warn(
                f"{dropped} of {sum(total for total, *_ in counts)} demonstrations are longer than {limit} tokens "
                "(data.init_args.max_context) and are left out; demonstrations/too_long counts them from here on"
            )
        self._too_long += dropped
        return fitting

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know."""
        counts = {"epochs": self._epochs, "fitting": self._fitting, "too_long": self._too_long}
        return super().state_dict() | counts

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        super().load_state_dict(state_dict)
        self._epochs = int(state_dict["epochs"])
        self._fitting = int(state_dict["fitting"])
        self._too_long = int(state_dict["too_long"])
