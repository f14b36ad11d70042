"""Runs episodes: agents as coroutines, environments in worker processes, generation batched over all of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TypeVar

from lit_agentrl.agents.base import Agent
from lit_agentrl.agents.context import EpisodeContext
from lit_agentrl.policies.chat import ChatFormat
from lit_agentrl.protocols import Engine, EnvHandle, EpisodeFailedError
from lit_agentrl.rewards.terms import RewardTerms
from lit_agentrl.rollouts.rollout import Rollout
from lit_agentrl.rollouts.workers import WorkerPool
from lit_agentrl.types import (
    Action,
    Observation,
    Phase,
    Sampling,
    StepResult,
    Task,
    ToolOutput,
    Trajectory,
    TrajectoryGroup,
)

_Result = TypeVar("_Result")
_LARGEST_FLOAT32 = 3.4028234663852886e38
EpisodeListener = Callable[[Trajectory], None]


class Collector(Protocol):
    """Runs episodes of given tasks; what evaluations need."""

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
        """Run `group_size` episodes of each (group, task)."""
        ...


class RolloutCollector:
    """Collects rollouts. What it returns depends on identities and weights alone, not on the number of workers.

    Args:
        pool: Environment workers.
        engine: Draws the completions.
        agent: Runs the episodes.
        chat: Chat format of the policy.
        max_context: Tokens of an episode's longest context.
        run_seed: Seed of the run.
        rewards: Terms that are added to what the environment gave; default: none.
        max_concurrent_episodes: Episodes that run at a time, if the pool has so many slots. Part of the experiment: it
            decides what shares a batch.
    """

    def __init__(
        self,
        pool: WorkerPool,
        engine: Engine,
        agent: Agent,
        *,
        chat: ChatFormat,
        max_context: int,
        run_seed: int,
        max_concurrent_episodes: int,
        rewards: RewardTerms | None = None,
    ) -> None:
        self._pool = pool
        self._engine = engine
        self._agent = agent
        self._chat = chat
        self._max_context = max_context
        self._run_seed = run_seed
        self._max_concurrent = max_concurrent_episodes
        self._rewards = rewards

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
        """Run `group_size` episodes of each task.

        Args:
            tasks: (group, task) pairs; the group is part of every episode's identity.
            phase: What the episodes are for.
            index: Number of the rollout, part of every seed.
            group_size: Episodes per task.
            sampling: How completions are drawn.
            listener: Told of every episode that ends.
        """
        started = time.perf_counter()
        self._engine.reset()
        groups = empty_groups(tasks, group_size=group_size)
        queue = iter([trajectory for group in groups for trajectory in group.trajectories])

        async def lane() -> None:
            # A lane counts as live from its first episode to its last, so that the moment between two episodes is
            # never mistaken for an agent that is done.
            async with self._engine.episode():
                for trajectory in queue:
                    await self._run_episode(trajectory, phase, index, sampling)
                    if listener is not None:
                        listener(trajectory)

        run_lanes(self._pool, [lane] * min(self._max_concurrent, len(groups) * group_size))
        stats = self._engine.stats
        self._engine.reset()  # gives memory back before training needs it
        return Rollout(
            phase=phase,
            index=index,
            groups=groups,
            engine=stats,
            wall_s=time.perf_counter() - started,
        )

    async def _run_episode(self, trajectory: Trajectory, phase: Phase, index: int, sampling: Sampling) -> None:
        async with running_episode(trajectory, pool=self._pool, lockstep=self._engine, rewards=self._rewards) as env:
            context = EpisodeContext(
                env=env,
                engine=self._engine,
                chat=self._chat,
                tools=self._pool.tool_specs,
                sampling=sampling,
                max_context=self._max_context,
                phase=phase,
                run_seed=self._run_seed,
                rollout=index,
            )
            await self._agent.run(trajectory, context)


def empty_groups(tasks: Sequence[tuple[int, Task]], *, group_size: int) -> list[TrajectoryGroup]:
    """Return a group of trajectories to be run for each (group, task)."""
    return [
        TrajectoryGroup(
            group=group,
            task=task,
            trajectories=[Trajectory(task=task, group=group, sample=sample) for sample in range(group_size)],
        )
        for group, task in tasks
    ]


def run_lanes(pool: WorkerPool, lanes: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Run coroutines at the same time, no more than there are slots: one that waited would hold up all the others."""

    async def everything() -> None:
        await pool.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                for lane in lanes[: pool.num_slots]:
                    tasks.create_task(lane())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    run_coroutine(everything())


@asynccontextmanager
async def running_episode(
    trajectory: Trajectory, *, pool: WorkerPool, lockstep: Lockstep, rewards: RewardTerms | None
) -> AsyncIterator[EnvHandle]:
    """Give the body an environment; afterwards add the reward terms, or mark the trajectory as failed.

    A body that ends with `EpisodeFailedError` ends here: a failed episode is data, not a crash.
    """
    started = time.perf_counter()
    async with lockstep.outside():
        slot = await pool.acquire()
    try:
        yield _OutsideHandle(slot, lockstep)
        _check_finite(trajectory, pool.class_path)
        if rewards is not None:
            rewards.add_to(trajectory)
            _check_finite(trajectory, pool.class_path)
    except EpisodeFailedError as error:
        trajectory.status, trajectory.cause = "failed", str(error)
        # Whatever was earned before says nothing about an episode whose end is unknown.
        trajectory.reward, trajectory.reward_parts, trajectory.success = 0.0, {}, False
    finally:
        trajectory.outputs_cut = slot.outputs_cut
        trajectory.wall_s = time.perf_counter() - started
        slot.release()


def _check_finite(trajectory: Trajectory, env: str) -> None:
    """Refuse what the sums over an episode's steps made of its rewards; single steps are checked in the worker.

    Raises:
        EpisodeFailedError: Something is not a finite number, or none in float32, in which algorithms compute.
    """
    earned = {"reward": trajectory.reward}
    earned |= {f"reward of turn {number}": turn.reward for number, turn in enumerate(trajectory.turns)}
    earned |= {f"reward part {name!r}": part for name, part in trajectory.reward_parts.items()}
    for name, value in earned.items():
        if not abs(value) <= _LARGEST_FLOAT32:
            raise EpisodeFailedError(
                f"episode {trajectory.id} of {env}: its {name} is {value}; it must be finite in float32"
            )


class Lockstep(Protocol):
    """What has to be told that an episode waits for its environment: an engine, or a batcher."""

    def outside(self) -> AbstractAsyncContextManager[None]:
        """Count the body as waiting for something else."""
        ...


class _OutsideHandle:
    """An environment slot whose operations hold back the engine, so that batches do not depend on their speed."""

    def __init__(self, slot: EnvHandle, engine: Lockstep) -> None:
        self._slot = slot
        self._engine = engine

    @property
    def outputs_cut(self) -> int:
        return self._slot.outputs_cut

    async def reset(self, task: Task) -> Observation:
        async with self._engine.outside():
            return await self._slot.reset(task)

    async def step(self, action: Action) -> StepResult:
        async with self._engine.outside():
            return await self._slot.step(action)

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolOutput:
        async with self._engine.outside():
            return await self._slot.call_tool(name, arguments)


def run_coroutine(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end, also where a loop is running already (notebooks)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    box: list[_Result] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            box.append(asyncio.run(coroutine))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target, name="lit-agentrl-rollout")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return box[0]
