"""Packed trees against the padded rows that they have to equal."""

import random

import pytest
import torch

from lit_agentrl.policies.tiny import TinyPolicy
from lit_agentrl.rollouts.batch import RolloutBatch, TokenReason
from lit_agentrl.rollouts.packing import pack, packed_pieces
from lit_agentrl.rollouts.segments import batch_from_groups
from lit_agentrl.types import Completion, Message, Task, Trajectory, TrajectoryGroup, Turn

TASK = Task(id="t", family="f", split="train", seed=0)


def turn(parent: int | None, prompt: tuple[int, ...], sampled: tuple[int, ...]) -> Turn:
    completion = Completion(token_ids=sampled, logprobs=(-1.0,) * len(sampled), stop_reason="eos", policy_version=0)
    return Turn(parent=parent, prompt_ids=prompt, completion=completion, messages=(), reply=Message.of("assistant", ""))


def ragged_batch() -> RolloutBatch:
    """Three groups of four: one to three turns, empty completions, and one turn that starts a new root."""
    draw = random.Random(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(3, 500) for _ in range(count))

    groups = []
    for group in range(3):
        prompt = ids(5 + 4 * group)
        trajectories = []
        for sample in range(4):
            turns = [turn(None, prompt, ids(draw.randrange(1, 7)))]
            for number in range(1, draw.randrange(1, 4)):
                fresh = number == 2 and sample == 1
                turns.append(turn(None if fresh else number - 1, ids(9 if fresh else draw.randrange(0, 5)), ids(4)))
            trajectories.append(Trajectory(task=TASK, group=group, sample=sample, turns=turns))
        groups.append(TrajectoryGroup(group=group, task=TASK, trajectories=trajectories))
    batch = batch_from_groups(groups)
    torch.manual_seed(0)
    batch.weight = torch.rand(batch.num_tokens) * (batch.reason == TokenReason.TRAINED)
    return batch


@pytest.fixture(scope="module")
def policy() -> TinyPolicy:
    policy = TinyPolicy(hidden_size=32)
    policy.build(seed=3)
    return policy.double()


def logprobs_and_gradient(policy: TinyPolicy, batch: RolloutBatch, *, max_tokens: int, packed: bool):
    policy.zero_grad()
    seen = torch.zeros(batch.num_tokens, dtype=torch.float64)
    wanted = batch.weight != 0
    pieces = packed_pieces(batch, max_tokens, wanted=wanted) if packed else batch.micro_batches(max_tokens)
    for piece in pieces:
        if packed:
            view = pack(piece, piece.weight != 0)
            mask, sources = view.visible, view.sources
        else:
            view = piece.padded(piece.weight != 0)
            mask, sources = view.attention_mask, None
        logprobs, _ = policy.token_logprobs(
            view.input_ids, mask, view.position_ids, view.rows, view.columns, sources=sources
        )
        (piece.weight[view.token_index] * logprobs).sum().backward()
        seen[piece.origin[view.token_index]] += logprobs.detach().double()
    return seen, torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])


@pytest.mark.parametrize("max_tokens", [40, 64, 200, 5000])
def test_packing_changes_neither_log_probs_nor_gradients(policy, max_tokens):
    batch = ragged_batch()
    expected, gradient = logprobs_and_gradient(policy, batch, max_tokens=64, packed=False)

    got, packed_gradient = logprobs_and_gradient(policy, batch, max_tokens=max_tokens, packed=True)

    assert ((expected != 0) == (batch.weight != 0)).all()  # every trained token was computed, once
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    assert (packed_gradient - gradient).norm() / gradient.norm() < 1e-6


def test_a_shared_prompt_is_laid_out_once():
    # Prompt of 3, two answers of 2 tokens each: 3 + 2 + 2 columns instead of 2 x 5.
    answers = [Trajectory(task=TASK, group=0, sample=s, turns=[turn(None, (10, 11, 12), (20 + s, 9))]) for s in (0, 1)]
    batch = batch_from_groups([TrajectoryGroup(group=0, task=TASK, trajectories=answers)])

    view = pack(batch, batch.reason == TokenReason.TRAINED)

    assert view.input_ids.tolist() == [[10, 11, 12, 20, 9, 21, 9]]
    assert view.position_ids.tolist() == [[0, 1, 2, 3, 4, 3, 4]]
    # Both answers' first tokens are predicted by the prompt's last one.
    assert view.columns.tolist() == [3, 4, 5, 6]
    assert view.sources.tolist() == [2, 3, 2, 5]
    # The second answer sees the prompt and itself, not the first answer.
    assert view.visible[0, 6].tolist() == [True, True, True, False, False, True, True]


def test_pieces_keep_to_the_token_budget():
    batch = ragged_batch()
    wanted = batch.weight != 0
    for piece in packed_pieces(batch, 60, wanted=wanted):
        view = pack(piece, piece.weight != 0)
        single_episode = len(piece.leaves()) == 1
        assert single_episode or view.input_ids.numel() <= 60
