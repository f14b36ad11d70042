"""A source distribution of a small package with tests, for the repair environment; nothing is downloaded."""

import hashlib
import io
import tarfile

from lit_agentrl.envs.repair_packages import Package

SOURCE = '''"""Toy."""

import sys


def clamp(value, low, high):
    """Return value within bounds."""
    if value < low:
        return low
    if value > high:
        return high
    return value


def count(items, wanted):
    total = 0
    for item in items:
        if item == wanted:
            total = total + 1
    return total


def spread(items):
    return max(items) - min(items) if items else 0


def version():
    return sys.version_info[0]
'''
TESTS = """import pytest
from toy import clamp, count, spread, version


@pytest.mark.parametrize("value, result", [(-1, 0), (5, 5), (11, 10)])
def test_clamp(value, result):
    assert clamp(value, 0, 10) == result


class TestCount:
    def test_some(self):
        assert count([1, 2, 1], 1) == 2

    def test_none(self):
        assert count([], 1) == 0


def test_spread():
    assert spread([1, 4]) == 3
    assert spread([]) == 0


def test_spread_of_nothing_raises():
    with pytest.raises(TypeError):
        spread(3)


def test_version():
    assert version() == 3
"""
TEST_FILE = "tests/test_toy.py"


def make_package(folder, *, name="toy", held_out=False):
    """Write the archive and return its description."""
    path = folder / f"{name}-1.0.tar.gz"
    files = {f"{name}-1.0/toy.py": SOURCE, f"{name}-1.0/{TEST_FILE}": TESTS, f"{name}-1.0/setup.py": "raise SystemExit"}
    with tarfile.open(path, "w:gz") as archive:
        for member, text in files.items():
            info = tarfile.TarInfo(member)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Package(name=name, version="1.0", sha256=digest, tests={"toy.py": (TEST_FILE,)}, held_out=held_out)
