"""Environments for the worker tests. They do what the action says, so that a test reads as a script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lit_agentrl.types import (
    Action,
    Demonstration,
    EnvTraits,
    Message,
    Observation,
    Split,
    StepResult,
    Task,
    ToolSpec,
)


def act(text: str) -> Action:
    return Action(message=Message.of("assistant", text))


def observe(text: str) -> Observation:
    return Observation(messages=(Message.of("user", text),))


def task(seed: int = 0, **data: object) -> Task:
    return Task(id=f"t{seed}", family="script", split="train", seed=seed, data=data)


class Script:
    """Adds numbers up from the task's seed; misbehaves when told to.

    Misbehaviour with `once` happens only while the file `task.data["marker"]` does not exist.
    """

    def __init__(self, deterministic: bool = True, exclusive: bool = False) -> None:
        self.traits = EnvTraits(deterministic=deterministic, exclusive=exclusive)
        self.total = 0
        self.task: Task | None = None

    def sample_task(self, seed: int, split: Split) -> Task:
        if seed < 0:
            raise ValueError("no such seed")
        return Task(id=f"{split}-{seed}", family="script", split=split, seed=seed)

    def reset(self, task: Task) -> Observation:
        self.task, self.total = task, task.seed
        self._misbehave(str(task.data.get("on_reset", "")))
        return observe(f"total={self.total}")

    def step(self, action: Action) -> StepResult:
        text = action.message.text
        self._misbehave(text)
        if text == "wrong type":
            return "not a result"  # type: ignore[return-value]
        if text == "nan":
            return StepResult(observation=None, reward=float("nan"), terminated=True, success=True)
        if text == "lambda":
            return StepResult(observation=None, info={"f": lambda: 0})
        if text == "truncate":
            return StepResult(observation=None, reward=0.5, truncated=True, success=False)
        if text == "inspect":
            return StepResult(observation=None, info=inspect_process())
        if text.startswith("say "):
            return StepResult(observation=observe("x" * int(text[4:])))
        if text == "ansi":
            return StepResult(observation=observe("a\x1b\ud800b"))
        if text == "spawn":
            child = subprocess.Popen(["sleep", "100"])
            return StepResult(observation=None, info={"child": child.pid})
        if text.startswith("add "):
            self.total += int(text[4:])
        return StepResult(observation=observe(f"total={self.total}"), reward=float(self.total))

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec]) -> Demonstration:
        return Demonstration(task=task, messages=(Message.of("assistant", str(task.seed)),), tools=tuple(tools))

    def close(self) -> None:
        marker = self.task.data.get("close_marker") if self.task else None
        if marker:
            Path(str(marker)).touch()

    def _misbehave(self, text: str) -> None:
        what, _, when = text.partition(" ")
        if when == "once":
            assert self.task is not None
            marker = Path(str(self.task.data["marker"]))
            if marker.exists():
                return
            marker.touch()
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "exit":
            os._exit(3)
        if what == "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1000)
        if what == "slow":
            time.sleep(0.4)
        if what == "raise":
            raise RuntimeError("the grader crashed")
        if what == "quit":
            sys.exit("bye")


class Fickle(Script):
    """Claims to be deterministic and is not."""

    def step(self, action: Action) -> StepResult:
        super().step(action)
        return StepResult(observation=observe(str(time.monotonic_ns())))


class BrokenConstructor(Script):
    def __init__(self) -> None:
        raise RuntimeError("the data set is missing")


class DiesInConstructor(Script):
    def __init__(self) -> None:
        os._exit(7)


class HangsInConstructor(Script):
    def __init__(self) -> None:
        time.sleep(1000)


class ConstructsOnce(Script):
    """The second construction anywhere fails."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        if Path(marker).exists():
            raise RuntimeError("only once")
        Path(marker).touch()


class Plain:
    """No demonstrations."""

    traits = EnvTraits(deterministic=True)

    def sample_task(self, seed: int, split: Split) -> Task:
        return Task(id=str(seed), family="plain", split=split, seed=seed)

    def reset(self, task: Task) -> Observation:
        return observe("hello")

    def step(self, action: Action) -> StepResult:
        return StepResult(observation=None, reward=1.0, terminated=True, success=True)

    def close(self) -> None:
        pass


class Preloading(Plain):
    preload = ("worker_preloaded",)


def inspect_process() -> dict[str, object]:
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return {
        "torch": "torch" in sys.modules,
        "main": getattr(sys.modules["__main__"], "__file__", None),
        "cwd": os.getcwd(),
        "path": list(sys.path),
        "rss_mb": int(resident.split()[1]) / 1024,
        "pid": os.getpid(),
    }


def echo(text: str) -> str:
    """Return the text.

    Args:
        text: What to return.
    """
    return text


def tool_hang() -> str:
    """Never return."""
    time.sleep(1000)
    return ""


def tool_huge() -> str:
    """Return ten megabytes."""
    return "y" * 10_000_000
