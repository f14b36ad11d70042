"""What runs in the sandbox to test a function: records the tests' calls, answers them, or checks answers.

Standard library only: `lit_agentrl.envs.function_tests` sends this file's text there. Roles never share a process, and
only plain values go from one to the next, so a tested function meets neither the tests nor what judges it.
"""

from __future__ import annotations

import ast
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias, cast

Role: TypeAlias = Literal["record", "answer", "check"]
_CONTAINERS: dict[str, type[Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_COUNT = "__count__"
_MAX_BITS = 10_000  # JSON's reader refuses longer ones


class NotPlainError(TypeError):
    """A value is none that goes from one process to the next."""


def to_plain(value: Any, depth: int = 50) -> Any:
    """Return a value as JSON holds it: numbers and strings as they are, all else as kind and contents.

    Subclasses become what they derive from, `Counter` a dict.

    Raises:
        NotPlainError: It is of another type, or nested too deeply.
    """
    if value is None or isinstance(value, bool):
        return value
    for scalar in (int, float, str):
        if isinstance(value, scalar):
            return _short(scalar(value))
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"bytes": list(value)}
    if depth == 0:
        raise NotPlainError("a value that is nested more than 50 times")
    if isinstance(value, dict):
        return {"dict": [[to_plain(key, depth - 1), to_plain(entry, depth - 1)] for key, entry in value.items()]}
    for kind, cls in _CONTAINERS.items():
        if isinstance(value, cls):
            entries = sorted(value, key=repr) if kind.endswith("set") else value
            return {kind: [to_plain(entry, depth - 1) for entry in entries]}
    raise NotPlainError(f"a value of type {type(value).__name__}")


def _short(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise NotPlainError("an integer of thousands of digits")
    return value


def of_plain(plain: Any) -> Any:
    """Return the value that `to_plain` wrote down; raises whatever malformed ones bring about."""
    if not isinstance(plain, dict):
        if isinstance(plain, list):
            raise ValueError("a list without its kind")
        return plain
    ((kind, entries),) = plain.items()
    if kind == "dict":
        return {of_plain(key): of_plain(entry) for key, entry in entries}
    if kind == "complex":
        return complex(*entries)
    if kind == "bytes":
        return bytes(entries)
    return _CONTAINERS[kind](of_plain(entry) for entry in entries)


def record(program: str, tests: str, name: str) -> Iterator[dict[str, Any]]:
    """Run the tests on the published function: what it is called with, call by call, then how many assertions held."""
    calls: list[dict[str, Any]] = []
    function = _function(program, name)

    def recorder(*args: Any, **kwargs: Any) -> Any:
        calls.append({"args": to_plain(args), "kwargs": to_plain(kwargs)})
        return function(*args, **kwargs)

    run, counts = _tests(program, tests)
    run(recorder)
    yield from calls
    yield {"held": sum(counts), "total": len(counts)}


def answer(program: str, calls: list[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """Call a function that a model wrote, and say what it returns or raises."""
    function = _function(program, name)
    for call in calls:
        try:
            yield {"value": to_plain(function(*of_plain(call["args"]), **of_plain(call["kwargs"])))}
        except Exception as error:
            yield {"error": f"{type(error).__name__}: {error}"[:300]}


def check(
    program: str, tests: str, calls: list[dict[str, Any]], answers: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Run the tests on what was answered, and say how many assertions held.

    Args:
        program: The published function, for what tests use besides.
        tests: Source of a function `check(candidate)`.
        calls: What the tests call the function with.
        answers: What it answered, call by call; there may be too few.
    """
    problems: list[str] = []
    made: list[dict[str, Any]] = []

    def replay(*args: Any, **kwargs: Any) -> Any:
        given = answers[len(made)] if len(made) < len(answers) else {"error": "there was no answer"}
        made.append({"args": to_plain(args), "kwargs": to_plain(kwargs)})
        if "value" not in given:
            problems.append(str(given.get("error")))
            raise LookupError
        return of_plain(given["value"])

    run, counts = _tests(program, tests)
    try:
        run(replay)
    except Exception as error:  # only where an answer is used outside of an assertion
        problems.append(f"{type(error).__name__}: {error}")
    same = made == calls[: len(made)]
    yield {"held": sum(counts), "made": len(made), "same": same, "problem": problems[0] if problems else ""}


def _function(program: str, name: str) -> Callable[..., Any]:
    random.seed(0)
    namespace: dict[str, Any] = {"__name__": "answer"}
    exec(compile(program, "answer.py", "exec"), namespace)
    return cast("Callable[..., Any]", namespace[name])


def _tests(program: str, tests: str) -> tuple[Callable[..., Any], list[bool]]:
    """Return the tests' function `check`, and the list in which it notes which assertions held."""
    random.seed(0)
    counts: list[bool] = []
    namespace: dict[str, Any] = {"__name__": "tests", _COUNT: counts.append}
    exec(compile(program, "published.py", "exec"), namespace)
    tree = ast.fix_missing_locations(_Counted().visit(ast.parse(tests)))
    exec(compile(tree, "tests.py", "exec"), namespace)
    return namespace["check"], counts


class _Counted(ast.NodeTransformer):
    """Notes whether each assertion holds instead of stopping at the first that does not."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if isinstance(node.test, ast.Constant):  # holds whatever the function does
            return ast.Pass()
        held = f"{_COUNT}(bool({ast.unparse(node.test)}))"
        return ast.parse(f"try:\n    {held}\nexcept Exception:\n    {_COUNT}(False)").body[0]


def _main(role: str, name: str) -> None:
    out = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    roles: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "record": lambda: record(_read("program"), _read("tests"), name),
        "answer": lambda: answer(_read("program"), _lines("calls"), name),
        "check": lambda: check(_read("program"), _read("tests"), _lines("calls"), _lines("answers")),
    }
    try:
        for line in roles[role]():
            os.write(out, json.dumps(line).encode() + b"\n")
    except Exception as error:
        os.write(out, json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}).encode() + b"\n")


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _lines(path: str) -> list[dict[str, Any]]:
    """Read as many records as are well formed."""
    found = []
    for line in _read(path).splitlines():
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                break
        except (ValueError, RecursionError):
            break
        found.append(record)
    return found


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
