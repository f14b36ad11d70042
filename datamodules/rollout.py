"""Batches from rollouts of the policy that is being trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from datamodules._environment import EnvironmentDataModule, sum_stats
from lit_agentrl.agents.base import Agent
from lit_agentrl.algorithms.base import OnPolicyAlgorithm
from lit_agentrl.rollouts.batch import RolloutBatch
from lit_agentrl.rollouts.collector import run_coroutine
from lit_agentrl.rollouts.comparisons import Answer
from lit_agentrl.rollouts.hooks import notify
from lit_agentrl.rollouts.rollout import Progress, Rollout, rollout_metrics, token_accounting
from lit_agentrl.rollouts.segments import batch_from_groups
from lit_agentrl.rollouts.stream import SizedStream
from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import Sampling, Split


class RolloutDataModule(EnvironmentDataModule):
    """One epoch is one rollout: `num_groups` tasks, `group_size` episodes each; one batch is one optimizer step.

    Args:
        env: The environment, as `class_path` and `init_args`.
        agent: Runs the episodes.
        num_groups: Tasks per rollout, over all ranks: more GPUs make a rollout faster, not another experiment.
        group_size: Episodes per task.
        temperature: Sampling temperature of training episodes.
        kwargs: See `EnvironmentDataModule`.
    """

    def __init__(
        self,
        env: dict[str, Any],
        agent: Agent,
        *,
        num_groups: int = 8,
        group_size: int = 8,
        temperature: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(env, agent, **kwargs)
        for key, value in (("num_groups", num_groups), ("group_size", group_size)):
            if value < 1:
                raise ValueError(f"data.init_args.{key} is {value}: it must be at least 1")
        if temperature <= 0:
            raise ValueError(
                f"data.init_args.temperature is {temperature}: training needs samples, so it must be above 0"
            )
        if self.num_workers > num_groups * group_size:
            raise ValueError(
                f"data.init_args.num_workers is {self.num_workers}, but a rollout has only "
                f"{num_groups * group_size} episodes (num_groups x group_size)"
            )
        self.num_groups = num_groups
        self.group_size = group_size
        self.temperature = temperature
        self.progress = Progress()

    def setup(self, stage: str) -> None:
        """Refuse combinations from which the algorithm cannot learn, before any work is done."""
        if stage != "fit":
            return
        algorithm = self._learner
        assert self.trainer is not None
        if self.num_groups % self.trainer.world_size:
            raise ValueError(
                f"data.init_args.num_groups is {self.num_groups}: it must be a multiple of the number of ranks "
                f"({self.trainer.world_size})"
            )
        algorithm.check_sizes(num_groups=self.num_groups, group_size=self.group_size)

    @property
    def _learner(self) -> OnPolicyAlgorithm:
        algorithm = self.algorithm
        if not isinstance(algorithm, OnPolicyAlgorithm):
            raise ValueError(
                f"model.class_path: {type(algorithm).__name__} does not learn from rollouts; data.class_path "
                "RolloutDataModule needs an on-policy algorithm such as lit_agentrl.algorithms.GRPO"
            )
        return algorithm

    def train_dataloader(self) -> Any:
        """Return a loader that collects a rollout each time it is iterated."""
        return SizedStream(self._batches, self._learner.batches_per_rollout).loader()

    def _batches(self) -> Iterator[RolloutBatch]:
        trainer, algorithm = self.trainer, self._learner
        assert trainer is not None
        index = self.progress.rollouts
        mine = range(trainer.global_rank, self.num_groups, trainer.world_size)
        notify(trainer, "on_rollout_start", "train", len(mine) * self.group_size)
        rollout = self._collect(list(mine), index)
        for attempt in range(1, algorithm.max_refills + 1):
            missing = len(mine) - len(algorithm.kept_groups(rollout))
            if missing:
                further = self._collect([attempt * self.num_groups + group for group in mine[:missing]], index)
                rollout = Rollout(
                    phase="train",
                    index=index,
                    groups=rollout.groups + further.groups,
                    engine=sum_stats([rollout.engine, further.engine]),
                    wall_s=rollout.wall_s + further.wall_s,
                )
        if algorithm.max_refills and not any(algorithm.gather_objects(bool(algorithm.kept_groups(rollout)))):
            drawn = sum(algorithm.gather_objects(len(rollout.groups)))
            raise RuntimeError(
                f"rollout {index}: all {drawn} groups earned the same reward in each of their episodes, also after "
                f"{algorithm.max_refills} refills (model.init_args.max_refills), so there is nothing to learn from: "
                "choose tasks that the policy solves now and then (env, warm_start), or raise "
                "data.init_args.group_size or data.init_args.temperature"
            )
        if algorithm.needs_demonstrations:
            rollout.demonstrations = self._demonstrations(rollout)
        gather = algorithm.gather_objects
        self.progress.add(rollout, gather=gather)
        whole = batch_from_groups(rollout.groups, temperature=self.temperature)
        for number, batch in enumerate(algorithm.batches(rollout, whole)):
            if number == 0:
                rollout.metrics |= (
                    rollout_metrics(rollout, gather=gather)
                    | token_accounting(whole, rollout, gather=gather)
                    | self.progress.metrics()
                    | batch.metrics
                )
                batch.metrics = rollout.metrics
                notify(trainer, "on_rollout_end", rollout)
            yield batch

    def _demonstrations(self, rollout: Rollout) -> dict[int, Answer]:
        """Return how the environment solves the tasks of a rollout, as the agent would have lived it, by group."""
        chat = self._learner.policy.chat
        assert chat is not None
        preface = tuple(self.agent.preface())
        shown = run_coroutine(self.pool.demonstrate([group.task for group in rollout.groups]))
        answers = [Answer.from_rows(chat.demonstration_rows(preface + s.messages, s.tools)) for s in shown]
        pairs = zip(rollout.groups, answers, strict=True)
        return {group.group: answer for group, answer in pairs if answer.longest_row <= self.context_limit}

    def _collect(self, groups: list[int], index: int) -> Rollout:
        """Collect one group for each of these numbers."""
        trainer = self.trainer
        assert trainer is not None
        split: Split = "train"
        seeds = [(derive_seed(self.run_seed, "task", index, group), split) for group in groups]
        collector = self.collector()
        tasks = run_coroutine(self.pool.sample_tasks(seeds))
        return collector.collect(
            list(zip(groups, tasks, strict=True)),
            phase="train",
            index=index,
            group_size=self.group_size,
            sampling=Sampling(temperature=self.temperature, max_new_tokens=self.max_new_tokens),
            listener=lambda trajectory: notify(trainer, "on_episode_end", trajectory),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know."""
        return super().state_dict() | {"progress": dataclasses.asdict(self.progress)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        super().load_state_dict(state_dict)
        self.progress = Progress(**state_dict["progress"])
