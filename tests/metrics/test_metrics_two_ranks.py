"""Two gloo processes: what the ranks saw together is what each of them reports."""

import json
import subprocess
import sys

import pytest

WORKER = """
import json, sys
import torch.distributed as dist
from lit_agentrl.metrics import AvgAtK, EpisodeLength, PassAtK, RewardParts, SuccessRate
from lit_agentrl.types import Task, Trajectory

def episode(task, success, parts, status="completed"):
    task = Task(id=task, family="sum", split="val", seed=0)
    return Trajectory(task=task, group=0, sample=0, success=success, reward_parts=parts, status=status)

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
seen = {
    "both": [
        [episode("a", True, {"exact": 1.0}), episode("a", False, {"z": 4.0}), episode("b", True, {})],
        [episode("a", False, {"exact": 0.0, "brief": 0.5}), episode("b", True, {}, "truncated"),
         episode("b", False, {}, "failed")],
    ],
    "only rank 1": [[], [episode("a", True, {"exact": 1.0}), episode("a", False, {"exact": 0.0})]],
}
results = {}
for case, episodes in seen.items():
    metrics = [SuccessRate(), RewardParts(), PassAtK(2), AvgAtK(), EpisodeLength()]
    for metric in metrics:
        metric.update(episodes[rank])
        value = {name: number.item() for name, number in metric.compute().items()}
        # what the rank itself has seen must be back after the sync, or the next update would count twice
        metric.update([])
        again = {name: number.item() for name, number in metric.compute().items()}
        assert again == value
        results.setdefault(case, {})[type(metric).__name__] = value
dist.destroy_process_group()
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    store = tmp_path_factory.mktemp("gloo") / "store"
    ranks = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(rank), str(store)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    first, second = (json.loads(output) for output in outputs)
    assert json.dumps(first) == json.dumps(second)  # as text: NaN equals NaN
    return first


def test_success_and_failures_are_counted_over_ranks(results):
    result = results["both"]["SuccessRate"]
    assert result["success"] == pytest.approx(3 / 5)  # a: 1 of 3, b: 2 of 2; the failed one is counted apart
    assert (result["episodes"], result["truncated"], result["failed"]) == (5, 1, 1)


def test_reward_parts_may_have_different_names_on_each_rank(results):
    assert results["both"]["RewardParts"] == {"brief": 0.5, "exact": 0.5, "z": 4.0}


def test_a_tasks_samples_may_lie_on_different_ranks(results):
    # a: 1 of 3, 1 - C(2, 2) / C(3, 2) = 2 / 3; b: 2 of 2, 1
    assert results["both"]["PassAtK"] == pytest.approx({"pass_at_2": (2 / 3 + 1) / 2, "tasks": 2, "tasks_short": 0})
    assert results["both"]["AvgAtK"] == pytest.approx({"avg_at_k": (1 / 3 + 1) / 2, "tasks": 2})


def test_a_rank_without_episodes_changes_nothing(results):
    result = results["only rank 1"]
    assert result["SuccessRate"]["success"] == 0.5
    assert result["RewardParts"] == {"exact": 0.5}
    assert result["PassAtK"] == {"pass_at_2": 1.0, "tasks": 1, "tasks_short": 0}
    assert result["AvgAtK"] == {"avg_at_k": 0.5, "tasks": 1}
