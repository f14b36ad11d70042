"""Lockstep: a batch runs when every live episode waits for the engine and nothing is under way elsewhere."""

import asyncio

import pytest

from lit_agentrl.engines.batching import LockstepBatcher
from lit_agentrl.types import Completion, GenerationRequest, Sampling


def request(sample, turn=0):
    return GenerationRequest(identity=(0, sample, 0, turn), prompt_ids=(1,), seed=0, sampling=Sampling())


@pytest.fixture
def batches():
    return []


@pytest.fixture
def batcher(batches):
    def run(requests):
        batches.append([r.identity[1] for r in requests])
        return [
            Completion(token_ids=(r.identity[1],), logprobs=(0.0,), stop_reason="eos", policy_version=0)
            for r in requests
        ]

    return LockstepBatcher(run)


async def episode(batcher, sample, *, delays=(0.0,)):
    async with batcher.episode():
        for turn, delay in enumerate(delays):
            async with batcher.outside():
                await asyncio.sleep(delay)
            completion = await batcher.submit(request(sample, turn))
            assert completion.token_ids == (sample,)


def run_all(*coroutines):
    async def together():
        await asyncio.gather(*coroutines)

    asyncio.run(together())


def test_requests_share_a_batch_in_order_of_identity_whenever_they_arrive(batcher, batches):
    run_all(*(episode(batcher, sample, delays=[0.01 * (3 - sample)]) for sample in (2, 0, 1)))
    assert batches == [[0, 1, 2]]


def test_a_slow_environment_holds_the_batch_back(batcher, batches):
    run_all(episode(batcher, 0, delays=[0.0, 0.0]), episode(batcher, 1, delays=[0.0, 0.05]))
    assert batches == [[0, 1], [0, 1]]


def test_an_episode_that_is_over_is_not_waited_for(batcher, batches):
    run_all(episode(batcher, 0, delays=[0.0]), episode(batcher, 1, delays=[0.0, 0.0, 0.0]))
    assert batches == [[0, 1], [1], [1]]


def test_an_error_reaches_everyone_who_waits():
    def fails(requests):
        raise FloatingPointError("diverged")

    batcher = LockstepBatcher(fails)

    async def both():
        return await asyncio.gather(episode(batcher, 0), episode(batcher, 1), return_exceptions=True)

    assert [str(error) for error in asyncio.run(both())] == ["diverged", "diverged"]


def test_a_cancelled_episode_does_not_stop_the_others(batcher, batches):
    async def cancelled():
        first = asyncio.ensure_future(episode(batcher, 0, delays=[0.5]))
        second = asyncio.ensure_future(episode(batcher, 1))
        await asyncio.sleep(0.02)
        first.cancel()
        await second

    asyncio.run(cancelled())
    assert batches == [[1]]
