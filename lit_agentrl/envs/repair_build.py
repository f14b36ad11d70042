"""Makes the tasks of the repair environment: bugs that a package's own tests find, each once."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lit_agentrl.envs.repair_mutations import Mutation, mutations
from lit_agentrl.envs.repair_packages import PACKAGES, Files, Package, read_package
from lit_agentrl.envs.repair_tests import PackageTests
from lit_agentrl.envs.splits import content_digest
from lit_agentrl.seeding import permutation
from lit_agentrl.types import Split

DEFAULT_FOLDER = "~/.cache/lit_agentrl/repair"
_FORMAT = 1
_MAX_FAILING_SHARE = 0.5  # a bug that breaks most tests, for example at import, is found without looking
_VAL_PERCENT = 15


@dataclass(frozen=True, kw_only=True, slots=True)
class Bug:
    """One task."""

    package: str
    path: str
    function: str
    kind: str
    first_line: int
    """Number of the first line that differs, from 1."""
    right: tuple[str, ...]
    """Lines of the package as it was published."""
    wrong: tuple[str, ...]
    """Lines that stand there instead."""
    failing: tuple[str, ...]
    """Test functions that pass on the package and not on the bug."""
    split: Split

    @property
    def id(self) -> str:
        """Identity by content."""
        return f"{self.package}-{content_digest(f'{self.path} {self.first_line} {self.wrong}')}"

    def put_into(self, source: str) -> str:
        """Return the published file with the bug."""
        lines = source.splitlines(keepends=True)
        begin = self.first_line - 1
        assert tuple(lines[begin : begin + len(self.right)]) == self.right
        return "".join([*lines[:begin], *self.wrong, *lines[begin + len(self.right) :]])


def split_of_function(package: Package, path: str, function: str) -> Split:
    """Return the split of all bugs of a function: held-out packages are test, other functions are never."""
    if package.held_out:
        return "test"
    return "val" if int(content_digest(f"{package.name} {path} {function}"), 16) % 100 < _VAL_PERCENT else "train"


def build(folder: Path, *, per_file: int, packages: Sequence[Package] = PACKAGES, key: str = "--folder") -> list[Bug]:
    """Make the tasks and write them to a folder; what is kept depends on `per_file` and the packages alone.

    Args:
        folder: Gets `bugs.json` and the packages' texts; source distributions are looked for in it.
        per_file: Bugs to keep for each file, if there are as many.
        packages: What to make bugs in.
        key: Option that errors name.

    Raises:
        ValueError: A package cannot be had.
        RuntimeError: The published package does not pass its own tests here.
    """
    bugs: list[Bug] = []
    texts: dict[str, Any] = {}
    runner = PackageTests(key=key)
    try:
        for package in packages:
            sources, tests = read_package(package, folder)
            expected: dict[str, dict[str, int]] = {}
            for path, test_paths in package.tests.items():
                suite = {name: tests[name] for name in test_paths}
                expected[path] = _stable(runner, sources, suite, package)
                found = _bugs_of(runner, package, path, sources, suite, expected[path], per_file)
                bugs += found
                print(f"{package.name} {path}: {len(expected[path])} tests, {len(found)} bugs", flush=True)
            texts[package.name] = {"sources": sources, "tests": tests, "expected": expected}
    finally:
        runner.close()
    folder.mkdir(parents=True, exist_ok=True)
    data = {"format": _FORMAT, "packages": texts, "bugs": [_as_dict(bug) for bug in bugs]}
    scratch = folder / "bugs.json.new"
    scratch.write_text(json.dumps(data))
    scratch.replace(folder / "bugs.json")
    return bugs


def load(folder: Path, *, key: str) -> tuple[dict[str, Any], list[Bug]]:
    """Read what `build` wrote: the packages' texts and the bugs.

    Raises:
        ValueError: There is nothing of the right form; names `key` and what to type.
    """
    path = folder / "bugs.json"
    try:
        data = json.loads(path.read_text())
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']}")
        lists = ("right", "wrong", "failing")
        bugs = [Bug(**(item | {name: tuple(item[name]) for name in lists})) for item in data["bugs"]]
        return data["packages"], bugs
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{key}: {path} cannot be read ({type(error).__name__}: {error}); make it with: "
            f"python -m lit_agentrl.envs.repair build --folder {folder}"
        ) from None


def _stable(runner: PackageTests, sources: Files, suite: Files, package: Package) -> dict[str, int]:
    """Return the tests that pass on the published package, twice."""
    first, second = (runner.run(sources, suite) for _ in range(2))
    kept = {name: count for name, count in first.passed.items() if second.passed.get(name) == count}
    if not kept:
        raise RuntimeError(
            f"no test of {package.name} {package.version} passes here: {first.problem or first.failures}"
        )
    return kept


def _bugs_of(
    runner: PackageTests,
    package: Package,
    path: str,
    sources: Files,
    suite: Files,
    expected: dict[str, int],
    per_file: int,
) -> list[Bug]:
    found: list[Bug] = []
    candidates = mutations(sources[path])
    for number in permutation(0, len(candidates)):
        if len(found) == per_file:
            break
        candidate = candidates[int(number)]
        outcome = runner.run(sources | {path: candidate.source}, suite)
        failing = tuple(name for name in expected if outcome.passed.get(name) != expected[name])
        if not outcome.problem and failing and len(failing) <= max(1, _MAX_FAILING_SHARE * len(expected)):
            found.append(_bug(package, path, sources[path], candidate, failing))
    return sorted(found, key=lambda bug: (bug.first_line, bug.wrong))


def _bug(package: Package, path: str, source: str, mutation: Mutation, failing: tuple[str, ...]) -> Bug:
    right, wrong = source.splitlines(keepends=True), mutation.source.splitlines(keepends=True)
    begin = next(number for number, pair in enumerate(zip(right, wrong, strict=False)) if pair[0] != pair[1])
    end = 0
    while end < min(len(right), len(wrong)) - begin - 1 and right[-1 - end] == wrong[-1 - end]:
        end += 1
    return Bug(
        package=package.name,
        path=path,
        function=mutation.function,
        kind=mutation.kind,
        first_line=begin + 1,
        right=tuple(right[begin : len(right) - end]),
        wrong=tuple(wrong[begin : len(wrong) - end]),
        failing=failing,
        split=split_of_function(package, path, mutation.function),
    )


def _as_dict(bug: Bug) -> dict[str, Any]:
    return {name: getattr(bug, name) for name in Bug.__slots__}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m lit_agentrl.envs.repair", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("build", help="download the packages and make the bugs")
    command.add_argument("--folder", default=DEFAULT_FOLDER, help="where everything is written (%(default)s)")
    command.add_argument("--per_file", type=int, default=30, help="bugs for each file (%(default)s)")
    command.add_argument("--packages", nargs="+", choices=[package.name for package in PACKAGES])
    options = parser.parse_args(arguments)
    if options.per_file < 1:
        parser.error("--per_file must be at least 1")
    chosen = [package for package in PACKAGES if options.packages is None or package.name in options.packages]
    folder = Path(options.folder).expanduser()
    try:
        bugs = build(folder, per_file=options.per_file, packages=chosen)
    except (ValueError, RuntimeError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    counts = {split: sum(bug.split == split for bug in bugs) for split in ("train", "val", "test")}
    print(f"{len(bugs)} bugs in {folder / 'bugs.json'}: {counts}")
