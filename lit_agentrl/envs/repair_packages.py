"""The packages whose bugs are repaired: pinned source distributions, which of their files, and their own tests."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Files: TypeAlias = dict[str, str]
"""Text by path, relative to the folder that the package is imported from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """A pinned source distribution."""

    name: str
    version: str
    sha256: str
    tests: dict[str, tuple[str, ...]]
    """Files that get bugs, and the test files that cover them."""
    held_out: bool = False
    """Test split only."""


PACKAGES = (
    Package(
        name="parse",
        version="1.20.2",
        sha256="b41d604d16503c79d81af5165155c0b20f6c8d6c559efa66b4b695c3e5a0a0ce",
        tests={
            "parse.py": (
                "tests/test_bugs.py",
                "tests/test_findall.py",
                "tests/test_parse.py",
                "tests/test_parsetype.py",
                "tests/test_pattern.py",
                "tests/test_result.py",
                "tests/test_search.py",
            )
        },
    ),
    Package(
        name="toolz",
        version="1.2.0",
        sha256="9667a038e9d6ecba37995e26cb2f59ec6420b6ad8dd9677de59db9b956b08490",
        tests={
            f"toolz/{name}.py": (f"toolz/tests/test_{name}.py",)
            for name in ("dicttoolz", "functoolz", "itertoolz", "recipes")
        },
    ),
    Package(
        name="boltons",
        version="26.2.0",
        sha256="d39cfd15c1a1c3bd4d705c82252fa9edb8e4f5e8cc039f8e39afac7b1b47e92c",
        tests={
            f"boltons/{name}.py": (f"tests/test_{name}.py",)
            for name in ("dictutils", "iterutils", "listutils", "mathutils", "setutils", "strutils")
        },
        held_out=True,
    ),
)


def read_package(package: Package, folder: Path) -> tuple[Files, Files]:
    """Return a package's sources and its tests; downloads the source distribution through pip where it is missing.

    Nothing of it is run or built: the archive is unpacked in memory.

    Args:
        package: Which one.
        folder: Where archives are kept.

    Raises:
        ValueError: It can neither be found nor downloaded, or is another file than the pinned one.
    """
    archive = folder / f"{package.name}-{package.version}.tar.gz"
    if not archive.is_file():
        _download(package, folder)
    data = archive.read_bytes()
    if hashlib.sha256(data).hexdigest() != package.sha256:
        raise ValueError(f"{archive} is not the pinned file (sha256 {package.sha256}); remove it")
    wanted_tests = {path for paths in package.tests.values() for path in paths}
    top = {path.partition("/")[0] for path in package.tests}
    sources: Files = {}
    tests: Files = {}
    with tarfile.open(archive) as opened:
        for member in opened:
            path = member.name.partition("/")[2]
            if not member.isfile() or not path.endswith(".py"):
                continue
            file = opened.extractfile(member)
            assert file is not None
            if path in wanted_tests:
                tests[path] = file.read().decode()
            elif path.partition("/")[0] in top and "/tests/" not in path:
                sources[path] = file.read().decode()
    missing = (set(package.tests) - set(sources)) | (wanted_tests - set(tests))
    if missing:
        raise ValueError(f"{archive} has no {', '.join(sorted(missing))}")
    return sources, tests


def _download(package: Package, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--no-binary", ":all:", "--dest", scratch, f"{package.name}=={package.version}"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = list(Path(scratch).glob("*.tar.gz"))
        if not found:
            raise ValueError(
                f"{package.name} {package.version} could not be downloaded; put its source distribution into "
                f"{folder}. pip said: {done.stderr.strip()[-300:]}"
            )
        found[0].replace(folder / f"{package.name}-{package.version}.tar.gz")
