"""Generation in the trainer's process, against transformers' own and against full forward passes."""

import dataclasses

import numpy as np
import pytest
import torch
from rl_support import EndingPolicy, build

from lit_agentrl.engines.local import LocalEngine
from lit_agentrl.policies.tiny import TinyPolicy
from lit_agentrl.types import GenerationRequest, Sampling


@pytest.fixture(scope="module")
def policy():
    return build(EndingPolicy(), seed=1)


def engine_of(policy, **options):
    engine = LocalEngine(**options)
    engine.bind(policy)
    engine.sync(7)
    return engine


def requests(*lengths, temperature=1.0, max_new_tokens=12, vocabulary=300):
    """Ragged prompts of random ids; members of a group would have equal ones."""
    generator = torch.Generator().manual_seed(0)
    return [
        GenerationRequest(
            identity=(0, number, 0, 0),
            prompt_ids=tuple(torch.randint(0, vocabulary, (length,), generator=generator).tolist()),
            seed=1000 + number,
            sampling=Sampling(temperature=temperature, max_new_tokens=max_new_tokens),
        )
        for number, length in enumerate(lengths)
    ]


LENGTHS = (3, 17, 8, 1, 29, 8, 40, 2)


def full_forward(policy, prompt_ids, token_ids, temperature):
    ids = torch.tensor([[*prompt_ids, *token_ids]])
    with torch.no_grad():
        logits = policy.causal_lm.eval()(input_ids=ids).logits[0]
    logprobs = (logits.float() / temperature).log_softmax(-1)
    places = torch.arange(len(prompt_ids) - 1, ids.shape[1] - 1)
    return logprobs[places, ids[0, places + 1]]


def test_greedy_ids_are_those_of_transformers(policy):
    # One prompt at a time, without padding, is what transformers certainly gets right.
    asked = requests(*LENGTHS, temperature=0.0)
    drawn = engine_of(policy).generate_batch(asked)
    for request, completion in zip(asked, drawn, strict=True):
        prompt = torch.tensor([request.prompt_ids])
        expected = policy.causal_lm.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=12,
            eos_token_id=sorted(policy.chat.eos_ids),
            pad_token_id=0,
        )
        assert completion.token_ids == tuple(expected[0, prompt.shape[1] :].tolist())


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_log_probs_are_those_of_a_full_forward(policy, temperature):
    asked = requests(*LENGTHS, temperature=temperature)
    drawn = engine_of(policy).generate_batch(asked)
    assert len({len(c.token_ids) for c in drawn}) > 2  # rows end at different steps
    for request, completion in zip(asked, drawn, strict=True):
        expected = full_forward(policy, request.prompt_ids, completion.token_ids, temperature)
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)


def test_greedy_log_probs_are_those_of_temperature_one(policy):
    (request,) = requests(9, temperature=0.0)
    (completion,) = engine_of(policy).generate_batch([request])
    expected = full_forward(policy, request.prompt_ids, completion.token_ids, 1.0)
    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)


def test_chunks_and_order_change_neither_ids_nor_log_probs(policy):
    asked = requests(*LENGTHS)
    whole = engine_of(policy).generate_batch(asked)
    chunked = engine_of(policy, max_batch_size=3).generate_batch(asked)
    backwards = engine_of(policy).generate_batch(asked[::-1])[::-1]
    for one, two, three in zip(whole, chunked, backwards, strict=True):
        assert one.token_ids == two.token_ids == three.token_ids
        torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(two.logprobs), atol=1e-5, rtol=0)
        torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(three.logprobs), atol=1e-5, rtol=0)


def test_equal_prompts_are_read_once(policy):
    (request,) = requests(20)
    group = [dataclasses.replace(request, identity=(0, n, 0, 0), seed=n) for n in range(4)]
    engine = engine_of(policy)
    drawn = engine.generate_batch([*group, *requests(5)])
    assert (engine.stats.prompt_tokens, engine.stats.prefilled_tokens) == (85, 25)
    alone = engine_of(policy).generate_batch([group[2]])
    assert drawn[2].token_ids == alone[0].token_ids
    assert len({completion.token_ids for completion in drawn[:4]}) > 1


def test_rows_that_ended_are_dropped_when_they_are_a_quarter(policy, monkeypatch):
    rows = []
    model = policy.causal_lm
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda **inputs: rows.append(len(inputs["input_ids"])) or forward(**inputs))
    engine = engine_of(policy)
    drawn = engine.generate_batch(requests(*LENGTHS))
    # The first pass reads the prompts; pass k is for the rows that have drawn k tokens and go on.
    lengths = [len(c.token_ids) for c in drawn]
    running = [sum(length > step for length in lengths) for step in range(1, max(lengths))]
    assert rows[0] == 8
    assert all(0.75 * read < alive <= read or read == alive for read, alive in zip(rows[1:], running, strict=True))
    assert running[-1] < 4
    assert engine.stats.generated_tokens == sum(lengths)
    assert engine.stats.decode_steps == max(lengths)


