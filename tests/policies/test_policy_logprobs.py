import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from lit_agentrl.policies.base import Policy
from lit_agentrl.policies.chat import ChatFormat
from lit_agentrl.policies.tiny import TinyPolicy, make_tiny_tokenizer


class CappedPolicy(Policy):
    """A model that caps its logits after the head, as Gemma 2 does."""

    def _load(self, seed):
        tokenizer = make_tiny_tokenizer()
        torch.manual_seed(seed)
        config = Gemma2Config(
            vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, final_logit_softcapping=0.5, max_position_embeddings=64,
        )  # fmt: skip
        return Gemma2ForCausalLM(config), tokenizer, ChatFormat(tokenizer)


@pytest.fixture
def policy():
    policy = TinyPolicy(hidden_size=32, num_layers=1, num_heads=2)
    policy.build(seed=0)
    return policy


def inputs_of(policy, batch=2, length=9):
    ids = torch.randint(len(policy.tokenizer), (batch, length), generator=torch.Generator().manual_seed(0))
    return ids, torch.ones_like(ids), torch.arange(length).expand(batch, -1)


def reference(policy, ids, rows, columns, temperature):
    logprobs = (policy.causal_lm(input_ids=ids).logits / temperature).log_softmax(-1)[rows, columns - 1]
    chosen = logprobs.gather(-1, ids[rows, columns][:, None])[:, 0]
    return chosen, torch.distributions.Categorical(logits=logprobs).entropy()


ROWS, COLUMNS = torch.tensor([0, 1, 1, 0]), torch.tensor([1, 8, 3, 5])


@pytest.mark.parametrize("chunk_size", [1, 3, 512])
def test_logprobs_and_entropies_are_those_of_the_full_logits(policy, chunk_size):
    ids, mask, positions = inputs_of(policy)
    got = policy.token_logprobs(ids, mask, positions, ROWS, COLUMNS, temperature=0.7, chunk_size=chunk_size)
    for actual, expected in zip(got, reference(policy, ids, ROWS, COLUMNS, 0.7), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def test_gradients_do_not_depend_on_the_chunks(policy):
    inputs = inputs_of(policy)
    gradients = []
    for chunk_size in (1, 512):
        policy.zero_grad()
        logprobs, entropy = policy.token_logprobs(*inputs, ROWS, COLUMNS, chunk_size=chunk_size, entropy_grad=True)
        (logprobs.sum() + 0.1 * entropy.sum()).backward()
        gradients.append([parameter.grad.clone() for parameter in policy.parameters()])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)  # float32; gradients are of order 1


def test_entropy_carries_gradients_only_when_asked(policy):
    inputs = inputs_of(policy)
    assert not policy.token_logprobs(*inputs, ROWS, COLUMNS)[1].requires_grad
    assert policy.token_logprobs(*inputs, ROWS, COLUMNS, entropy_grad=True)[1].requires_grad


def test_models_that_cap_their_logits_take_the_full_forward():
    policy = CappedPolicy()
    policy.build(seed=0)
    ids, mask, positions = inputs_of(policy)
    got = policy.token_logprobs(ids, mask, positions, ROWS, COLUMNS)
    for actual, expected in zip(got, reference(policy, ids, ROWS, COLUMNS, 1.0), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def test_models_whose_decoder_is_not_found_take_the_full_forward(policy, monkeypatch):
    monkeypatch.setattr(policy.model, "get_decoder", lambda: policy.model)
    ids, mask, positions = inputs_of(policy)
    got, _ = policy.token_logprobs(ids, mask, positions, ROWS, COLUMNS)
    torch.testing.assert_close(got, reference(policy, ids, ROWS, COLUMNS, 1.0)[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_model_is_left_as_it_was(policy, training):
    policy.train(training)
    policy.token_logprobs(*inputs_of(policy), ROWS, COLUMNS)
    assert {module.training for module in policy.modules()} == {training}


def test_no_wanted_token_gives_empty_tensors_that_can_be_differentiated(policy):
    none = torch.zeros(0, dtype=torch.int64)
    logprobs, entropy = policy.token_logprobs(*inputs_of(policy), none, none)
    assert logprobs.shape == entropy.shape == (0,)
    logprobs.sum().backward()


def test_results_are_float32_under_autocast(policy):
    inputs = inputs_of(policy)
    exact, _ = policy.token_logprobs(*inputs, ROWS, COLUMNS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded, _ = policy.token_logprobs(*inputs, ROWS, COLUMNS)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, atol=3e-2, rtol=0)


def test_temperature_0_counts_as_1(policy):
    inputs = inputs_of(policy)
    greedy, _ = policy.token_logprobs(*inputs, ROWS, COLUMNS, temperature=0.0)
    assert torch.equal(greedy, policy.token_logprobs(*inputs, ROWS, COLUMNS)[0])


def test_the_first_column_is_refused(policy):
    with pytest.raises(ValueError, match="columns must be 1 or more"):
        policy.token_logprobs(*inputs_of(policy), torch.tensor([0]), torch.tensor([0]))


def test_a_policy_that_was_not_built_says_so():
    with pytest.raises(RuntimeError, match="call build"):
        _ = TinyPolicy().max_context
