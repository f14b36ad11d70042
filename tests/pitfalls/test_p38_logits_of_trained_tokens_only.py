"""P38: logits are not made for tokens that are not trained, and never for more than a chunk at a time."""

import pytest
import torch

from lit_agentrl.policies.tiny import TinyPolicy

BATCH, LENGTH = 4, 50


@pytest.fixture
def policy():
    policy = TinyPolicy(hidden_size=16, num_layers=1, num_heads=2)
    policy.build(seed=0)
    return policy


@pytest.fixture
def rows_of_logits(policy):
    """The number of logit rows of each call of the output head."""
    calls = []
    policy.token_logprobs(*arguments(1))  # the first use checks the head on three tokens
    head = policy.causal_lm.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, output: calls.append(output.numel() // output.shape[-1]))
    return calls


def arguments(count):
    ids = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    wanted = torch.arange(count)
    return ids, ids, torch.arange(LENGTH).expand(BATCH, -1), wanted % BATCH, 1 + wanted % (LENGTH - 1)


def test_the_head_sees_wanted_tokens_only(policy, rows_of_logits):
    logprobs, _ = policy.token_logprobs(*arguments(7))
    logprobs.sum().backward()
    assert rows_of_logits == [7]


def test_the_head_sees_a_chunk_at_a_time_forward_and_backward(policy, rows_of_logits):
    logprobs, _ = policy.token_logprobs(*arguments(10), chunk_size=4)
    assert rows_of_logits == [4, 4, 2]
    logprobs.sum().backward()
    assert sorted(rows_of_logits[3:]) == [2, 4, 4]  # made again, since none were kept


def test_no_logits_are_kept_for_the_backward_pass(policy, rows_of_logits):
    kept = []

    def pack(tensor):
        kept.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        policy.token_logprobs(*arguments(10), chunk_size=4)
    vocabulary = len(policy.tokenizer)
    assert not [shape for shape in kept if shape[-1:] == (vocabulary,)]