def test_a_completion_says_why_it_stopped(policy):
    engine = engine_of(policy)
    drawn = engine.generate_batch([*requests(*LENGTHS, max_new_tokens=3), *requests(policy.max_context - 2)])
    for completion in drawn:
        ended = completion.token_ids[-1] in policy.chat.eos_ids
        assert (completion.stop_reason == "eos") == ended
    assert {c.stop_reason for c in drawn[:-1]} == {"eos", "length"}
    assert all(len(c.token_ids) == 3 for c in drawn if c.stop_reason == "length")
    assert {c.policy_version for c in drawn} == {7}


def test_the_context_ends_a_completion():
    policy = build(TinyPolicy(32, 1, 2, max_context=16))
    (completion,) = engine_of(policy).generate_batch(requests(14, max_new_tokens=8))
    assert (len(completion.token_ids), completion.stop_reason) == (2, "context")


@pytest.mark.parametrize("length", [0, 16, 20])
def test_a_prompt_without_room_is_refused(length):
    policy = build(TinyPolicy(32, 1, 2, max_context=16))
    with pytest.raises(ValueError, match=f"a prompt of {length} tokens leaves no room in a context of 16"):
        engine_of(policy).generate_batch(requests(length))


def test_diverged_weights_are_an_error_that_says_so():
    policy = build(TinyPolicy(32, 1, 2, max_context=16))
    policy.causal_lm.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match=r"logits are not finite.*optimizer\.lr"):
        engine_of(policy).generate_batch(requests(3))


def test_sampling_follows_the_distribution(policy):
    (request,) = requests(6, max_new_tokens=1)
    many = [dataclasses.replace(request, identity=(0, n, 0, 0), seed=n) for n in range(4000)]
    drawn = engine_of(policy, max_batch_size=4000).generate_batch(many)
    with torch.no_grad():
        expected = policy.causal_lm(input_ids=torch.tensor([request.prompt_ids])).logits[0, -1].softmax(-1)
    counts = torch.bincount(torch.tensor([c.token_ids[0] for c in drawn]), minlength=expected.numel())
    top = expected.topk(10).indices
    # Within five standard errors of a binomial share.
    error = (expected[top] * (1 - expected[top]) / 4000).sqrt()
    assert bool(((counts[top] / 4000 - expected[top]).abs() < 5 * error).all())


def test_an_id_of_probability_zero_is_never_drawn(monkeypatch):
    policy = build(TinyPolicy(32, 1, 2, max_context=16))
    monkeypatch.setattr("lit_agentrl.engines.local.uniforms", lambda seed, count: np.full(count, 1 - 2**-53))
    head = policy.causal_lm.get_output_embeddings()
    forward = head.forward
    # The last ids of a vocabulary are often padding that a model has learned never to use.
    blocked = torch.zeros(head.out_features)
    blocked[-5:] = -torch.inf
    monkeypatch.setattr(head, "forward", lambda hidden: forward(hidden) + blocked)
    (completion,) = engine_of(policy).generate_batch(requests(3, max_new_tokens=2))
    assert max(completion.token_ids) < head.out_features - 5


def test_generation_leaves_the_models_mode_as_it_was(policy):
    policy.causal_lm.train()
    engine_of(policy).generate_batch(requests(3))
    assert policy.causal_lm.training
    policy.causal_lm.eval()


def test_a_copy_in_another_precision_follows_the_weights(policy):
    engine = engine_of(policy, dtype="bf16")
    before = engine.generate_batch(requests(9, max_new_tokens=1))[0].logprobs[0]
    weight = policy.causal_lm.model.norm.weight
    kept = weight.detach().clone()
    weight.data.mul_(3)
    engine.sync(8)
    after = engine.generate_batch(requests(9, max_new_tokens=1))[0]
    weight.data.copy_(kept)
    assert after.policy_version == 8
    assert after.logprobs[0] != before


def test_an_engine_without_policy_says_what_to_do():
    with pytest.raises(RuntimeError, match=r"bind\(\) first"):
        LocalEngine().sync(0)


def test_a_batch_size_below_one_names_its_key():
    with pytest.raises(ValueError, match=r"data\.init_args\.engine\.max_batch_size is 0"):
        LocalEngine(max_batch_size=0)
