import math

import pytest

from lit_agentrl.metrics import AvgAtK, EpisodeLength, PassAtK, RewardParts, SuccessRate, pass_at_k
from lit_agentrl.types import Completion, Message, Task, Trajectory, Turn


def episode(task="t0", *, success=False, status="completed", parts=None, tokens=()):
    """An episode with one turn per entry of `tokens`, which is that turn's number of sampled tokens."""
    return Trajectory(
        task=Task(id=task, family="sum", split="val", seed=0),
        group=0,
        sample=0,
        status=status,
        success=success,
        reward_parts=parts or {},
        turns=[
            Turn(
                parent=None,
                prompt_ids=(),
                completion=Completion(
                    token_ids=(1,) * count, logprobs=(0.0,) * count, stop_reason="eos", policy_version=0
                ),
                messages=(),
                reply=Message.of("assistant", ""),
            )
            for count in tokens
        ],
    )


def as_numbers(result):
    return {name: value.item() for name, value in result.items()}


def test_success_rate_with_its_wilson_interval():
    metric = SuccessRate()
    metric.update([episode(success=True)] * 8 + [episode(), episode()])
    result = as_numbers(metric.compute())
    assert result["success"] == pytest.approx(0.8)
    assert result["success_low"] == pytest.approx(0.4902, abs=1e-4)  # worked out in test_statistics
    assert result["success_high"] == pytest.approx(0.9433, abs=1e-4)
    assert result["episodes"] == 10


def test_success_rate_without_episodes_is_not_a_number():
    metric = SuccessRate()
    metric.update([])
    result = as_numbers(metric.compute())
    assert math.isnan(result["success"])
    assert (result["success_low"], result["success_high"]) == (0.0, 1.0)


def test_success_rate_starts_over_after_reset():
    metric = SuccessRate()
    metric.update([episode(success=True)])
    metric.reset()
    metric.update([episode()])
    assert metric.compute()["success"] == 0.0


def test_success_rate_refuses_a_percentage_as_confidence():
    with pytest.raises(ValueError, match="confidence"):
        SuccessRate(confidence=95)


def test_episode_length_counts_turns_and_sampled_tokens():
    metric = EpisodeLength()
    metric.update([episode(tokens=(3, 2)), episode(tokens=(4,)), episode(tokens=(9, 9, 9), status="failed")])
    assert as_numbers(metric.compute()) == {"turns": 1.5, "tokens": 4.5}  # (2 + 1) / 2 and (5 + 4) / 2


def test_reward_parts_are_averaged_over_the_episodes_that_have_them():
    metric = RewardParts()
    metric.update([episode(parts={"exact": 1.0, "format": 0.5}), episode(parts={"exact": 0.0})])
    metric.update([episode(parts={"format": 1.0}), episode(parts={"exact": 9.0}, status="failed")])
    assert as_numbers(metric.compute()) == {"exact": 0.5, "format": 0.75}


def test_reward_parts_forget_names_after_reset():
    metric = RewardParts()
    metric.update([episode(parts={"old": 1.0})])
    metric.reset()
    metric.update([episode(parts={"new": 2.0})])
    assert as_numbers(metric.compute()) == {"new": 2.0}


def test_reward_parts_work_when_called_batch_by_batch():
    metric = RewardParts()
    assert as_numbers(metric([episode(parts={"a": 1.0})])) == {"a": 1.0}
    assert as_numbers(metric([episode(parts={"b": 3.0})])) == {"b": 3.0}
    assert as_numbers(metric.compute()) == {"a": 1.0, "b": 3.0}


@pytest.mark.parametrize(
    ("successes", "count", "k", "expected"),
    [
        (0, 4, 2, 0.0),
        (1, 4, 1, 0.25),
        (1, 4, 2, 0.5),  # 1 - C(3, 2) / C(4, 2) = 1 - 3 / 6
        (2, 4, 2, 5 / 6),  # 1 - C(2, 2) / C(4, 2) = 1 - 1 / 6
        (3, 4, 2, 1.0),  # two failures cannot be drawn when there is only one
    ],
)
def test_pass_at_k_of_one_task(successes, count, k, expected):
    assert pass_at_k(successes, count, k) == pytest.approx(expected)


def test_pass_at_k_averages_over_tasks():
    metric = PassAtK(2)
    metric.update([episode("a", success=index < 1) for index in range(4)])  # 0.5
    metric.update([episode("b", success=index < 2) for index in range(4)])  # 5 / 6
    result = as_numbers(metric.compute())
    assert result["pass_at_2"] == pytest.approx((0.5 + 5 / 6) / 2)
    assert result["tasks"] == 2


def test_pass_at_k_leaves_out_and_counts_tasks_with_too_few_samples():
    metric = PassAtK(2)
    metric.update([episode("a", success=True), episode("a"), episode("b", success=True)])
    metric.update([episode("b", success=True, status="failed")])
    assert as_numbers(metric.compute()) == {"pass_at_2": 1.0, "tasks": 1, "tasks_short": 1}


def test_pass_at_k_refuses_zero():
    with pytest.raises(ValueError, match="k must be at least 1"):
        PassAtK(0)


def test_avg_at_k_weighs_tasks_not_samples():
    metric = AvgAtK()
    metric.update([episode("a", success=True)] * 4 + [episode("b")])
    assert as_numbers(metric.compute()) == {"avg_at_k": 0.5, "tasks": 2}  # SuccessRate would say 0.8
