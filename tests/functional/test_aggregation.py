import pytest
import torch

from lit_agentrl.functional import AggregationCounts, aggregate, aggregation_counts, token_weights

# Two sequences, of 3 and 1 trained tokens; the second also holds an observation token.
MASK = torch.tensor([1, 1, 1, 0, 1])
SEQUENCES = torch.tensor([7, 7, 7, 9, 9])
MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "constant"]


def options(mode):
    return {"mode": mode, "constant": 10.0 if mode == "constant" else None}


@pytest.mark.parametrize(
    ("mode", "weights"),
    [
        ("token-mean", [1 / 4, 1 / 4, 1 / 4, 0, 1 / 4]),
        ("seq-mean-token-mean", [1 / 6, 1 / 6, 1 / 6, 0, 1 / 2]),  # 1/(2 sequences x 3 tokens), 1/(2 x 1)
        ("seq-mean-token-sum", [1 / 2, 1 / 2, 1 / 2, 0, 1 / 2]),
        ("constant", [1 / 20, 1 / 20, 1 / 20, 0, 1 / 20]),  # 1/(2 sequences x 10)
    ],
)
def test_weights_of_each_mode(mode, weights):
    actual = token_weights(MASK, SEQUENCES, **options(mode))
    torch.testing.assert_close(actual, torch.tensor(weights))


def test_sequences_without_a_trained_token_count_only_on_request():
    mask, ids = torch.tensor([1, 0]), torch.tensor([0, 1])
    assert token_weights(mask, ids, mode="seq-mean-token-sum").tolist() == [1.0, 0.0]
    assert token_weights(mask, ids, mode="seq-mean-token-sum", count_empty_rows=True).tolist() == [0.5, 0.0]


def test_sequences_without_any_token_are_known_by_their_number():
    weights = token_weights(
        torch.tensor([1]), torch.tensor([3]), mode="seq-mean-token-sum", num_sequences=4, count_empty_rows=True
    )
    assert weights.tolist() == [0.25]


@pytest.mark.parametrize("mode", MODES)
def test_summed_counts_give_each_part_the_weights_of_the_whole(mode):
    first, second = slice(0, 3), slice(3, 5)
    counts = aggregation_counts(MASK[first], SEQUENCES[first]) + aggregation_counts(MASK[second], SEQUENCES[second])
    assert counts == AggregationCounts(tokens=4, sequences=2, rows=2)
    parts = [token_weights(MASK[p], SEQUENCES[p], denominators=counts, **options(mode)) for p in (first, second)]
    torch.testing.assert_close(torch.cat(parts), token_weights(MASK, SEQUENCES, **options(mode)))


def test_counts_survive_the_tensor_that_is_reduced_over_ranks():
    counts = aggregation_counts(MASK, SEQUENCES, num_sequences=12)
    assert counts == AggregationCounts(tokens=4, sequences=2, rows=12)
    assert AggregationCounts.from_tensor(counts.to_tensor() * 2) == counts + counts


@pytest.mark.parametrize("mode", MODES)
def test_aggregate_is_the_weighted_sum(mode):
    loss, mask = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    rows = torch.tensor([0, 0, 0, 1, 1, 1])
    expected = (token_weights(mask.flatten(), rows, **options(mode)) * loss.flatten()).sum()
    torch.testing.assert_close(aggregate(loss, mask, **options(mode)), expected)


def test_nan_outside_the_mask_reaches_neither_value_nor_gradient():
    loss = torch.tensor([[1.0, torch.nan]], requires_grad=True)
    value = aggregate(loss, torch.tensor([[1, 0]]))
    value.backward()
    assert value.item() == 1.0
    assert loss.grad.tolist() == [[1.0, 0.0]]


def test_an_empty_flat_batch_has_no_weights():
    empty = torch.zeros(0, dtype=torch.long)
    assert token_weights(empty, empty, mode="seq-mean-token-mean").shape == (0,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "mean"}, "mode must be one of 'token-mean'"),
        ({"mode": "constant"}, "constant must be a positive number"),
        ({"mode": "constant", "constant": 0.0}, "constant must be a positive number"),
        ({"mode": "token-mean", "constant": 5.0}, "constant must be a positive number"),
        ({"mode": "token-mean", "num_sequences": 5}, "sequence_ids must lie in"),
    ],
)
def test_mistakes_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        token_weights(MASK, SEQUENCES, **changes)
