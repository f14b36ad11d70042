"""What all data modules that own environment workers share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import lightning as L

from lit_agentrl.agents.base import Agent
from lit_agentrl.algorithms.base import Algorithm
from lit_agentrl.engines.local import LocalEngine
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.envs.splits import held_out_seed
from lit_agentrl.rewards.terms import RewardTerms
from lit_agentrl.rollouts.collector import Collector, RolloutCollector, run_coroutine
from lit_agentrl.rollouts.hooks import notify
from lit_agentrl.rollouts.rollout import Rollout
from lit_agentrl.rollouts.stream import SizedStream
from lit_agentrl.rollouts.workers import WorkerPool
from lit_agentrl.seeding import resolve_run_seed
from lit_agentrl.types import EngineStats, Phase, Sampling, Split, Task


class EnvironmentDataModule(L.LightningDataModule):
    """Owns the environment workers and evaluates on fixed held-out episodes.

    Args:
        env: The environment, as `class_path` and `init_args`; it is built in worker processes only.
        agent: Runs the episodes.
        engine: Draws the completions; default: a `LocalEngine`.
        num_workers: Environment processes. Results do not depend on it.
        max_concurrent_episodes: Episodes that run, and are generated, at a time. Part of the experiment. Exclusive
            environments run one episode per worker, so that this is then `num_workers` at most.
        max_new_tokens: Longest completion of one turn.
        max_context: Longest context of an episode in tokens; default: the model's.
        num_val_episodes: Held-out episodes of a validation; the same ones in every run.
        num_test_episodes: Episodes of `test` and `predict`.
        val_samples_per_task: Episodes per held-out task, for avg@k and pass@k.
        val_temperature: Temperature of validation and test; 0 is greedy.
        env_timeout_s: Seconds after which an environment or tool that gives no answer is replaced.
        max_output_chars: Observations and tool outputs are cut to this length, with a marker.
        rewards: Weight by import path of functions `(trajectory) -> float` that are added to the environment's reward.
        seed: Run seed; default: what `seed_everything` was set to.
    """

    def __init__(
        self,
        env: dict[str, Any],
        agent: Agent,
        *,
        engine: LocalEngine | None = None,
        num_workers: int = 2,
        max_concurrent_episodes: int = 64,
        max_new_tokens: int = 128,
        max_context: int | None = None,
        num_val_episodes: int = 100,
        num_test_episodes: int = 500,
        val_samples_per_task: int = 1,
        val_temperature: float = 0.0,
        env_timeout_s: float = 60.0,
        max_output_chars: int = 8000,
        rewards: dict[str, float] | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if env is None or agent is None:
            missing = "env" if env is None else "agent"
            raise ValueError(f"{missing}: {type(self).__name__} needs one; add it to the experiment file")
        for key, value in (
            ("num_workers", num_workers),
            ("max_concurrent_episodes", max_concurrent_episodes),
            ("max_new_tokens", max_new_tokens),
            ("num_val_episodes", num_val_episodes),
            ("num_test_episodes", num_test_episodes),
            ("val_samples_per_task", val_samples_per_task),
        ):
            if value < 1:
                raise ValueError(f"data.init_args.{key} is {value}: it must be at least 1")
        if max_context is not None and max_context < 1:
            raise ValueError(f"data.init_args.max_context is {max_context}: it must be at least 1, or null")
        if val_temperature < 0:
            raise ValueError(f"data.init_args.val_temperature is {val_temperature}: it must be 0 (greedy) or more")
        for name, count in (("num_val_episodes", num_val_episodes), ("num_test_episodes", num_test_episodes)):
            if count % val_samples_per_task:
                raise ValueError(
                    f"data.init_args.{name} is {count}: it must be a multiple of val_samples_per_task "
                    f"({val_samples_per_task})"
                )
        if num_workers > max_concurrent_episodes:
            raise ValueError(
                f"data.init_args.num_workers is {num_workers}, but only {max_concurrent_episodes} episodes run at a "
                "time (data.init_args.max_concurrent_episodes): the others would have nothing to do"
            )
        self.env_spec = EnvSpec(**env)
        self.env_spec.check()
        self.agent = agent
        self.rewards = RewardTerms(rewards or {})
        self.engine = engine if engine is not None else LocalEngine()
        self.num_workers = num_workers
        self.max_concurrent_episodes = max_concurrent_episodes
        self.max_new_tokens = max_new_tokens
        self.max_context = max_context
        self.num_val_episodes = num_val_episodes
        self.num_test_episodes = num_test_episodes
        self.val_samples_per_task = val_samples_per_task
        self.val_temperature = val_temperature
        self.run_seed = resolve_run_seed(seed)
        self.pool = WorkerPool(
            self.env_spec,
            tools=agent.tools,
            num_workers=num_workers,
            envs_per_worker=math.ceil(max_concurrent_episodes / num_workers),
            timeout_s=env_timeout_s,
            max_output_chars=max_output_chars,
        )
        self.keep_workers = False
        """Whether `teardown` leaves the workers running, because another stage follows."""
        self._evaluations = 0
        self._held_out: dict[tuple[str, int], list[Task]] = {}

    @property
    def algorithm(self) -> Algorithm:
        """The module that is being run."""
        assert self.trainer is not None
        module = self.trainer.lightning_module
        if not isinstance(module, Algorithm):
            raise ValueError(
                f"model.class_path: {type(module).__name__} trains no language model; data.class_path "
                f"{type(self).__name__} needs an algorithm that does, such as lit_agentrl.algorithms.GRPO"
            )
        return module

    @property
    def context_limit(self) -> int:
        """Longest context of an episode, in tokens.

        Raises:
            ValueError: `max_context` is more than the model can read.
        """
        model_limit = self.algorithm.policy.max_context
        if self.max_context is None:
            return model_limit
        if self.max_context > model_limit:
            raise ValueError(
                f"data.init_args.max_context is {self.max_context}, but the model reads at most {model_limit}"
            )
        return self.max_context

    def collector(self) -> Collector:
        """Return a collector that draws with the module's weights of this moment."""
        policy = self.algorithm.policy
        assert policy.chat is not None
        assert self.trainer is not None
        self.engine.bind(policy)
        self.engine.sync(self.trainer.global_step)
        return RolloutCollector(
            self.pool,
            self.engine,
            self.agent,
            chat=policy.chat,
            max_context=self.context_limit,
            run_seed=self.run_seed,
            max_concurrent_episodes=self.max_concurrent_episodes,
            rewards=self.rewards,
        )

    def val_dataloader(self) -> Any:
        """Return a loader of held-out episodes."""
        return self._evaluation("val", self.num_val_episodes)

    def test_dataloader(self) -> Any:
        """Return a loader of test episodes."""
        return self._evaluation("test", self.num_test_episodes)

    def predict_dataloader(self) -> Any:
        """Return a loader of test episodes, kept apart from `test` in logs."""
        return self._evaluation("predict", self.num_test_episodes)

    def _evaluation(self, phase: Phase, num_episodes: int) -> Any:
        assert self.trainer is not None
        num_tasks = num_episodes // self.val_samples_per_task
        rank, world = self.trainer.global_rank, self.trainer.world_size
        mine = list(range(rank, num_tasks, world))
        per_batch = max(1, self.max_concurrent_episodes // self.val_samples_per_task)
        batches = [mine[start : start + per_batch] for start in range(0, len(mine), per_batch)]
        most = math.ceil(math.ceil(num_tasks / world) / per_batch)
        batches += [[]] * (most - len(batches))

        def rollouts() -> Iterator[Rollout]:
            trainer = self.trainer
            assert trainer is not None
            split: Split = "val" if phase == "val" else "test"
            tasks = self._tasks(split, num_tasks)
            collector = self.collector()
            notify(trainer, "on_rollout_start", phase, len(mine) * self.val_samples_per_task)
            for batch in batches:
                # The index is always 0: held-out episodes draw the same numbers at every evaluation.
                yield collector.collect(
                    [(number, tasks[number]) for number in batch],
                    phase=phase,
                    index=0,
                    group_size=self.val_samples_per_task,
                    sampling=Sampling(temperature=self.val_temperature, max_new_tokens=self.max_new_tokens),
                    listener=lambda trajectory: notify(trainer, "on_episode_end", trajectory),
                )

        def told_at_the_last() -> Iterator[Rollout]:
            # Before the last item is handed over: a sized loader is never asked for what comes after it.
            seen: list[Rollout] = []
            for rollout in rollouts():
                seen.append(rollout)
                if len(seen) == len(batches):
                    self._end_evaluation(phase, seen)
                yield rollout

        return SizedStream(told_at_the_last, len(batches)).loader()

    def _end_evaluation(self, phase: Phase, parts: list[Rollout]) -> None:
        assert self.trainer is not None
        whole = Rollout(
            phase=phase,
            index=self._evaluations,
            groups=[group for part in parts for group in part.groups],
            engine=sum_stats([part.engine for part in parts]),
            wall_s=sum(part.wall_s for part in parts),
        )
        self._evaluations += 1
        notify(self.trainer, "on_rollout_end", whole)

    def _tasks(self, split: Split, count: int) -> list[Task]:
        """Return the held-out tasks: fixed by their number alone, so that runs of any seed share them."""
        key = (split, count)
        if key not in self._held_out:
            seeds = [(held_out_seed(split, number), split) for number in range(count)]
            self._held_out[key] = run_coroutine(self.pool.sample_tasks(seeds))
        return self._held_out[key]

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know."""
        return {"evaluations": self._evaluations}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self._evaluations = int(state_dict["evaluations"])

    def teardown(self, stage: str) -> None:
        """End the worker processes."""
        if not self.keep_workers:
            self.pool.close()


def sum_stats(parts: Sequence[EngineStats]) -> EngineStats:
    """Return what an engine did in several collections."""
    return EngineStats(
        **{f.name: sum(getattr(part, f.name) for part in parts) for f in dataclasses.fields(EngineStats)}
    )
