"""P06: left or right padding, and the id it is done with, changes no log-prob."""

import pytest
import torch

from lit_agentrl.policies.tiny import TinyPolicy

SEQUENCES = [[9, 40, 300, 7, 0, 52, 11], [200, 3, 0], [5, 6, 7, 8, 9]]


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def policy(request):
    policy = TinyPolicy(hidden_size=32, num_layers=2, num_heads=2, attn_implementation=request.param)
    policy.build(seed=0)
    return policy


def logprobs(policy, *, side, pad_id, width):
    """Return the log-probs of every token but the first of each sequence, concatenated."""
    ids = torch.full((len(SEQUENCES), width), pad_id)
    mask, positions = torch.zeros_like(ids), torch.zeros_like(ids)
    wanted = []
    for row, sequence in enumerate(SEQUENCES):
        start = 0 if side == "right" else width - len(sequence)
        columns = slice(start, start + len(sequence))
        ids[row, columns] = torch.tensor(sequence)
        mask[row, columns] = 1
        positions[row, columns] = torch.arange(len(sequence))
        wanted += [(row, start + offset) for offset in range(1, len(sequence))]
    rows, columns = torch.tensor(wanted).T
    return policy.token_logprobs(ids, mask, positions, rows, columns)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pad_id", [0, 2, 77])
@pytest.mark.parametrize("width", [7, 12])
def test_padding_changes_no_logprob(policy, side, pad_id, width):
    alone = []
    for sequence in SEQUENCES:
        ids = torch.tensor([sequence])
        columns = torch.arange(1, len(sequence))
        positions = torch.arange(len(sequence))[None]
        alone.append(policy.token_logprobs(ids, torch.ones_like(ids), positions, torch.zeros_like(columns), columns))
    padded = logprobs(policy, side=side, pad_id=pad_id, width=width)
    for expected, actual in zip(zip(*alone, strict=True), padded, strict=True):
        torch.testing.assert_close(actual, torch.cat(expected), atol=1e-5, rtol=0)
