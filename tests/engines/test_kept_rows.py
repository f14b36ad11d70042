"""Keys and values kept between turns: fewer tokens read, the same ids drawn."""

import pytest

from lit_agentrl.engines.local import LocalEngine
from lit_agentrl.policies.tiny import TinyPolicy
from lit_agentrl.types import Completion, EngineStats, GenerationRequest, Sampling


@pytest.fixture(scope="module")
def policy() -> TinyPolicy:
    policy = TinyPolicy(hidden_size=32)
    policy.build(seed=3)
    return policy


def play(policy: TinyPolicy, *, cache_mb: int, max_batch_size: int = 64) -> tuple[list[Completion], EngineStats]:
    """Four groups of three episodes, four turns, ragged prompts and limits; one group ends before its last turn."""
    engine = LocalEngine(cache_mb=cache_mb, max_batch_size=max_batch_size)
    engine.bind(policy)
    engine.sync(0)
    contexts = {(g, s): policy.chat.encode("q" * (g + 3) + str(g)) for g in range(4) for s in range(3)}
    drawn = []
    for number in range(4):
        requests = [
            GenerationRequest(
                identity=(g, s, 0, number),
                prompt_ids=context,
                seed=1000 * g + 10 * s + number,
                sampling=Sampling(max_new_tokens=3 + 4 * g + s),
            )
            for (g, s), context in contexts.items()
            if not (number == 3 and g == 2)
        ]
        for request, completion in zip(requests, engine.generate_batch(requests), strict=True):
            drawn.append(completion)
            observation = policy.chat.encode(f"obs{number}")
            contexts[request.identity[:2]] = request.prompt_ids + completion.token_ids + observation
    return drawn, engine.stats


@pytest.mark.parametrize("max_batch_size", [64, 5])
def test_reuse_reads_less_and_draws_the_same(policy, max_batch_size):
    fresh, fresh_stats = play(policy, cache_mb=0)
    reused, stats = play(policy, cache_mb=64, max_batch_size=max_batch_size)

    assert [c.token_ids for c in reused] == [c.token_ids for c in fresh]
    for ours, expected in zip(reused, fresh, strict=True):
        assert ours.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert stats.prompt_tokens == fresh_stats.prompt_tokens
    assert stats.prefilled_tokens < fresh_stats.prefilled_tokens / 4


def test_older_weights_leave_nothing_behind(policy):
    engine = LocalEngine()
    engine.bind(policy)
    engine.sync(0)
    prompt = policy.chat.encode("what?")
    request = GenerationRequest(identity=(0, 0, 0, 0), prompt_ids=prompt, seed=1, sampling=Sampling(max_new_tokens=4))
    (completion,) = engine.generate_batch([request])
    engine.sync(1)  # P25: caches of version 0 are dropped

    engine.stats.prefilled_tokens = 0
    longer = prompt + completion.token_ids + policy.chat.encode("and?")
    engine.generate_batch(
        [GenerationRequest(identity=(0, 0, 0, 1), prompt_ids=longer, seed=2, sampling=Sampling(max_new_tokens=4))]
    )
    assert engine.stats.prefilled_tokens == len(longer)


def test_a_common_beginning_is_read_once(policy):
    beginning = policy.chat.encode("a system prompt that all of them share: ")
    prompts = [beginning + policy.chat.encode(text) for text in ("1+1", "23+456", "7")]
    requests = [
        GenerationRequest(identity=(n, 0, 0, 0), prompt_ids=p, seed=n, sampling=Sampling(max_new_tokens=5))
        for n, p in enumerate(prompts)
    ]
    engine = LocalEngine()
    engine.bind(policy)
    engine.sync(0)

    together = engine.generate_batch(requests)
    read = engine.stats.prefilled_tokens
    alone = [completion for request in requests for completion in engine.generate_batch([request])]

    shared = len(beginning)
    assert read <= shared + sum(len(prompt) - shared for prompt in prompts) + 2  # a merge over the border at most
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    for ours, expected in zip(together, alone, strict=True):
        assert ours.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
