"""P30: completed, truncated and failed are kept apart up to the dashboard; a grader that crashed is no wrong answer."""

from lit_agentrl.metrics import AvgAtK, EpisodeLength, PassAtK, RewardParts, SuccessRate
from lit_agentrl.types import Task, Trajectory


def episode(status, *, success=False):
    task = Task(id="t", family="sum", split="val", seed=0)
    return Trajectory(
        task=task, group=0, sample=0, status=status, success=success, reward_parts={"exact": float(success)}
    )


def test_each_status_has_its_own_count():
    metric = SuccessRate()
    metric.update([episode("completed", success=True), episode("truncated"), episode("failed"), episode("failed")])
    result = metric.compute()
    assert result["success"] == 0.5  # 1 of the 2 that say something
    assert (result["episodes"], result["truncated"], result["failed"]) == (2, 1, 2)


def test_failed_episodes_change_no_metric():
    for metric in (RewardParts(), AvgAtK(), PassAtK(1), EpisodeLength()):
        metric.update([episode("completed", success=True)])
        before = metric.compute()
        metric.update([episode("failed")])
        assert metric.compute() == before
