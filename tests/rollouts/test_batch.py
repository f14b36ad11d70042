"""The flat batch and its tree: selections, micro-batches and the padded view."""

import pytest
import torch
from rl_support import rollout_of, trajectory, turn

from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.segments import batch_from_groups


@pytest.fixture
def batch():
    """Two episodes share the prompt 1 2; the first has two turns. One more episode stands alone.

    segment 0: 1 2 (prompt)        tokens 0-1
    segment 1: 3 4 (first, turn 0) tokens 2-3
    segment 2: 5 | 6 (turn 1: observation 5, reply 6) tokens 4-5
    segment 3: 7 (second)          token 6
    segment 4: 8 (prompt), segment 5: 9 9 9 (third)   tokens 7, 8-10
    """
    first = trajectory(0, 0, turn([1, 2], [3, 4]), turn([5], [6], parent=0))
    second = trajectory(0, 1, turn([1, 2], [7]))
    third = trajectory(1, 0, turn([8], [9, 9, 9]))
    batch = batch_from_groups(rollout_of([first, second], [third]).groups)
    batch.weight = (batch.reason == TokenReason.TRAINED).float()
    return batch


def test_segments_lie_in_order_and_positions_run_from_the_root(batch):
    assert batch.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 2, 0, 1, 2, 3]
    assert batch.parent_segment.tolist() == [-1, 0, 1, 0, -1, 4]
    assert batch.trajectory.tolist() == [-1, 0, 0, 1, -1, 2]
    assert batch.reason.tolist() == [0, 0, 1, 1, 0, 1, 1, 0, 1, 1, 1]


def test_a_row_is_the_path_from_the_root_to_a_leaf(batch):
    assert batch.leaves() == [2, 3, 5]
    assert batch.path(2) == [0, 1, 2]
    assert [batch.row_length(leaf) for leaf in batch.leaves()] == [6, 3, 4]


def test_a_selection_brings_ancestors_along_without_their_weight(batch):
    part = batch.select([2])
    assert part.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert part.weight.tolist() == [0, 0, 0, 0, 0, 1]  # 3 and 4 belong to a turn that was not asked for
    assert part.parent_segment.tolist() == [-1, 0, 1]
    assert part.origin.tolist() == [0, 1, 2, 3, 4, 5]


def test_origins_survive_a_selection_of_a_selection(batch):
    part = batch.select_trajectories([1, 2]).select_trajectories([2])
    assert part.token_ids.tolist() == [8, 9, 9, 9]
    assert part.origin.tolist() == [7, 8, 9, 10]


def test_selecting_nothing_gives_an_empty_batch(batch):
    nothing = batch.select([])
    assert (nothing.num_tokens, nothing.num_segments, nothing.leaves()) == (0, 0, [])
    assert list(nothing.micro_batches(8)) == []


@pytest.mark.parametrize("max_tokens", [1, 6, 8, 12, 100])
def test_micro_batches_train_every_token_exactly_once(batch, max_tokens):
    seen = torch.zeros(batch.num_tokens)
    for piece in batch.micro_batches(max_tokens):
        seen[piece.origin] += piece.weight
    assert torch.equal(seen, batch.weight)


def test_micro_batches_keep_to_the_budget_unless_one_row_is_longer(batch):
    # Rows of 6, 4 and 3 tokens, longest first. 8 holds 6 alone (two rows would be 12), then 4 and 3 (two rows of 4).
    pieces = [piece.padded(piece.weight != 0).input_ids.shape for piece in batch.micro_batches(8)]
    assert pieces == [(1, 6), (2, 4)]
    assert [piece.num_segments for piece in batch.micro_batches(1)] == [3, 2, 2]


def test_rows_without_a_weight_are_left_out(batch):
    batch.weight[8:] = 0
    assert [piece.token_ids.max().item() for piece in batch.micro_batches(100)] == [7]


def test_the_padded_view_names_each_wanted_token_once(batch):
    view = batch.padded(batch.reason == TokenReason.TRAINED, pad_id=99)
    assert view.input_ids.tolist() == [[1, 2, 3, 4, 5, 6], [1, 2, 7, 99, 99, 99], [8, 9, 9, 9, 99, 99]]
    assert view.attention_mask.sum(-1).tolist() == [6, 3, 4]
    assert view.token_index.tolist() == [2, 3, 5, 6, 8, 9, 10]
    assert torch.equal(view.input_ids[view.rows, view.columns], batch.token_ids[view.token_index])


def test_a_token_that_two_rows_share_is_wanted_in_one_of_them():
    # Both second turns continue the same first turn, as branches of a search do.
    branches = trajectory(0, 0, turn([1], [2]), turn([3], [4], parent=0), turn([5], [6], parent=0))
    batch = batch_from_groups(rollout_of([branches]).groups)
    view = batch.padded(batch.reason == TokenReason.TRAINED)
    assert view.input_ids.tolist() == [[1, 2, 3, 4], [1, 2, 5, 6]]
    assert sorted(view.token_index.tolist()) == [1, 3, 5]


def test_the_first_token_of_a_row_has_no_distribution_and_is_not_asked_for(batch):
    view = batch.padded(torch.ones(batch.num_tokens, dtype=torch.bool))
    assert int(view.columns.min()) == 1
    assert view.token_index.numel() == batch.num_tokens - 2  # two roots
