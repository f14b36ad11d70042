"""The trainer's side of worker processes: the server that forks them, each from start to certain death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from lit_agentrl.rollouts.worker_channel import Channel, WorkerLostError
from lit_agentrl.rollouts.worker_protocol import COMMAND, FORK, REAP, Reply, WorkerConfig, WorkerInfo, encode

_CLOSE_S = 5.0

# Workers share the cores with the trainer; a fixed salt keeps the order of sets the same in every run.
_ENVIRONMENT_DEFAULTS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONHASHSEED": "0"}


class ForkServer:
    """Starts workers with the trainer's `sys.path`, directory and variables, as of now."""

    def __init__(self, preload: Sequence[str], *, start_timeout_s: float) -> None:
        """Launch the server; it answers once `preload` is imported."""
        self._owner_pid = os.getpid()
        self._start_timeout_s = start_timeout_s
        self._workers: set[Channel] = set()
        ours, theirs = socket.socketpair()
        path = [entry or os.getcwd() for entry in sys.path]
        program = (
            f"import sys; sys.path[:] = {path!r}; from lit_agentrl.rollouts.worker_main import serve; "
            f"serve({theirs.fileno()}, {self._owner_pid}, {list(preload)!r})"
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                env=_ENVIRONMENT_DEFAULTS | dict(os.environ),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the trainer
            )
        self.channel = Channel(ours)

    async def launch(self, config: bytes) -> WorkerProcess:
        """Fork a worker and wait until its environment stands.

        Args:
            config: A framed `WorkerConfig`.

        Raises:
            WorkerLostError: The worker died or hung before that.
            WorkerStartError: The environment or a tool could not be made.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            command = COMMAND.pack(FORK, 0)
            forked = self.channel.post(command, timeout_s=self._start_timeout_s, descriptors=[theirs.fileno()])
        channel = Channel(ours)
        self._workers.add(channel)
        channel.on_lost = lambda: self._workers.discard(channel)
        try:
            pid = await forked
        except BaseException:
            channel.close()
            raise
        worker = WorkerProcess(self, channel, pid)
        try:
            reply = await channel.post(config, timeout_s=self._start_timeout_s)
        except WorkerLostError as lost:
            raise WorkerLostError(await worker.epitaph(), culprit=True, timed_out=lost.timed_out) from None
        except BaseException:
            channel.close()
            raise
        if not reply.ok:
            channel.close("could not be started")
            raise WorkerStartError(reply.value)
        worker.info = reply.value
        return worker

    def reap(self, pid: int) -> asyncio.Future[int | None] | None:
        """Kill a worker; the future gets its exit code. `None` when no event loop runs: closing kills it later."""
        try:
            death = self.channel.post(COMMAND.pack(REAP, pid), timeout_s=self._start_timeout_s)
        except RuntimeError:
            return None
        # Not everyone who loses a worker asks what it died of; a lost server is no error of theirs.
        death.add_done_callback(lambda future: future.cancelled() or future.exception())
        return death

    def close(self) -> None:
        """End all workers and the server. Safe to call at any time, also at exit and in a forked copy."""
        for channel in list(self._workers):
            channel.on_lost = lambda: None
            channel.close()
        self._workers.clear()
        hangs = self.channel.lost is not None
        self.channel.close()
        if self._owner_pid == os.getpid():
            if hangs:
                self._process.kill()
            try:
                self._process.wait(timeout=_CLOSE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class WorkerStartError(Exception):
    """The environment or a tool could not be made in the worker; the text is the worker's."""


class WorkerProcess:
    """One worker from fork to death."""

    info: WorkerInfo

    def __init__(self, server: ForkServer, channel: Channel, pid: int) -> None:
        self.pid = pid
        self._channel = channel
        self._server = server
        self._death: asyncio.Future[int | None] | None = None
        forget = channel.on_lost

        def bury() -> None:
            forget()
            self._death = server.reap(pid)

        channel.on_lost = bury

    @property
    def alive(self) -> bool:
        """Whether it can still be asked, as far as is known."""
        return self._channel.lost is None

    @property
    def load(self) -> int:
        """Requests that it has not answered yet."""
        return self._channel.load

    async def request(self, op: str, slot: int, arguments: tuple[Any, ...], *, timeout_s: float) -> Reply:
        """Have one operation carried out; see `lit_agentrl.rollouts.worker_main`. Raises `WorkerLostError`."""
        return await self._channel.post(encode((op, slot, arguments)), timeout_s=timeout_s)

    async def epitaph(self) -> str:
        """Say why it was lost, once it is certain that it is dead."""
        code: int | None = None
        if self._death is not None:
            with contextlib.suppress(WorkerLostError):
                code = await asyncio.shield(self._death)
        reason = self._channel.lost or "is alive"
        if reason.startswith("closed") and code is not None:
            return f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with code {code}"
        return reason


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"


def frame_config(config: WorkerConfig) -> bytes:
    """Frame the first message to a worker.

    Raises:
        ValueError: The environment's arguments cannot be sent to another process.
    """
    try:
        return encode(config)
    except Exception as error:
        raise ValueError(
            f"env.init_args must be plain values that can be sent to a worker process, for {config.env.class_path}: "
            f"{type(error).__name__}: {error}"
        ) from error
