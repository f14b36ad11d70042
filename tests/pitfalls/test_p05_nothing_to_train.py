"""P05: empty completions, episodes, groups and rollouts crash nothing."""

import pytest
import torch
from rl_support import EndingPolicy, build, rollout_of, trajectory, turn

from lit_agentrl.algorithms import GRPO, SFT
from lit_agentrl.rollouts.packing import pack
from lit_agentrl.rollouts.rollout import rollout_metrics, token_accounting
from lit_agentrl.rollouts.segments import batch_from_demonstrations, batch_from_groups


@pytest.fixture(scope="module")
def policy():
    return build(EndingPolicy()).eval()


ROLLOUTS = {
    "empty completion": [[trajectory(0, 0, turn([1], []), reward=1.0), trajectory(0, 1, turn([1], [2]))]],
    "empty completions only": [[trajectory(0, s, turn([1], []), reward=float(s)) for s in range(2)]],
    "empty completion that is continued": [
        [trajectory(0, 0, turn([1], []), turn([3], [4], parent=0), reward=1.0), trajectory(0, 1, turn([1], [2]))]
    ],
    "episode without turns": [[trajectory(0, 0, reward=1.0), trajectory(0, 1, turn([1], [2]))]],
    "episodes without turns": [[trajectory(0, 0, reward=1.0), trajectory(0, 1)]],
    "empty group": [[], [trajectory(1, s, turn([1], [2, 3]), reward=float(s)) for s in range(2)]],
    "empty rollout": [],
    "all failed": [[trajectory(0, s, turn([1], [2]), status="failed") for s in range(2)]],
}


@pytest.mark.parametrize("share_prefixes", [True, False])
@pytest.mark.parametrize("name", ROLLOUTS)
def test_a_rollout_with(policy, name, share_prefixes):
    algorithm = GRPO(policy, share_prefixes=share_prefixes, seed=0)
    rollout = rollout_of(*ROLLOUTS[name])
    batch = batch_from_groups(rollout.groups)
    (step,) = algorithm.batches(rollout, batch)
    assert bool(torch.isfinite(step.weight).all())
    for piece in algorithm.pieces(step, step.weight != 0):
        loss, _ = algorithm.loss(piece)
        loss.backward()
        assert bool(torch.isfinite(loss))
    generated = sum(t.num_tokens for t in rollout.trajectories)
    assert sum(token_accounting(batch, rollout).values()) == generated
    assert rollout_metrics(rollout)["rollout/seconds"] == 1.0


def test_the_tokens_after_an_empty_completion_are_trained(policy):
    rollout = rollout_of(*ROLLOUTS["empty completion that is continued"])
    batch = batch_from_groups(rollout.groups)
    (step,) = GRPO(policy, seed=0).batches(rollout, batch)
    assert step.token_ids[step.weight != 0].tolist() == [4, 2]
    view = pack(step, step.weight != 0)
    assert view.token_index.numel() == 2


def test_no_demonstration(policy):
    algorithm = SFT(policy, seed=0)
    batch = batch_from_demonstrations([])
    algorithm.fold_weights(batch, mode="token-mean")
    assert algorithm.pieces(batch, batch.weight != 0) == []


def test_a_loss_over_no_token_is_zero_with_a_zero_gradient(policy):
    # What a rank computes that has fewer micro-batches than the others.
    algorithm = GRPO(policy, seed=0)
    algorithm.zero_grad()
    loss, _ = algorithm.loss(batch_from_demonstrations([((0, 0), (0, 0))]))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all(p.grad is not None and not bool(p.grad.any()) for p in algorithm.parameters())
