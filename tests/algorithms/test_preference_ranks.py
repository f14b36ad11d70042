"""Two ranks make preference learning faster, not another experiment: every algorithm, in float64."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from preference_support import EVERY

# Three interpreters that import everything.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "preference_rank_run.py"
RUNS = [name for name in EVERY if name != "online_dpo"]
RUNS += [f"{name}, rollouts" for name in ("online_dpo", "eto", "dmpo")]


def run(ranks, path):
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PL_", "LOCAL_", "NODE_", "WORLD_"))}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(SCRIPT.parent)]), "OMP_NUM_THREADS": "1"}
    if ranks > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(ranks), str(path)],
            env=env | ({"LOCAL_RANK": str(rank), "NODE_RANK": "0"} if ranks > 1 else {}),
        )
        for rank in range(ranks)
    ]
    assert [process.wait(280) for process in processes] == [0] * ranks
    return torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return run(1, folder / "one.pt"), run(2, folder / "two.pt")


@pytest.mark.parametrize("name", RUNS)
def test_the_updates_give_the_same_weights(runs, name):
    one, two = (run[name] for run in runs)
    assert one["step"] == two["step"] >= 2
    for key, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][key], weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", RUNS)
def test_metrics_are_those_of_all_ranks(runs, name):
    one, two = (run[name]["metrics"] for run in runs)
    assert one.keys() == two.keys()
    timed = ("rollout/seconds", "rollout/tokens_per_s", "rollout/engine_tokens_per_s", "rollout/engine_share")
    for key in one.keys() - set(timed):
        assert two[key] == pytest.approx(one[key], rel=1e-4, abs=1e-5, nan_ok=True), key
