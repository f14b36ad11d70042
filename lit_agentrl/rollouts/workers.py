"""Environment workers: episodes run in slots of worker processes, and survive the death of a process.

A worker that dies or hangs is killed and replaced within the timeout. Episodes of environments that declare themselves
deterministic are replayed on the replacement, so results are those of a run without the crash; other episodes fail.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from lit_agentrl.agents.tools.base import ToolEntry, tool_path
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.protocols import EpisodeFailedError
from lit_agentrl.rollouts.env_slot import EnvSlot, Seat
from lit_agentrl.rollouts.worker_channel import WorkerLostError
from lit_agentrl.rollouts.worker_process import ForkServer, WorkerProcess, frame_config
from lit_agentrl.rollouts.worker_protocol import WorkerConfig, WorkerInfo
from lit_agentrl.types import Demonstration, EnvTraits, Split, Task, ToolSpec


@dataclass(kw_only=True, slots=True)
class WorkerStats:
    """What happened in a pool since it was made."""

    restarts: int = 0
    """Workers started in place of one that was lost."""
    timeouts: int = 0
    """Workers killed because they gave no answer in time."""
    env_errors: int = 0
    """Operations in which the environment raised or returned something wrong."""
    replays: int = 0
    """Episodes rebuilt on another process."""
    outputs_cut: int = 0
    """Observations' texts and tool outputs that were longer than allowed."""


