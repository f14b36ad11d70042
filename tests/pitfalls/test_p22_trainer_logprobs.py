"""P22 (policy side): the trainer's log-probs equal those of stepwise decoding with a cache, at any temperature."""

import pytest
import torch

from lit_agentrl.policies.tiny import TinyPolicy

TEMPERATURE = 1.5
PROMPT_LENGTH, LENGTH = 4, 12


@pytest.fixture(scope="module")
def policy():
    policy = TinyPolicy(hidden_size=64, num_layers=2, num_heads=2)
    policy.build(seed=0)
    return policy


@pytest.fixture(scope="module")
@torch.no_grad()
def ids(policy):
    """Random prompts, and what the policy itself draws after them: the tokens that rollouts train on."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(len(policy.tokenizer), (8, PROMPT_LENGTH), generator=generator)
    while ids.shape[1] < LENGTH:
        probabilities = (policy.causal_lm(input_ids=ids).logits[:, -1] / TEMPERATURE).softmax(-1)
        ids = torch.cat([ids, torch.multinomial(probabilities, 1, generator=generator)], dim=1)
    return ids


def trained_logprobs(policy, ids):
    rows, columns = torch.meshgrid(torch.arange(len(ids)), torch.arange(PROMPT_LENGTH, LENGTH), indexing="ij")
    positions = torch.arange(LENGTH).expand(len(ids), -1)
    logprobs, _ = policy.token_logprobs(
        ids, torch.ones_like(ids), positions, rows.flatten(), columns.flatten(), temperature=TEMPERATURE
    )
    return logprobs.view(len(ids), -1).detach()


@torch.no_grad()
def decoded_logprobs(model, ids):
    """Feed the prompt, then one id at a time through the key-value cache, as an engine does."""
    out = model(input_ids=ids[:, :PROMPT_LENGTH], use_cache=True)
    steps = []
    for column in range(PROMPT_LENGTH, LENGTH):
        scaled = (out.logits[:, -1].float() / TEMPERATURE).log_softmax(-1)
        steps.append(scaled.gather(-1, ids[:, column, None]))
        out = model(ids[:, column, None], use_cache=True, cache=out.cache)
    return torch.cat(steps, dim=1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)])
def test_decoding_and_training_agree(policy, ids, dtype, tolerance):
    decoded = decoded_logprobs(policy.inference_copy(dtype), ids)
    torch.testing.assert_close(decoded, trained_logprobs(policy, ids), atol=tolerance, rtol=0)


def test_one_row_alone_and_in_a_batch_of_eight_agree(policy, ids):
    together = trained_logprobs(policy, ids)
    for row in range(8):
        alone = trained_logprobs(policy, ids[row : row + 1])
        torch.testing.assert_close(alone, together[row : row + 1], atol=1e-4, rtol=0)
