"""Batches of demonstrations that the environment itself makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from datamodules._environment import EnvironmentDataModule
from lit_agentrl.agents.base import Agent
from lit_agentrl.policies.chat import ChatFormat
from lit_agentrl.rollouts.batch import RolloutBatch
from lit_agentrl.rollouts.collector import run_coroutine
from lit_agentrl.rollouts.segments import batch_from_demonstrations
from lit_agentrl.rollouts.stream import SizedStream
from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import Demonstration, Split


class DemonstrationDataModule(EnvironmentDataModule):
    """Solved episodes of training tasks, as an agent would have lived them. No demonstration is shown twice.

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
            seeds = [
                (derive_seed(self.run_seed, "demonstration", epoch, number, sample), split) for sample in mine
            ]
            tasks = run_coroutine(self.pool.sample_tasks(seeds))
            demonstrations = run_coroutine(self.pool.demonstrate(tasks))
            rows = [row for demonstration in demonstrations for row in self._rows(demonstration, chat)]
            batch = batch_from_demonstrations(rows)
            algorithm.fold_weights(batch, mode="token-mean")
            yield batch

    def _rows(self, demonstration: Demonstration, chat: ChatFormat) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        messages = (*self.agent.preface(), *demonstration.messages)
        rows = chat.demonstration_rows(messages, demonstration.tools)
        limit = self.max_context or self.algorithm.policy.max_context
        return [row for row in rows if len(row[0]) <= limit]

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know."""
        return super().state_dict() | {"epochs": self._epochs}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        super().load_state_dict(state_dict)
        self._epochs = int(state_dict["epochs"])
