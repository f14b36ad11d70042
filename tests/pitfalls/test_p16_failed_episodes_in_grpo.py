"""P16 (module): failed and masked episodes enter no baseline, no deviation, no group size and no normaliser."""

import pytest
import torch
from rl_support import EndingPolicy, rollout_of, trajectory, turn

from lit_agentrl.algorithms import GRPO
from lit_agentrl.rollouts.segments import batch_from_groups


def credited(members, **options):
    rollout = rollout_of(members)
    (step,) = GRPO(EndingPolicy(), seed=0, **options).batches(rollout, batch_from_groups(rollout.groups))
    return step


def good():
    return [trajectory(0, s, turn([1], [2 + s, 9]), reward=reward) for s, reward in enumerate([1.0, 0.0, 0.25])]


@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "token-mean", "seq-mean-token-sum"])
@pytest.mark.parametrize("scale", ["std", "none", "batch"])
@pytest.mark.parametrize(
    ("status", "options"), [("failed", {}), ("truncated", {"mask_truncated": True})], ids=["failed", "masked"]
)
def test_the_others_are_trained_as_if_it_had_never_been(status, options, scale, aggregation):
    # A reward that would move every statistic, and many tokens that would move every normaliser.
    bad = trajectory(0, 3, turn([1], [7] * 50), reward=100.0, status=status)
    options = options | {"advantage_scale": scale, "aggregation": aggregation}
    without, with_it = credited(good(), **options), credited([*good(), bad], **options)
    count = without.num_tokens
    assert torch.equal(with_it.advantages[:count], without.advantages)
    assert torch.equal(with_it.weight[:count], without.weight)
    assert not bool(with_it.weight[count:].any())
    assert not bool(with_it.advantages[count:].any())
