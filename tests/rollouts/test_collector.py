"""Rollouts over worker processes: what comes out depends on identities and weights alone."""

import asyncio

import pytest
from rl_support import EndingPolicy, build

from lit_agentrl.agents.tool_agent import ToolAgent
from lit_agentrl.engines.local import LocalEngine
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.rollouts.collector import RolloutCollector, run_coroutine
from lit_agentrl.rollouts.workers import WorkerPool
from lit_agentrl.types import Sampling


@pytest.fixture(scope="module")
def policy():
    return build(EndingPolicy())


def collect(
    policy, *, env=None, num_workers=1, concurrent=8, group_size=3, index=0, run_seed=0, listener=None, tasks=3
):
    spec = EnvSpec(class_path="rl_envs.Parity", init_args=env or {})
    slots = -(-concurrent // num_workers)
    with WorkerPool(spec, num_workers=num_workers, envs_per_worker=slots) as pool:
        engine = LocalEngine()
        engine.bind(policy)
        engine.sync(0)
        collector = RolloutCollector(
            pool,
            engine,
            ToolAgent(max_turns=4),
            chat=policy.chat,
            max_context=policy.max_context,
            run_seed=run_seed,
            max_concurrent_episodes=concurrent,
        )
        seeds = [(seed, "train") for seed in range(tasks)]
        drawn = run_coroutine(pool.sample_tasks(seeds))
        rollout = collector.collect(
            list(enumerate(drawn)),
            phase="train",
            index=index,
            group_size=group_size,
            sampling=Sampling(max_new_tokens=6),
            listener=listener,
        )
        return rollout, pool


def content(rollout):
    """Everything but times."""
    return [
        (t.id, t.status, t.cause, t.reward, t.success, t.env_steps, t.turns, t.closing_messages)
        for t in rollout.trajectories
    ]


@pytest.fixture(scope="module")
def reference(policy):
    return content(collect(policy)[0])


def test_the_reference_holds_episodes_of_all_kinds(reference):
    assert {status for _, status, *_ in reference} == {"completed", "truncated"}
    assert {reward for _, _, _, reward, *_ in reference} == {0.0, 1.0}


@pytest.mark.parametrize("num_workers", [2, 3])
def test_the_number_of_workers_changes_nothing(policy, reference, num_workers):
    assert content(collect(policy, num_workers=num_workers)[0]) == reference


@pytest.mark.parametrize("num_workers", [1, 3])
def test_an_environment_of_random_speed_changes_nothing(policy, reference, num_workers):
    assert content(collect(policy, num_workers=num_workers, env={"sleep_s": 0.02})[0]) == reference


def test_a_worker_that_is_killed_half_way_changes_nothing(policy, reference, tmp_path):
    rollout, pool = collect(policy, num_workers=2, env={"kill_once": str(tmp_path / "killed"), "sleep_s": 0.01})
    assert pool.stats.restarts == 1
    assert content(rollout) == reference


def test_every_episode_is_told_once_when_it_ends(policy):
    told = []
    rollout, _ = collect(policy, listener=told.append)
    assert sorted(t.id for t in told) == sorted(t.id for t in rollout.trajectories)
    assert all(t.wall_s > 0 for t in told)


def test_exclusive_environments_run_one_episode_a_worker(policy):
    rollout, pool = collect(policy, num_workers=2, concurrent=6, env={"exclusive": True})
    assert pool.num_slots == 2
    # Two episodes at a time: 9 first turns need at least 5 batches of prompts.
    assert rollout.engine.decode_steps >= 5
    assert {t.status for t in rollout.trajectories} <= {"completed", "truncated"}


def test_a_rollout_can_be_collected_where_a_loop_is_running(policy, reference):
    async def notebook():
        return content(collect(policy)[0])

    assert asyncio.run(notebook()) == reference


def test_an_error_of_the_agent_ends_the_rollout(policy, monkeypatch):
    async def broken(self, trajectory, context):
        raise LookupError("a bug of the agent")

    monkeypatch.setattr(ToolAgent, "run", broken)
    with pytest.raises(LookupError, match="a bug of the agent"):
        collect(policy)


def test_a_coroutines_error_reaches_the_caller_from_a_thread_too():
    async def fails():
        raise LookupError("inside")

    async def notebook():
        run_coroutine(fails())

    with pytest.raises(LookupError, match="inside"):
        asyncio.run(notebook())
