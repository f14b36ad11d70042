"""Runs a package's own tests on changed sources, in the sandbox, and believes only what was really executed."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from lit_agentrl.agents.tools.sandbox.protocol import Limits
from lit_agentrl.agents.tools.sandbox.sandbox import Sandbox

_NEEDED = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
_PRELOAD = ("pytest", "_pytest.python", "_pytest.unittest", "_pytest.doctest", "_pytest.fixtures", "unittest")
_MAX_TRACEBACK_CHARS = 8000
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_RUNNER = """
import json, os, sys
def main():
    word, folder, module = {word!r}, {folder!r}, {module!r}
    out = os.dup(1)
    here = os.getpid()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    work = os.getcwd()
    sys.path[:0] = [work + "/code", work + "/" + folder]
    import pytest
    passed, failed = [], {{}}
    class Listener:
        def pytest_runtest_logreport(self, report):
            name = report.nodeid.partition("/")[2] or report.nodeid
            if report.when == "call" and report.passed:
                passed.append(name)
            elif report.failed:
                failed[name] = str(report.longrepr)[-{tail}:]
        def pytest_collectreport(self, report):
            if report.failed:
                failed[report.nodeid.partition("/")[2] or report.nodeid] = str(report.longrepr)[-{tail}:]
    reached = __import__(module).reached
    pytest.main(["--assert=plain", "-p", "no:cacheprovider", "-p", "no:terminal",
                 "--rootdir=" + work, work + "/" + folder], plugins=[Listener()])
    if os.getpid() == here:
        text = json.dumps({{"passed": passed, "failed": failed, "reached": reached}})
        os.write(out, ("\\n" + word + text + "\\n").encode(errors="replace"))
main()
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TestRun:
    """What came of the tests."""

    __test__ = False  # the name is no test's

    passed: dict[str, int]
    """For each test function, how many of its cases ran to the last line and passed."""
    failures: dict[str, str]
    """The end of the traceback by test."""
    problem: str
    """Why there is no result at all; empty if there is one."""


class PackageTests:
    """Runs tests so that a changed package cannot say that they passed.

    Each run puts the tests, as they were published, under names that no run had before. A statement at the end of each
    test function says a random word; a test has passed if pytest says so and its word was said as often as it has
    cases. Code that ends early, loops, forks, skips tests or makes pytest report success says none of the words.

    Args:
        limits: Of one run.
        allow_unsafe: See the sandbox.
        key: Configuration key of this.
    """

    def __init__(self, *, limits: Limits | None = None, allow_unsafe: bool = False, key: str = "env.init_args") -> None:
        self._sandbox = Sandbox(
            limits=limits or Limits(wall_s=20, cpu_s=5, memory_mb=512, num_processes=16, output_kb=512),
            read_only=[path for name in _NEEDED if (path := _location(name))],
            path=sorted({os.path.dirname(path) for name in _NEEDED if (path := _location(name))}),
            preload=_PRELOAD,
            allow_unsafe=allow_unsafe,
            key=key,
        )

    def run(self, sources: Mapping[str, str], tests: Mapping[str, str], *, traceback_chars: int = 400) -> TestRun:
        """Run tests.

        Args:
            sources: The package's files.
            tests: Its test files.
            traceback_chars: Length of each failure's text.

        Raises:
            SandboxError: The sandbox failed; the code did neither right nor wrong.
        """
        word, folder, module = (f"x{secrets.token_hex(12)}" for _ in range(3))
        files = {f"code/{path}": text.encode() for path, text in sources.items()}
        files[f"{folder}/{module}.py"] = b"reached = []\n"
        words: dict[str, str] = {}
        names: dict[str, str] = {}
        for path, text in tests.items():
            name = f"test_{secrets.token_hex(8)}.py"
            names[name] = path
            files[f"{folder}/{name}"] = _with_words(text, path, module, words).encode()
        runner = _RUNNER.format(word=word, folder=folder, module=module, tail=_MAX_TRACEBACK_CHARS)
        result = self._sandbox.run(runner, files=files)
        if result.cause:
            return TestRun(passed={}, failures={}, problem=f"the tests took more {result.cause} than is allowed")
        lines = [line for line in result.stdout.decode(errors="replace").splitlines() if line.startswith(word)]
        try:
            (line,) = lines
            said = json.loads(line.removeprefix(word))
            return _counted(said, names, words, traceback_chars)
        except (ValueError, TypeError, KeyError, AttributeError):
            return TestRun(passed={}, failures={}, problem="the tests ended before there was a result")

    def close(self) -> None:
        """End the sandbox."""
        self._sandbox.close()


def _counted(
    said: Mapping[str, Any], names: Mapping[str, str], words: Mapping[str, str], traceback_chars: int
) -> TestRun:
    said_words: dict[str, int] = {}
    for word in said["reached"]:
        function = words[word]
        said_words[function] = said_words.get(function, 0) + 1
    passed: dict[str, int] = {}
    for node in said["passed"]:
        function = _function_of(node, names)
        passed[function] = passed.get(function, 0) + 1
    failures = {}
    for node, text in said["failed"].items():
        shown = _ADDRESS.sub("0x...", str(text))
        for name, path in names.items():
            shown = shown.replace(name.removesuffix(".py"), PurePosixPath(path).stem)
        shown = re.sub(r"x[0-9a-f]{24}/", "tests/", shown)
        # Cut only now: a piece of a name that is another one in each run would stay.
        failures[_readable(str(node), names)] = shown[-traceback_chars:]
        failed = _function_of(str(node), names)
        passed.pop(failed, None)  # a function with one case that failed has not passed
    kept = {name: count for name, count in sorted(passed.items()) if said_words.get(name) == count}
    return TestRun(passed=kept, failures=dict(sorted(failures.items())), problem="")


def _readable(node: str, names: Mapping[str, str]) -> str:
    file, _, rest = node.partition("::")
    return f"{names.get(file, file)}::{rest}" if rest else names.get(file, file)


def _function_of(node: str, names: Mapping[str, str]) -> str:
    return _readable(node, names).partition("[")[0]


def _with_words(source: str, path: str, module: str, words: dict[str, str]) -> str:
    """Return a test file whose test functions each end with a word of their own."""
    tree = ast.parse(source)
    classes: Sequence[tuple[str, ast.Module | ast.ClassDef]] = [
        (path, tree),
        *((f"{path}::{node.name}", node) for node in tree.body if isinstance(node, ast.ClassDef)),
    ]
    for prefix, holder in classes:
        for node in holder.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                word = secrets.token_hex(8)
                words[word] = f"{prefix}::{node.name}"
                node.body += ast.parse(f"__import__({module!r}).reached.append({word!r})").body
    return ast.unparse(tree)


def _location(name: str) -> str | None:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return None
    return os.path.dirname(spec.origin) if spec.submodule_search_locations else spec.origin
