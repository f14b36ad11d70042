"""P30, worker part: an environment that raises is a failed episode, never a result with reward 0."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.protocols import EpisodeFailedError
from lit_agentrl.rollouts.workers import WorkerPool

HELPERS = Path(__file__).parents[1] / "rollouts"


@pytest.fixture(scope="module")
def pool():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HELPERS))
        with WorkerPool(EnvSpec(class_path="worker_envs.Script"), num_workers=1, envs_per_worker=2) as pool:
            yield pool


async def step(pool: WorkerPool, text: str, **data):
    from worker_envs import act, task

    slot = await pool.acquire()
    try:
        await slot.reset(task(**data))
        return await slot.step(act(text))
    finally:
        slot.release()


@pytest.mark.parametrize(
    ("action", "cause"),
    [
        ("raise", r"step: RuntimeError: the grader crashed \(worker_envs\.py:\d+ in _misbehave\)"),
        ("quit", r"step: SystemExit: bye"),
        ("wrong type", r"expected step to return a StepResult, got str"),
        ("nan", r"expected StepResult\.reward to be a finite number, got nan"),
        ("lambda", r"step returned something that cannot be pickled"),
    ],
)
def test_whatever_an_environment_does_wrong_fails_the_episode_by_name(pool, action, cause):
    errors = pool.stats.env_errors
    with pytest.raises(EpisodeFailedError, match=cause):
        asyncio.run(step(pool, action))
    assert (pool.stats.env_errors, pool.stats.restarts) == (errors + 1, 0)


def test_a_reset_that_raises_fails_the_episode(pool):
    with pytest.raises(EpisodeFailedError, match="reset: RuntimeError: the grader crashed"):
        asyncio.run(step(pool, "add 1", on_reset="raise"))


def test_truncated_stays_truncated(pool):
    result = asyncio.run(step(pool, "truncate"))
    assert (result.truncated, result.terminated, result.reward) == (True, False, 0.5)


def test_a_failed_episode_stays_failed_until_the_next_reset_and_harms_no_neighbour(pool):
    async def run():
        from worker_envs import act, task

        bad, good = await pool.acquire(), await pool.acquire()
        await bad.reset(task(seed=1))
        await good.reset(task(seed=10))
        for _ in range(2):
            with pytest.raises(EpisodeFailedError, match="the grader crashed"):
                await bad.step(act("raise"))
        kept = (await good.step(act("add 1"))).reward
        await bad.reset(task(seed=2))
        return kept, (await bad.step(act("add 1"))).reward

    assert asyncio.run(run()) == (11.0, 3.0)
