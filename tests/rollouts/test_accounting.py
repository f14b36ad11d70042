"""What became of tokens and episodes, over one rank and over several."""

import math

import pytest
from rl_support import rollout_of, trajectory, turn

from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.rollout import Progress, rollout_metrics, token_accounting
from lit_agentrl.rollouts.segments import batch_from_groups


@pytest.fixture
def rollout():
    """A solved episode of two turns, one cut short, one failed: 2 + 1, 3 and 1 sampled tokens."""
    solved = trajectory(
        0, 0, turn([1], [2, 3]), turn([4], [5], parent=0), reward=1.0, success=True, reward_parts={"answer": 1.0}
    )
    cut = trajectory(0, 1, turn([1], [6, 7, 8]), status="truncated", outputs_cut=2, tool_restarts=1)
    failed = trajectory(0, 2, turn([1], [9]), reward=0.0, status="failed", env_steps=5)
    return rollout_of([solved, cut, failed])


def two_ranks(value):
    """As if another rank had seen the very same."""
    return [value, value]


def test_every_sampled_token_is_counted_under_one_reason(rollout):
    batch = batch_from_groups(rollout.groups)
    batch.reason[batch.trajectory[batch.segment] == 2] = TokenReason.FAILED
    assert token_accounting(batch, rollout) == {"tokens/trained": 6.0, "tokens/failed": 1.0}
    assert token_accounting(batch, rollout, gather=two_ranks) == {"tokens/trained": 12.0, "tokens/failed": 2.0}


def test_a_token_that_went_missing_is_an_error(rollout):
    batch = batch_from_groups(rollout.groups).select_trajectories([0, 1])
    with pytest.raises(AssertionError, match="7 tokens generated"):
        token_accounting(batch, rollout)


def test_means_leave_failed_episodes_out(rollout):
    metrics = rollout_metrics(rollout)
    assert metrics["rollout/success"] == 0.5  # one of two
    assert metrics["rollout/reward"] == 0.5
    assert metrics["rollout/reward_answer"] == 0.5  # the one cut short earned none of it
    assert metrics["rollout/turns"] == 1.5
    assert metrics["rollout/completion_tokens"] == 3.0
    assert metrics["rollout/failed"] == pytest.approx(1 / 3)
    assert metrics["rollout/truncated"] == pytest.approx(1 / 3)
    assert (metrics["rollout/outputs_cut"], metrics["rollout/tool_restarts"]) == (2.0, 1.0)
    assert metrics["rollout/groups_with_spread"] == 1.0


def test_ranks_are_weighed_by_their_episodes(rollout):
    # Another rank with a single unsolved episode: 1 success out of 2 + 1.
    other = rollout_of([trajectory(1, 0, turn([1], [2]))])
    seen = []
    rollout_metrics(other, gather=lambda value: seen.append(value) or [value])
    metrics = rollout_metrics(rollout, gather=lambda value: [value, *seen])
    assert metrics["rollout/success"] == pytest.approx(1 / 3)
    assert metrics["rollout/groups_with_spread"] == 0.5


def test_a_mean_over_nothing_is_not_a_number():
    metrics = rollout_metrics(rollout_of([trajectory(0, 0, status="failed")]))
    assert math.isnan(metrics["rollout/success"])
    assert metrics["rollout/failed"] == 1.0


def test_progress_counts_what_was_consumed_on_all_ranks(rollout):
    progress = Progress()
    progress.add(rollout)
    progress.add(rollout, gather=two_ranks)
    assert progress == Progress(rollouts=2, episodes=9, tokens=21, env_steps=15)
    assert progress.metrics()["progress/tokens"] == 21.0
