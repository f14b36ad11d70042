"""P12: one batch of 16, four of 4 accumulated, or 8 on each of two ranks: the gradient is the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rank_gradients import every

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "rank_gradients.py"
NAMES = sorted(every(""))


def run(ranks, budget, path):
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PL_", "LOCAL_", "NODE_", "WORLD_"))}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(SCRIPT.parent)]), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(SCRIPT), str(ranks), str(budget), str(path)], env=env, check=True, timeout=250)
    return torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradients")
    return {
        "1 x 16": run(1, 100_000, folder / "whole.pt"),
        "accumulated": run(1, 100, folder / "pieces.pt"),
        "2 x 8": run(2, 100, folder / "ranks.pt"),
    }


@pytest.mark.parametrize("way", ["accumulated", "2 x 8"])
@pytest.mark.parametrize("name", NAMES)
def test_of_every_algorithm(gradients, name, way):
    whole, cut = gradients["1 x 16"][name], gradients[way][name]
    assert whole.norm() > 0
    assert float((cut - whole).norm() / whole.norm()) < 1e-6
