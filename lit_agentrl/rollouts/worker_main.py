"""What runs inside environment workers, and the small server that forks them. Imports no torch.

A pool starts one server process (`serve`). It imports the environment's module once and forks a worker per request, so
a replacement costs milliseconds even when the import costs seconds. A private server is used rather than the fork
server of `multiprocessing`, which is one per interpreter, re-imports the user's `__main__`, does not pass `sys.path` on
to what it preloads (Python 3.11), and outlives a killed trainer for as long as one of its workers hangs.

Whoever holds the other end of the sockets is the trainer. Nothing here depends on a worker being able to react: the
server notices that the trainer is gone and kills, and the kernel kills the workers when the server is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import math
import os
import re
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any, TypeVar

from lit_agentrl.agents.tools.base import ToolBox, readable
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.processes import die_with_parent, exit_codes
from lit_agentrl.protocols import Environment
from lit_agentrl.rollouts.worker_protocol import COMMAND, FORK, Reply, WorkerConfig, WorkerInfo, encode, receive
from lit_agentrl.types import (
    Action,
    Demonstration,
    EnvTraits,
    Observation,
    Split,
    StepResult,
    Task,
    TextPart,
)

_GRACE_S = 1.0
"""How long workers may take to close their environments before they are killed."""
_REAP_S = 1.5
_ORPHAN_CHECK_S = 0.5
_MAX_ERROR_CHARS = 500
_MAX_TRACEBACK_CHARS = 2000

_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
"""Finds out quickly that there is nothing to replace, as is nearly always so."""

_T = TypeVar("_T")


# ----------------------------------------------------------------------------------------------------- fork server


def serve(control_fd: int, trainer_pid: int, preload: Sequence[str]) -> None:
    """Fork and reap workers on request until the trainer is gone, then leave no worker behind.

    Args:
        control_fd: Inherited socket to the trainer; see `COMMAND`. Each command is answered with a framed pickle, the
            worker's process id or its exit code (negative: killed by that signal; `None`: could not be reaped in time).
        trainer_pid: The parent, to notice its death even when another process holds a copy of its socket.
        preload: Import paths of classes and functions whose modules are imported before forking.
    """
    control = socket.socket(fileno=control_fd)
    _preload(preload)
    # Pages that the collector never visits stay shared with the workers.
    gc.collect()
    gc.freeze()
    children: set[int] = set()
    while True:
        if not select.select([control], [], [], _ORPHAN_CHECK_S)[0]:
            if os.getppid() != trainer_pid:
                break
            continue
        try:
            message, descriptors, _, _ = socket.recv_fds(control, COMMAND.size, 1)
        except ConnectionError:
            break
        if not message:
            break
        command, pid = COMMAND.unpack(message)
        if command == FORK:
            pid = _fork_worker(control, descriptors[0])
            children.add(pid)
            answer: int | None = pid
        else:
            answer = _reap(pid)
            if answer is not None:
                children.discard(pid)
        try:
            control.sendall(encode(answer))
        except ConnectionError:
            break
    _end(children)


def _preload(paths: Iterable[str]) -> None:
    """Import the modules of the given objects, and whatever those name in an attribute `preload`."""
    for path in paths:
        module_name, _, name = path.rpartition(".")
        # Whatever goes wrong here goes wrong again in the worker, which can report it.
        with contextlib.suppress(BaseException):
            if module_name:
                named = getattr(importlib.import_module(module_name), name)
            else:
                named = EnvSpec(class_path=path).resolve()
            for extra in getattr(named, "preload", ()):
                importlib.import_module(extra)


def _fork_worker(control: socket.socket, descriptor: int) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    server_pid = os.getpid()
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    code = 1
    try:
        control.close()
        # A group of its own, so that what the environment starts can be killed along with it.
        os.setsid()
        if die_with_parent(server_pid):
            # The standard library reseeds itself after a fork; numpy does not.
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed()
            run_worker(socket.socket(fileno=descriptor))
            code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _kill(pid: int) -> None:
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)


def _reap(pid: int) -> int | None:
    """Kill a worker with its group. One that had died before keeps the exit code that it died with."""
    _kill(pid)
    return exit_codes({pid}, timeout_s=_REAP_S).get(pid)


def _end(children: set[int]) -> None:
    ended = exit_codes(children, timeout_s=_GRACE_S)
    for pid in ended:
        # The worker itself is gone; only what it had started is left to kill.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    left = children - ended.keys()
    for pid in left:
        _kill(pid)
    exit_codes(left, timeout_s=_REAP_S)


# ---------------------------------------------------------------------------------------------------------- worker


def run_worker(connection: socket.socket) -> None:
    """Build the environment, then answer requests one at a time until the connection closes."""
    stream = connection.makefile("rb")
    try:
        host = _Host(receive(stream))
        reply = Reply(True, host.info())
    except BaseException as error:
        text = "".join(traceback.format_exception(error))[-_MAX_TRACEBACK_CHARS:]
        connection.sendall(encode(Reply(False, f"{_describe(error)}\n{text}")))
        return
    connection.sendall(encode(reply))
    # An end of file in the middle of a message is the trainer's death, too.
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            op, slot, arguments = receive(stream)
            connection.sendall(_answer(host, op, slot, arguments))
    host.close()


def _answer(host: _Host, op: str, slot: int, arguments: tuple[Any, ...]) -> bytes:
    try:
        reply = host.do(op, slot, arguments)
    # Environments may call sys.exit or run out of memory; neither is a reason to lose the neighbours' episodes.
    except BaseException as error:
        return encode(Reply(False, _describe(error)))
    try:
        return encode(reply)
    except Exception as error:
        return encode(Reply(False, f"{op} returned something that cannot be pickled: {_describe(error)}"))


def _describe(error: BaseException) -> str:
    """Type, text and innermost place of an error, on one short line."""
    text = " ".join(str(error).split())
    text = f"{type(error).__name__}: {text}"[:_MAX_ERROR_CHARS]
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name})"


class _Host:
    """The environments of one worker, one per slot, and the tools they share."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._envs: dict[int, Environment] = {0: config.env.build()}
        self._tools = ToolBox(config.tools)
        self._ops: dict[str, Callable[..., Reply]] = {
            "reset": self._reset,
            "step": self._step,
            "tool": self._tool,
            "sample": self._sample,
            "demonstrate": self._demonstrate,
        }

    def info(self) -> WorkerInfo:
        env = self._envs[0]
        return WorkerInfo(
            traits=_expect(getattr(env, "traits", None), EnvTraits, "an attribute `traits` of type EnvTraits"),
            tool_specs=tuple(self._tools.specs),
            demonstrates=callable(getattr(env, "demonstrate", None)),
        )

    def do(self, op: str, slot: int, arguments: tuple[Any, ...]) -> Reply:
        return self._ops[op](slot, *arguments)

    def close(self) -> None:
        for slot in list(self._envs):
            self._discard(slot)
        with contextlib.suppress(Exception):
            self._tools.close()

    def _env(self, slot: int) -> Environment:
        if slot not in self._envs:
            self._envs[slot] = self._config.env.build()
        return self._envs[slot]

    def _discard(self, slot: int) -> None:
        env = self._envs.pop(slot, None)
        if env is not None:
            with contextlib.suppress(Exception):
                env.close()

    @contextlib.contextmanager
    def _episode(self, slot: int) -> Any:
        """An instance that raised may be half way through something: the next episode gets a fresh one."""
        try:
            yield self._env(slot)
        except BaseException:
            self._discard(slot)
            raise

    def _reset(self, slot: int, task: Task) -> Reply:
        self._tools.start_episode(slot)
        with self._episode(slot) as env:
            observation = _expect(env.reset(task), Observation, "reset to return an Observation")
            return Reply(True, *self._cut(observation))

    def _step(self, slot: int, action: Action) -> Reply:
        with self._episode(slot) as env:
            result = _expect(env.step(action), StepResult, "step to return a StepResult")
            self._check_finite(result)
            if result.observation is None:
                return Reply(True, result)
            observation = _expect(result.observation, Observation, "StepResult.observation to be an Observation")
            observation, outputs_cut = self._cut(observation)
            if outputs_cut:
                result = dataclasses.replace(result, observation=observation)
            return Reply(True, result, outputs_cut)

    def _check_finite(self, result: StepResult) -> None:
        parts = {f"reward_parts[{name!r}]": part for name, part in result.reward_parts.items()}
        for name, value in {"reward": result.reward, **parts}.items():
            if not isinstance(value, Real) or not math.isfinite(value):
                env = self._config.env.class_path
                raise ValueError(f"expected StepResult.{name} to be a finite number, got {value!r} from {env}")

    def _tool(self, slot: int, name: str, arguments: dict[str, Any]) -> Reply:
        output = self._tools.call(name, arguments, max_chars=self._config.max_output_chars, slot=slot)
        return Reply(True, output, int(output.cut))

    def _sample(self, slot: int, seed: int, split: Split) -> Reply:
        return Reply(True, _expect(self._env(slot).sample_task(seed, split), Task, "sample_task to return a Task"))

    def _demonstrate(self, slot: int, task: Task) -> Reply:
        env: Any = self._env(slot)
        shown = env.demonstrate(task, self._tools.specs)
        return Reply(True, _expect(shown, Demonstration, "demonstrate to return a Demonstration"))

    def _cut(self, observation: Observation) -> tuple[Observation, int]:
        """Cut the texts of an observation that are longer than allowed, and count them."""
        outputs_cut, max_chars = 0, self._config.max_output_chars
        messages = list(observation.messages)
        for place, message in enumerate(messages):
            for number, part in enumerate(message.content):
                if isinstance(part, TextPart) and (len(part.text) > max_chars or _NOT_TEXT.search(part.text)):
                    content = list(messages[place].content)
                    content[number] = TextPart(text=readable(part.text, max_chars).text)
                    messages[place] = dataclasses.replace(messages[place], content=tuple(content))
                    outputs_cut += 1
        if outputs_cut:
            observation = dataclasses.replace(observation, messages=tuple(messages))
        return observation, outputs_cut


def _expect(value: Any, kind: type[_T], wanted: str) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"expected {wanted}, got {type(value).__name__}")
    return value
