"""Two ranks make a run faster, not another experiment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

# Two interpreters that import everything.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "rank_run.py"


def run(ranks, path):
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PL_", "LOCAL_", "NODE_", "WORLD_"))}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(SCRIPT.parent)]), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(SCRIPT), str(ranks), str(path)], env=env, check=True, timeout=150)
    return torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return run(1, folder / "one.pt"), run(2, folder / "two.pt")


def test_the_updates_give_the_same_weights(runs):
    one, two = runs
    assert one["step"] == two["step"] >= 2
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, rtol=0, atol=1e-6)


def test_metrics_are_those_of_all_ranks(runs):
    one, two = (run["metrics"] for run in runs)
    assert one.keys() == two.keys()
    timed = ("rollout/seconds", "rollout/tokens_per_s", "rollout/engine_tokens_per_s", "rollout/engine_share")
    for name in one.keys() - set(timed):
        assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6, nan_ok=True), name