class WorkerPool:
    """A fixed number of slots for episodes, spread over worker processes.

    Nothing starts before the first use. A pool belongs to one event loop at a time; when a new loop comes, the episodes
    of the one before are dropped. After `close`, the next use starts it again.

    Example:
        ```python
        with WorkerPool(EnvSpec(class_path="my_package.MyEnv"), num_workers=2) as pool:
            slot = await pool.acquire()
            observation = await slot.reset(await pool.sample_task(0, "train"))
            slot.release()
        ```
    """

    def __init__(
        self,
        env: EnvSpec,
        *,
        tools: Sequence[ToolEntry] = (),
        num_workers: int,
        envs_per_worker: int = 1,
        timeout_s: float = 60.0,
        start_timeout_s: float = 120.0,
        max_output_chars: int = 8000,
        max_retries: int = 1,
    ) -> None:
        """Describe a pool.

        Args:
            env: The environment, importable by its class path in a fresh process.
            tools: Import paths of the agent's tools, which run next to the environment.
            num_workers: Worker processes.
            envs_per_worker: Slots per worker. They take turns, so this suits environments that answer quickly. An
                environment that is `exclusive` gets one, whatever is asked for.
            timeout_s: Seconds that one operation may take before its worker counts as hung.
            start_timeout_s: Seconds for importing and making the environment.
            max_output_chars: Longer texts in observations and tool outputs are cut with a marker.
            max_retries: How often an operation that its worker was lost in is tried again, if the environment is
                deterministic.

        Raises:
            ValueError: A number is out of range, or the environment cannot be imported by workers.
        """
        _check("num_workers", num_workers, num_workers >= 1, "at least 1")
        _check("envs_per_worker", envs_per_worker, envs_per_worker >= 1, "at least 1")
        _check("timeout_s", timeout_s, timeout_s > 0, "greater than 0")
        _check("start_timeout_s", start_timeout_s, start_timeout_s > 0, "greater than 0")
        _check("max_output_chars", max_output_chars, max_output_chars >= 1, "at least 1")
        _check("max_retries", max_retries, max_retries >= 0, "at least 0")
        if env.class_path.startswith("__main__."):
            raise ValueError(
                f"env.class_path: {env.class_path} lives in the script or notebook itself, which workers do not run; "
                "move the class to a module that can be imported"
            )
        self.stats = WorkerStats()
        self.timeout_s = timeout_s
        self.max_retries = max_retries
        self.class_path = env.class_path
        self._slots_per_worker = envs_per_worker
        self._start_timeout_s = start_timeout_s
        self._preload = (env.class_path, *map(tool_path, tools))
        config = WorkerConfig(env=env, tools=tuple(tools), max_output_chars=max_output_chars)
        self._config = frame_config(config)
        self._seats = [Seat(self) for _ in range(num_workers)]
        self._free = self._all_slots()
        self._taken: set[EnvSlot] = set()
        self._waiting: deque[asyncio.Future[tuple[int, int]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner_pid = os.getpid()
        self._server: ForkServer | None = None
        self._finalizer: Any = None
        self._info: WorkerInfo | None = None

    @property
    def num_slots(self) -> int:
        """Episodes that can run at the same time. Final after `start`: one per worker if they are exclusive."""
        return len(self._seats) * self._slots_per_worker

    @property
    def traits(self) -> EnvTraits:
        """What the environment promises. Known after `start`."""
        return self._known.traits

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The agent's tools. Known after `start`."""
        return self._known.tool_specs

    @property
    def can_demonstrate(self) -> bool:
        """Whether the environment shows how its tasks are solved. Known after `start`."""
        return self._known.demonstrates

    @property
    def _known(self) -> WorkerInfo:
        if self._info is None:
            raise RuntimeError("the worker pool has not been started: `await pool.start()` first")
        return self._info

    async def start(self) -> None:
        """Start all workers. Does nothing when they run; every other method calls it.

        Raises:
            ValueError: The environment cannot be made.
            RuntimeError: Workers die or hang whenever they are started.
        """
        self._enter_loop()
        if all(seat.running for seat in self._seats):
            return
        # One first: an environment that cannot be made is then reported once, and `exclusive` is known.
        self._info = (await self._seats[0].ready()).info
        if self._info.traits.exclusive and self._slots_per_worker > 1:
            # Only now is it known; no slot has been taken, because every other method starts the workers first.
            self._slots_per_worker = 1
            self._free = self._all_slots()
        await asyncio.gather(*(seat.ready() for seat in self._seats))

    async def acquire(self) -> EnvSlot:
        """Wait for a free slot, first come, first served. `EnvSlot.release` gives it back."""
        await self.start()
        if self._free:
            busy = [0] * len(self._seats)
            for taken in self._taken:
                busy[taken.place] += 1
            place, index = min(self._free, key=lambda free: (busy[free[0]], free))
            self._free.discard((place, index))
        else:
            turn: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                place, index = await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._offer(turn.result())
                raise
        slot = EnvSlot(self, self._seats[place], place, index)
        self._taken.add(slot)
        return slot

    async def sample_task(self, seed: int, split: Split) -> Task:
        """Return the task that belongs to a seed.

        Raises:
            EpisodeFailedError: The environment raised, or its worker was lost more than `max_retries` times.
        """
        return await self._ask("sample", f"sample_task(seed={seed}, split={split!r})", seed, split)

    async def sample_tasks(self, seeds: Sequence[tuple[int, Split]]) -> list[Task]:
        """Return the tasks of several (seed, split), in order; the workers share the labour."""
        return await self._all(self.sample_task(seed, split) for seed, split in seeds)

    async def demonstrate(self, tasks: Sequence[Task]) -> list[Demonstration]:
        """Return a solved episode for each task, in order.

        Raises:
            ValueError: The environment has no `demonstrate`.
            EpisodeFailedError: The environment raised, or its worker was lost more than `max_retries` times.
        """
        await self.start()
        if not self.can_demonstrate:
            raise ValueError(f"env.class_path: {self.class_path} has no method `demonstrate`")
        return await self._all(self._ask("demonstrate", f"demonstrate({task.id})", task) for task in tasks)

    def close(self) -> None:
        """End all processes. Closing twice is fine."""
        for slot in self._taken:
            slot.drop()
        self._taken.clear()
        for seat in self._seats:
            seat.vacate()
        if self._finalizer is not None:
            self._finalizer()
        self._finalizer = self._server = self._loop = None
        self._reset_slots()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def release(self, slot: EnvSlot) -> None:
        """Give a slot back; see `EnvSlot.release`."""
        if slot in self._taken:
            self._taken.discard(slot)
            self._offer((slot.place, slot.index))

    async def launch(self) -> WorkerProcess:
        """Fork a worker, from a new server if there is none."""
        if self._server is None or self._server.channel.lost is not None:
            if self._finalizer is not None:
                self._finalizer()
            self._server = ForkServer(self._preload, start_timeout_s=self._start_timeout_s)
            self._finalizer = weakref.finalize(self, self._server.close)
        return await self._server.launch(self._config)

    def _enter_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._owner_pid != os.getpid():
            # A forked copy of the trainer: the processes belong to the original.
            self._owner_pid = os.getpid()
            self.close()
        if self._loop is loop:
            return
        if self._loop is not None and self._loop.is_running():
            raise RuntimeError("a worker pool serves one event loop at a time, and another one is using it")
        for slot in self._taken:
            slot.drop()
        self._taken.clear()
        self._reset_slots()
        self._loop = loop

    def _reset_slots(self) -> None:
        for turn in self._waiting:
            if not turn.done() and not turn.get_loop().is_closed():
                turn.set_exception(RuntimeError("the worker pool was closed"))
        self._waiting.clear()
        self._free = self._all_slots()

    def _all_slots(self) -> set[tuple[int, int]]:
        return {(place, index) for place in range(len(self._seats)) for index in range(self._slots_per_worker)}

    def _offer(self, free: tuple[int, int]) -> None:
        """Hand a slot to who has waited longest; nobody who comes later can take it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(free)
                return
        self._free.add(free)

    async def _all(self, calls: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        await self.start()
        return list(await asyncio.gather(*calls))

    async def _ask(self, op: str, what: str, *arguments: Any) -> Any:
        """Have a worker answer something that depends on the arguments alone, whichever worker it is."""
        await self.start()
        losses = 0
        while True:
            seat = min(self._seats, key=lambda seat: seat.load)
            process = await seat.ready()
            try:
                reply = await process.request(op, 0, arguments, timeout_s=self.timeout_s)
            except WorkerLostError as lost:
                losses += self.count_loss(lost)
                if losses > self.max_retries:
                    raise EpisodeFailedError(f"{what}: environment worker {await process.epitaph()}") from None
                continue
            if not reply.ok:
                self.stats.env_errors += 1
                raise EpisodeFailedError(f"{what}: {reply.value}")
            return reply.value

    def count_loss(self, lost: WorkerLostError) -> bool:
        """Count a lost worker; returns whether the request that met it was the one in progress."""
        if self._server is None:
            raise RuntimeError("the worker pool was closed") from None
        self.stats.timeouts += lost.timed_out
        return lost.culprit


def _check(name: str, value: float, holds: bool, accepted: str) -> None:
    if not holds:
        raise ValueError(f"data.init_args.{name} must be {accepted}, got {value}")
