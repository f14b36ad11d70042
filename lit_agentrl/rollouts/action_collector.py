"""Runs episodes in which a value function chooses the actions: many at a time, one batch of observations a turn."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from lit_agentrl.agents.action_agent import ActionAgent
from lit_agentrl.engines.batching import LockstepBatcher
from lit_agentrl.rewards.terms import RewardTerms
from lit_agentrl.rollouts.collector import EpisodeListener, empty_groups, run_lanes, running_episode
from lit_agentrl.rollouts.rollout import Rollout
from lit_agentrl.rollouts.workers import WorkerPool
from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import (
    EngineStats,
    Observation,
    Phase,
    Sampling,
    Task,
    Trajectory,
    TrajectoryGroup,
    Transition,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceRequest:
    """One action to be chosen."""

    identity: tuple[int, ...]
    observation: Observation
    seed: int
    """Of this draw alone."""
    epsilon: float
    """Probability of any action."""
    temperature: float
    """Of the softmax over values; 0 is greedy."""


class Chooser(Protocol):
    """A value function."""

    def choose(self, requests: Sequence[ChoiceRequest]) -> list[str]:
        """Return the text of an action for each request."""
        ...


class ActionCollector:
    """Collects rollouts of a value function. What it returns depends on identities and weights alone.

    Args:
        pool: Environment workers.
        chooser: The value function.
        agent: Runs the episodes.
        run_seed: Seed of the run.
        version: Optimizer steps behind the value function.
        max_concurrent_episodes: Episodes that run at a time, if the pool has so many slots.
        rewards: Terms that are added to what the environment gave; default: none.
    """

    def __init__(
        self,
        pool: WorkerPool,
        chooser: Chooser,
        agent: ActionAgent,
        *,
        run_seed: int,
        version: int,
        max_concurrent_episodes: int,
        rewards: RewardTerms | None = None,
    ) -> None:
        self._pool = pool
        self._chooser = chooser
        self._agent = agent
        self._run_seed = run_seed
        self._version = version
        self._max_concurrent = max_concurrent_episodes
        self._rewards = rewards
        self._stats = EngineStats()
        self._batcher: LockstepBatcher[ChoiceRequest, str] = LockstepBatcher(self._choose)

    def collect(
        self,
        tasks: Sequence[tuple[int, Task]],
        *,
        phase: Phase,
        index: int,
        group_size: int,
        sampling: Sampling,
        listener: EpisodeListener | None = None,
    ) -> Rollout:
        """Run `group_size` episodes of each task; `sampling.temperature` acts on values. See `RolloutCollector`."""
        started = time.perf_counter()
        groups = empty_groups(tasks, group_size=group_size)
        explore = _Explore(phase=phase, index=index, epsilon=0.0, temperature=sampling.temperature)
        queue = iter([trajectory for group in groups for trajectory in group.trajectories])

        async def lane() -> None:
            for trajectory in queue:
                await self._run_episode(trajectory, explore)
                if listener is not None:
                    listener(trajectory)

        self._run([lane for _ in range(min(self._max_concurrent, len(groups) * group_size))])
        return self._rollout(groups, phase=phase, index=index, started=started)

    def collect_steps(
        self,
        lanes: Sequence[int],
        *,
        num_lanes: int,
        steps_per_lane: int,
        index: int,
        epsilon: float,
        temperature: float,
        listener: EpisodeListener | None = None,
    ) -> tuple[Rollout, dict[int, list[Transition]]]:
        """Run training episodes in lanes, each until it has made `steps_per_lane` steps and its episode is over.

        Lanes know nothing of one another, so sharing them out among ranks changes nothing. A failed episode counts as
        one step at least, and leaves no transitions.

        Args:
            lanes: Those of this rank.
            num_lanes: Lanes of all ranks.
            steps_per_lane: Environment steps.
            index: Number of the rollout, part of every seed.
            epsilon: Probability of any action.
            temperature: Of the softmax over values.
            listener: Told of every episode that ends.

        Returns:
            The rollout, one group an episode, and the transitions of each group.
        """
        started = time.perf_counter()
        groups: list[TrajectoryGroup] = []
        transitions: dict[int, list[Transition]] = {}
        explore = _Explore(phase="train", index=index, epsilon=epsilon, temperature=temperature)
        queue = iter(lanes)

        async def lane() -> None:
            for number in queue:
                steps = episodes = 0
                while steps < steps_per_lane:
                    group = number + episodes * num_lanes
                    async with self._batcher.outside():
                        task = await self._pool.sample_task(derive_seed(self._run_seed, "task", index, group), "train")
                    trajectory = Trajectory(task=task, group=group, sample=0)
                    transitions[group] = await self._run_episode(trajectory, explore)
                    groups.append(TrajectoryGroup(group=group, task=task, trajectories=[trajectory]))
                    if listener is not None:
                        listener(trajectory)
                    steps += max(1, trajectory.env_steps)
                    episodes += 1

        self._run([lane for _ in lanes])
        groups.sort(key=lambda group: group.group)
        return self._rollout(groups, phase="train", index=index, started=started), transitions

    def _run(self, lanes: Sequence[Callable[[], Awaitable[None]]]) -> None:
        self._stats = EngineStats()
        self._batcher = LockstepBatcher(self._choose)

        async def live(lane: Callable[[], Awaitable[None]]) -> None:
            async with self._batcher.episode():
                await lane()

        run_lanes(self._pool, [partial(live, lane) for lane in lanes])

    def _rollout(self, groups: list[TrajectoryGroup], *, phase: Phase, index: int, started: float) -> Rollout:
        wall_s = time.perf_counter() - started
        return Rollout(phase=phase, index=index, groups=groups, engine=self._stats, wall_s=wall_s)

    def _choose(self, requests: Sequence[ChoiceRequest]) -> list[str]:
        started = time.perf_counter()
        try:
            return self._chooser.choose(requests)
        finally:
            self._stats.seconds += time.perf_counter() - started

    async def _run_episode(self, trajectory: Trajectory, explore: _Explore) -> list[Transition]:
        path = (trajectory.group, trajectory.sample, trajectory.attempt)

        async def choose(observation: Observation, turn: int) -> str:
            return await self._batcher.submit(
                ChoiceRequest(
                    identity=(*path, turn),
                    observation=observation,
                    seed=derive_seed(self._run_seed, f"choose/{explore.phase}", explore.index, *path, turn),
                    epsilon=explore.epsilon,
                    temperature=explore.temperature,
                )
            )

        transitions: list[Transition] = []
        async with running_episode(trajectory, pool=self._pool, lockstep=self._batcher, rewards=self._rewards) as env:
            transitions = await self._agent.play(trajectory, env, choose, version=self._version)
            earned = trajectory.reward
        if trajectory.status == "failed":
            return []
        if trajectory.reward != earned:  # what an episode earns beside its steps is paid at the last one
            last = transitions[-1]
            transitions[-1] = dataclasses.replace(last, reward=last.reward + trajectory.reward - earned)
        return transitions


@dataclass(frozen=True, kw_only=True, slots=True)
class _Explore:
    """How the episodes of a rollout explore."""

    phase: Phase
    index: int
    epsilon: float
    temperature: float
