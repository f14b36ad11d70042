"""Two ranks make a value function's run faster, not another experiment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

# Two interpreters that import everything.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "q_rank_run.py"
TIMED = ("rollout/seconds", "rollout/tokens_per_s", "rollout/engine_tokens_per_s", "rollout/engine_share")


def run(ranks, path):
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PL_", "LOCAL_", "NODE_", "WORLD_"))}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(SCRIPT.parent)]), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(SCRIPT), str(ranks), str(path)], env=env, check=True, timeout=150)
    return torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return run(1, folder / "one.pt"), run(2, folder / "two.pt")


@pytest.mark.parametrize("kind", ["dqn", "drrn"])
def test_the_updates_give_the_same_weights(runs, kind):
    one, two = (run[kind] for run in runs)
    assert one["step"] == two["step"] == 16
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["dqn", "drrn"])
def test_every_rank_has_the_whole_buffer(runs, kind):
    one, two = (run[kind]["replay"] for run in runs)
    assert one["added"] == two["added"] >= 80
    for name, column in one["columns"].items():
        assert torch.equal(two["columns"][name], column), name
    torch.testing.assert_close(two["priorities"], one["priorities"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["dqn", "drrn"])
def test_metrics_are_those_of_all_ranks(runs, kind):
    one, two = (run[kind]["metrics"] for run in runs)
    assert one.keys() == two.keys()
    for name in one.keys() - {*TIMED, "rollout/steps_per_s"}:
        assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6, nan_ok=True), name
