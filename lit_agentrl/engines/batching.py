"""When to run the waiting requests: in lockstep, so that arrival order changes nothing.

What shares a batch changes floating-point results. Here a batch is run only when every live episode waits for the
engine and nothing is on its way from an environment. The set of waiting requests then follows from what the agents do
alone, whatever the number of worker processes and however fast each is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar


class Identified(Protocol):
    """A request that says who asks: (group, sample, attempt, turn, ...)."""

    @property
    def identity(self) -> tuple[int, ...]:
        """Orders requests in a batch; the first three name the episode."""
        ...


_Request = TypeVar("_Request", bound=Identified)
_Answer = TypeVar("_Answer")


class LockstepBatcher(Generic[_Request, _Answer]):
    """Collects the requests of many episodes of one event loop and runs them together, ordered by identity."""

    def __init__(self, run: Callable[[Sequence[_Request]], Sequence[_Answer]]) -> None:
        self._run = run
        self._live = 0
        self._outside = 0
        self._pending: list[tuple[_Request, asyncio.Future[_Answer]]] = []
        self._scheduled = False

    @asynccontextmanager
    async def episode(self) -> AsyncIterator[None]:
        """Count the body as a live episode."""
        self._live += 1
        try:
            yield
        finally:
            self._live -= 1
            self._maybe_schedule()

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[None]:
        """Count the body as waiting for something other than the engine: no batch is run meanwhile."""
        self._outside += 1
        try:
            yield
        finally:
            self._outside -= 1
            self._maybe_schedule()

    async def submit(self, request: _Request) -> _Answer:
        """Wait for the answer to a request."""
        future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._pending.append((request, future))
        self._maybe_schedule()
        return await future

    def _ready(self) -> bool:
        waiting = {request.identity[:3] for request, _ in self._pending}
        return bool(waiting) and len(waiting) >= self._live and not self._outside

    def _maybe_schedule(self) -> None:
        if self._ready() and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if not self._ready():
            return
        batch = sorted(self._pending, key=lambda item: item[0].identity)
        self._pending = []
        try:
            answers = self._run([request for request, _ in batch])
        except Exception as error:  # the waiting coroutines are the ones to be told
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
