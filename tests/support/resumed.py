"""Compares what two runs left: metrics without what depends on the clock, trajectories, checkpoints bit for bit."""

import csv
import json

import torch

TIMING = ("seconds", "per_s", "engine_share")


def columns(path):
    """Rows of a metrics file without what depends on the clock."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{key: value for key, value in row.items() if not key.endswith(TIMING)} for row in rows]


def trajectories(run):
    found = {}
    for path in sorted((run / "trajectories").iterdir()):
        found[path.name] = [json.loads(line) | {"wall_s": None} for line in path.read_text().splitlines()]
    return found


def assert_same(left, right, place=""):
    """Compare nested values; tensors bit for bit."""
    assert type(left) is type(right), place
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right), place
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), place
        for key in left:
            assert_same(left[key], right[key], f"{place}/{key}")
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), place
        for number, pair in enumerate(zip(left, right, strict=True)):
            assert_same(*pair, f"{place}/{number}")
    else:
        assert left == right, place


def checkpoint(run, name="last"):
    saved = torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=True)
    # Lightning counts for itself whether a run was resumed; our own state and everything learned must be equal.
    return {key: value for key, value in saved.items() if key != "loops"}
