"""Requests to another process over a socket: answers in order, a deadline for each, no event loop for life."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lit_agentrl.processes import HEADER
from lit_agentrl.rollouts.worker_protocol import Reply

_READ_BYTES = 1 << 16  # more would be mapped and unmapped at every read


class WorkerLostError(Exception):
    """The process at the other end died, hung or was closed before it answered."""

    def __init__(self, reason: str, *, culprit: bool, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.culprit = culprit
        """Whether this request was the one being worked on. Others were only waiting behind it."""
        self.timed_out = timed_out


@dataclass(slots=True)
class _Pending:
    future: asyncio.Future[Any] | None
    """`None`: asked in an event loop that is gone; the answer is dropped."""
    timeout_s: float


class Channel:
    """Requests over a socket, answered in order by a process that works on one at a time.

    The clock of a request starts when the one before it is answered, so that waiting behind a slow neighbour is never
    taken for hanging. Not bound to an event loop: the first request in a new loop moves the channel there.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._owner_pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._pending: deque[_Pending] = deque()
        self._inbox = bytearray()
        self._outbox = bytearray()
        self.lost: str | None = None
        """Why nothing can be asked any more."""
        self.on_lost: Callable[[], None] = lambda: None

    @property
    def load(self) -> int:
        """Requests that are not answered yet."""
        return len(self._pending)

    def post(self, frame: bytes, *, timeout_s: float, descriptors: Sequence[int] = ()) -> asyncio.Future[Any]:
        """Send a framed message; the future gets the answer, or `WorkerLostError`."""
        loop = asyncio.get_running_loop()
        self._bind(loop)
        future: asyncio.Future[Any] = loop.create_future()
        if self.lost is None:
            self._send(frame, descriptors)
        if self.lost is not None:
            # It was gone before this request reached it, so this request is not what it died of.
            future.set_exception(WorkerLostError(self.lost, culprit=False))
            return future
        self._pending.append(_Pending(future, timeout_s))
        if len(self._pending) == 1:
            self._arm()
        return future

    def close(self, reason: str = "was closed", *, timed_out: bool = False) -> None:
        """Give up: every open request fails."""
        if self.lost is not None:
            return
        self.lost = reason
        # In a forked copy of the trainer the loop's selector is still shared with the original.
        if self._loop is not None and not self._loop.is_closed() and self._owner_pid == os.getpid():
            self._loop.remove_reader(self._connection)
            self._loop.remove_writer(self._connection)
            self._disarm()
            for place, pending in enumerate(self._pending):
                if pending.future is not None and not pending.future.done():
                    error = WorkerLostError(reason, culprit=place == 0, timed_out=timed_out and place == 0)
                    pending.future.set_exception(error)
        self._pending.clear()
        self._connection.close()
        self.on_lost()

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop or self.lost is not None:
            return
        if self._loop is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._connection)
                self._loop.remove_writer(self._connection)
            self._disarm()
            for pending in self._pending:
                pending.future = None
        self._loop = loop
        loop.add_reader(self._connection, self._read)
        if self._outbox:
            loop.add_writer(self._connection, self._flush)
        self._arm()

    def _send(self, frame: bytes, descriptors: Sequence[int]) -> None:
        if descriptors:
            # Descriptors travel with a few bytes that always fit.
            with contextlib.suppress(OSError):
                socket.send_fds(self._connection, [frame], descriptors)
            return
        if self._outbox:
            self._outbox += frame
            return
        try:
            sent = self._connection.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close("closed its connection")
            return
        if sent < len(frame):
            assert self._loop is not None
            self._outbox += memoryview(frame)[sent:]
            self._loop.add_writer(self._connection, self._flush)

    def _flush(self) -> None:
        try:
            del self._outbox[: self._connection.send(self._outbox)]
        except BlockingIOError:
            return
        except OSError:
            self.close("closed its connection")
            return
        if not self._outbox and self._loop is not None:
            self._loop.remove_writer(self._connection)

    def _read(self) -> None:
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close("closed its connection")
            return
        self._inbox += data
        while len(self._inbox) >= HEADER.size:
            (size,) = HEADER.unpack_from(self._inbox)
            end = HEADER.size + size
            if len(self._inbox) < end:
                return
            body = bytes(memoryview(self._inbox)[HEADER.size : end])
            del self._inbox[:end]
            self._deliver(body)

    def _deliver(self, body: bytes) -> None:
        try:
            answer = pickle.loads(body)
        except Exception as error:
            answer = Reply(False, f"the answer cannot be unpickled: {type(error).__name__}: {error}")
        pending = self._pending.popleft()
        if pending.future is not None and not pending.future.done():
            pending.future.set_result(answer)
        self._arm()

    def _arm(self) -> None:
        """Start the clock of the request that is worked on now. Timers are moved lazily: most never matter."""
        if not self._pending or self._loop is None:
            return
        self._deadline = self._loop.time() + self._pending[0].timeout_s
        if self._timer is None or self._timer.when() > self._deadline:
            self._disarm()
            self._timer = self._loop.call_at(self._deadline, self._expire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if not self._pending or self._loop is None:
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._expire)
            return
        # The trainer itself may have been busy for longer than the timeout: look whether the answer is there.
        head = self._pending[0]
        self._read()
        if self.lost is None and self._pending and self._pending[0] is head:
            self.close(f"gave no answer within {head.timeout_s:g} s", timed_out=True)
