"""Tests a function that a model wrote so that it can neither see the tests nor say that they passed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lit_agentrl.agents.tools.sandbox.protocol import Limits
from lit_agentrl.agents.tools.sandbox.sandbox import Sandbox
from lit_agentrl.envs.function_driver import Role
from lit_agentrl.rewards.grading import GraderError

_DRIVER = Path(__file__).with_name("function_driver.py")
_PRELOAD = ("ast", "copy", "json", "math", "random", "re", "string", "typing")
_WALL_FACTOR = 4  # the clock's limit, for machines that are busy


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionTests:
    """A function that is asked for, and what is published about it."""

    name: str
    program: str
    """Source with a function of that name that passes."""
    tests: str
    """Source with a function `check(candidate)` that asserts what `candidate` returns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionVerdict:
    """What came of the tests."""

    share: float
    """Of the assertions, those that held; 1 if the function passes."""
    problem: str
    """The first thing that went wrong; empty if it was only the values."""


class FunctionTester:
    """Tests functions in three calls of a sandbox, which share nothing but plain values.

    The first, once for each function, records what the tests call the published function with. The second gives those
    arguments to the model's function and takes down what it returns. The third runs the tests on these values. So
    the model's code never meets the tests, their right values or whatever judges: ending early, patching modules,
    objects that equal everything and printed verdicts are wrong values or none.

    Args:
        cpu_s: Seconds of CPU time for all calls of a function together; by the clock it is four times as many.
        memory_mb: See the sandbox.
        allow_unsafe: See the sandbox.
        key: Configuration key of this.
    """

    def __init__(self, *, cpu_s: int = 3, memory_mb: int = 512, allow_unsafe: bool = False, key: str) -> None:
        limits = Limits(cpu_s=cpu_s, memory_mb=memory_mb, disk_mb=16, num_processes=8, output_kb=512)
        limits.check(key)
        limits = replace(limits, wall_s=_WALL_FACTOR * cpu_s)
        self._sandbox = Sandbox(limits=limits, preload=_PRELOAD, allow_unsafe=allow_unsafe, key=key)
        self._source = _DRIVER.read_text(encoding="utf-8")
        self._recorded: dict[FunctionTests, tuple[bytes, int, int]] = {}

    def test(self, program: str, tests: FunctionTests) -> FunctionVerdict:
        """Test a program that should define the function.

        Raises:
            GraderError: The published function does not pass, or the tests do not call it with the same each time.
            SandboxError: The sandbox failed; the code did neither right nor wrong.
        """
        calls, num_calls, num_assertions = self._calls_of(tests)
        answers, cause = self._run("answer", tests.name, program=program, calls=calls)
        published = {"program": tests.program, "tests": tests.tests}
        output, failure = self._run("check", tests.name, **published, calls=calls, answers=answers)
        if failure:  # the published function's values took less
            return FunctionVerdict(share=0.0, problem=f"to check what it returned took more {failure} than is allowed")
        (verdict,) = _records(output, {"held", "made", "same", "problem"})
        if not verdict["same"]:
            raise GraderError(f"the tests of {tests.name} call it with other values each time")
        problem = f"it took more {cause} than is allowed" if cause else str(verdict["problem"])
        # A test that uses an answer outside of assertions may have ended early: the rest did not hold.
        complete = verdict["made"] == num_calls
        held = verdict["held"] if complete else min(verdict["held"], num_assertions - 1)
        return FunctionVerdict(share=held / num_assertions, problem=problem)

    def close(self) -> None:
        """End the sandbox."""
        self._sandbox.close()

    def _calls_of(self, tests: FunctionTests) -> tuple[bytes, int, int]:
        """Return the recorded calls, their number, and the number of assertions."""
        if tests not in self._recorded:
            output, failure = self._run("record", tests.name, program=tests.program, tests=tests.tests)
            *calls, counted = _records(output, {"held", "total"})
            if failure or counted["held"] != counted["total"] or not counted["total"]:
                raise GraderError(f"the published {tests.name} does not pass its own tests: {failure or counted}")
            self._recorded[tests] = (output, len(calls), counted["total"])
        return self._recorded[tests]

    def _run(self, role: Role, name: str, **files: str | bytes) -> tuple[bytes, str]:
        """Run the driver; return what it wrote, and the limit that ended it."""
        contents = {path: text if isinstance(text, bytes) else text.encode() for path, text in files.items()}
        result = self._sandbox.run(self._source, files=contents, argv=("driver.py", role, name))
        return result.stdout, result.cause


def _records(output: bytes, keys: set[str]) -> Sequence[dict[str, Any]]:
    """Read what the driver says when only published code has run; the last record has the keys."""
    try:
        records = [json.loads(line) for line in output.splitlines()]
    except ValueError as error:
        raise GraderError(f"the tests gave no result: {error}") from None
    if not records or set(records[-1]) != keys:
        raise GraderError(f"the tests gave no result: {records[-1:]}")
    return records
