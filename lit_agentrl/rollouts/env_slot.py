"""Where one episode runs: a slot in a worker, and the worker's place, whichever process fills it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lit_agentrl.protocols import EpisodeFailedError
from lit_agentrl.rollouts.worker_channel import WorkerLostError
from lit_agentrl.rollouts.worker_process import WorkerProcess, WorkerStartError
from lit_agentrl.rollouts.worker_protocol import Reply
from lit_agentrl.types import Action, Observation, StepResult, Task, ToolOutput

if TYPE_CHECKING:
    from lit_agentrl.rollouts.workers import WorkerPool

_START_TRIES = 3


class Seat:
    """The place of a worker, whichever process fills it."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._process: WorkerProcess | None = None
        self._starting: asyncio.Task[WorkerProcess] | None = None

    @property
    def running(self) -> bool:
        """Whether a process is there that can be asked."""
        return self._process is not None and self._process.alive

    @property
    def load(self) -> int:
        """Requests that are not answered yet."""
        return self._process.load if self._process is not None else 0

    def vacate(self) -> None:
        """Forget the process; its server ends it."""
        self._process = None
        if self._starting is not None and not self._starting.get_loop().is_closed():
            self._starting.cancel()
        self._starting = None

    async def ready(self) -> WorkerProcess:
        """Return a process that works, starting one if need be; all who wait for it share the start."""
        if self._process is not None and self._process.alive:
            return self._process
        loop = asyncio.get_running_loop()
        if self._starting is None or self._starting.done() or self._starting.get_loop() is not loop:
            self._starting = loop.create_task(self._start())
            # Those who wait may all be cancelled meanwhile; the error must not be reported as forgotten then.
            self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._starting)

    async def _start(self) -> WorkerProcess:
        pool = self._pool
        replacing = self._process is not None
        for _ in range(_START_TRIES):
            try:
                self._process = await pool.launch()
            except WorkerStartError as error:
                if not replacing:
                    raise ValueError(f"env.class_path: no worker for {pool.class_path} can start: {error}") from None
                failure = str(error)
            except WorkerLostError as error:
                failure = f"it {error}"
            else:
                pool.stats.restarts += replacing
                return self._process
        raise RuntimeError(
            f"env.class_path: {pool.class_path} failed to start in a worker {_START_TRIES} times in a row: {failure}"
        )


class EnvSlot:
    """One episode at a time in a worker; see `lit_agentrl.protocols.EnvHandle`.

    Operations of one slot follow one another; they must not be awaited at the same time. A replay runs the episode's
    tool calls again, so whatever a tool does to the outside world happens again, too.
    """

    def __init__(self, pool: WorkerPool, seat: Seat, place: int, index: int) -> None:
        self.place = place
        self.index = index
        self.outputs_cut = 0
        """Texts of this slot's episode that were cut, since the last `reset`."""
        self._pool = pool
        self._seat = seat
        self._process: WorkerProcess | None = None
        self._log: list[tuple[str, tuple[Any, ...], Reply]] = []
        self._failure: str | None = None
        self._dropped = False
        self._loop = asyncio.get_running_loop()

    async def reset(self, task: Task) -> Observation:
        """Start an episode. Raises `EpisodeFailedError` when the worker is lost or the environment raises."""
        self._log.clear()
        self._failure = None
        self.outputs_cut = 0
        return await self._do("reset", task)

    async def step(self, action: Action) -> StepResult:
        """Carry out one action. Raises `EpisodeFailedError` when the worker is lost or the environment raises."""
        return await self._do("step", action)

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolOutput:
        """Run one of the agent's tools next to the environment; the tool's errors come back as text.

        Raises:
            EpisodeFailedError: The worker was lost.
        """
        return await self._do("tool", name, arguments)

    def release(self) -> None:
        """Give the slot back. The handle is of no use afterwards; releasing twice is fine."""
        self._dropped = True
        self._pool.release(self)

    def drop(self) -> None:
        """Invalidate the handle: its event loop or its pool is gone."""
        self._dropped = True

    async def _do(self, op: str, *arguments: Any) -> Any:
        if self._dropped or self._loop is not asyncio.get_running_loop():
            raise RuntimeError("this environment slot was released, or its event loop or pool is gone")
        if self._failure is not None:
            raise EpisodeFailedError(self._failure)
        try:
            reply = await self._until_answered(op, arguments)
        except asyncio.CancelledError:
            self._failure = f"{op} was cancelled"
            raise
        self._log.append((op, arguments, reply))
        self.outputs_cut += reply.outputs_cut
        self._pool.stats.outputs_cut += reply.outputs_cut
        return reply.value

    async def _until_answered(self, op: str, arguments: tuple[Any, ...]) -> Reply:
        losses = 0
        while True:
            process = await self._seat.ready()
            try:
                if self._process is not process:
                    await self._move(process)
                reply = await self._request(process, op, arguments)
            except WorkerLostError as lost:
                culprit = self._pool.count_loss(lost)
                losses += culprit
                cause = f"environment worker {await process.epitaph()} during {op}"
                # Nothing of an episode that waits for its first observation can have been seen by anyone.
                unharmed = not self._log and not culprit
                if losses > self._pool.max_retries or not (self._pool.traits.deterministic or unharmed):
                    raise self._failed(cause) from None
                continue
            if not reply.ok:
                self._pool.stats.env_errors += 1
                raise self._failed(f"{op}: {reply.value}")
            return reply

    async def _move(self, process: WorkerProcess) -> None:
        """Bring the episode to another process, by doing everything again."""
        if self._log and not self._pool.traits.deterministic:
            raise self._failed("environment worker was lost between two steps")
        for op, arguments, recorded in self._log:
            reply = await self._request(process, op, arguments)
            # Tools may well answer differently (a clock); what was answered first has been read by the agent already.
            if op != "tool" and _seen(reply) != _seen(recorded):
                raise self._failed(
                    f"replay of {op} gave another answer, though {self._pool.class_path} declares itself deterministic"
                )
        self._pool.stats.replays += bool(self._log)
        self._process = process

    def _request(self, process: WorkerProcess, op: str, arguments: tuple[Any, ...]) -> Coroutine[Any, Any, Reply]:
        return process.request(op, self.index, arguments, timeout_s=self._pool.timeout_s)

    def _failed(self, cause: str) -> EpisodeFailedError:
        self._failure = cause
        return EpisodeFailedError(cause)


def _seen(reply: Reply) -> Any:
    """What the agent learns from an answer; `info` may hold times and the like."""
    return replace(reply.value, info={}) if reply.ok and isinstance(reply.value, StepResult) else reply[:2]
