"""P32: a worker killed, an environment hung, a tool that never returns: the run goes on, within a stated bound."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from process_watch import gone_within, processes

from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.protocols import EpisodeFailedError
from lit_agentrl.rollouts.workers import WorkerPool, WorkerStats

ROOT = Path(__file__).parents[2]
HELPERS = ROOT / "tests" / "rollouts"
TIMEOUT_S = 0.5


POOLS: dict[str, WorkerPool] = {}


@pytest.fixture(scope="module", autouse=True)
def _environment():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HELPERS))
        yield
        for pool in POOLS.values():
            pool.close()
        POOLS.clear()


@contextlib.contextmanager
def make_pool(name: str = "Script", *, tools=(), num_workers=1, envs_per_worker=1, max_retries=1, **init_args):
    """A pool with counters at 0. Equal pools are started once, which is what takes the time."""
    numbers = {"num_workers": num_workers, "envs_per_worker": envs_per_worker, "max_retries": max_retries}
    spec = EnvSpec(class_path=f"worker_envs.{name}", init_args=init_args)
    key = repr((spec, tools, numbers))
    if key not in POOLS:
        POOLS[key] = WorkerPool(spec, tools=tools, timeout_s=TIMEOUT_S, **numbers)
    POOLS[key].stats = WorkerStats()
    yield POOLS[key]


async def play(pool: WorkerPool, actions, **data):
    """Run one episode; returns everything that the environment said."""
    from worker_envs import act, task

    slot = await pool.acquire()
    try:
        said = [await slot.reset(task(**data))]
        for text in actions:
            said.append(await slot.step(act(text)))
        return said
    finally:
        slot.release()


@pytest.mark.parametrize("crash", ["kill", "exit", "hang"])
def test_a_deterministic_episode_survives_its_worker_unchanged(crash, tmp_path):
    calm = ["add 1", "add 2", "add 3", "add 4"]
    rough = ["add 1", "add 2", f"{crash} once", "add 3", "add 4"]
    with make_pool() as pool:
        expected = asyncio.run(play(pool, calm, seed=7))
        said = asyncio.run(play(pool, rough, seed=7, marker=str(tmp_path / "crashed")))
        assert said[:3] + said[4:] == expected
        assert (tmp_path / "crashed").exists()
        assert (pool.stats.restarts, pool.stats.replays, pool.stats.timeouts) == (1, 1, int(crash == "hang"))


@pytest.mark.parametrize("crash", ["kill", "hang"])
def test_a_reset_is_tried_again(crash, tmp_path):
    with make_pool() as pool:
        said = asyncio.run(play(pool, ["add 1"], seed=1, on_reset=f"{crash} once", marker=str(tmp_path / "crashed")))
        assert said[1].reward == 2.0
        assert pool.stats.replays == 0


@pytest.mark.parametrize(
    ("crash", "cause"),
    [
        ("kill", "environment worker was killed by SIGKILL during step"),
        ("exit", "environment worker exited with code 3 during step"),
        ("hang", "environment worker gave no answer within 0.5 s during step"),
    ],
)
def test_an_episode_that_cannot_be_replayed_fails_in_time_and_the_next_one_runs(crash, cause):
    with make_pool(deterministic=False) as pool:
        asyncio.run(pool.start())
        began = time.monotonic()
        with pytest.raises(EpisodeFailedError, match=cause):
            asyncio.run(play(pool, ["add 1", crash]))
        assert time.monotonic() - began < TIMEOUT_S + 2
        assert asyncio.run(play(pool, ["add 1"]))[1].reward == 1.0
        assert pool.stats.restarts == 1


def test_an_operation_that_always_kills_is_given_up_after_max_retries():
    with make_pool(max_retries=2) as pool:
        with pytest.raises(EpisodeFailedError, match="SIGKILL"):
            asyncio.run(play(pool, ["add 1", "kill"]))
        assert asyncio.run(play(pool, ["add 1"]))[1].reward == 1.0
        # Two retries and the episode afterwards, each on a new process.
        assert (pool.stats.restarts, pool.stats.replays) == (3, 2)


def test_neighbours_of_a_killer_are_replayed_as_often_as_needed(tmp_path):
    async def run(pool):
        killers = [play(pool, ["add 1", "kill"], seed=n) for n in range(2)]
        innocent = play(pool, [f"add {n}" for n in range(20)], seed=100)
        return await asyncio.gather(*killers, innocent, return_exceptions=True)

    with make_pool(envs_per_worker=3, max_retries=1) as pool:
        calm = asyncio.run(play(pool, [f"add {n}" for n in range(20)], seed=100))
        first, second, innocent = asyncio.run(run(pool))
        assert isinstance(first, EpisodeFailedError)
        assert isinstance(second, EpisodeFailedError)
        assert innocent == calm
        assert pool.stats.restarts >= 3


def test_only_the_episodes_of_the_lost_worker_fail():
    async def run(pool):
        return await asyncio.gather(
            play(pool, ["add 1", "kill"]), play(pool, ["add 1", "slow", "add 2"]), return_exceptions=True
        )

    with make_pool(num_workers=2, deterministic=False) as pool:
        lost, other = asyncio.run(run(pool))
        assert isinstance(lost, EpisodeFailedError)
        assert other[-1].reward == 3.0


def test_a_worker_killed_while_idle_is_replaced_unnoticed():
    async def run(pool):
        from worker_envs import act, task

        slot = await pool.acquire()
        await slot.reset(task(seed=1))
        await slot.step(act("add 1"))
        pid = (await slot.step(act("inspect"))).info["pid"]
        os.kill(pid, signal.SIGKILL)
        assert gone_within(4, [pid])
        return (await slot.step(act("add 1"))).reward

    # Whoever comes to an idle worker's death is not its culprit: no retry is spent.
    with make_pool(max_retries=0) as pool:
        assert asyncio.run(run(pool)) == 3.0


def test_the_fork_server_killed_takes_its_workers_along_and_the_run_goes_on():
    async def run(pool):
        from worker_envs import act, task

        slot = await pool.acquire()
        await slot.reset(task(seed=1))
        worker = (await slot.step(act("inspect"))).info["pid"]
        server = processes()[worker].parent
        os.kill(server, signal.SIGKILL)
        assert gone_within(4, [worker])
        return (await slot.step(act("add 1"))).reward

    with make_pool(max_retries=0) as pool:
        assert asyncio.run(run(pool)) == 2.0


def test_a_tool_that_never_returns_fails_the_episode_in_time():
    async def run(pool):
        slot = await pool.acquire()
        await slot.call_tool("tool_hang", {})

    with make_pool(tools=["worker_envs.tool_hang"], max_retries=0) as pool:
        asyncio.run(pool.start())
        began = time.monotonic()
        with pytest.raises(EpisodeFailedError, match=r"no answer within 0\.5 s during tool"):
            asyncio.run(run(pool))
        assert time.monotonic() - began < TIMEOUT_S + 2


def test_a_replay_that_differs_is_not_passed_off_as_the_same_episode(tmp_path):
    with make_pool("Fickle") as pool, pytest.raises(EpisodeFailedError, match="declares itself deterministic"):
        asyncio.run(play(pool, ["add 1", "kill once"], marker=str(tmp_path / "crashed")))


def test_a_task_is_drawn_again_when_the_worker_is_lost():
    async def run(pool):
        from worker_envs import act, task

        slot = await pool.acquire()
        await slot.reset(task())
        killed = asyncio.ensure_future(slot.step(act("exit")))
        await asyncio.sleep(0)
        sampled = await pool.sample_tasks([(seed, "train") for seed in range(3)])
        with pytest.raises(EpisodeFailedError):
            await killed
        return [task.seed for task in sampled]

    with make_pool(deterministic=False) as pool:
        assert asyncio.run(run(pool)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        (
            "BrokenConstructor",
            ValueError,
            r"env\.class_path: no worker for worker_envs\.BrokenConstructor .*the data set is missing",
        ),
        ("DiesInConstructor", RuntimeError, r"env\.class_path: worker_envs\.DiesInConstructor .*3 times.*code 7"),
        ("Absent", ValueError, r"env\.class_path: .* worker_envs\.Absent .*closest"),
    ],
)
def test_an_environment_that_cannot_start_is_named_and_not_tried_forever(name, kind, text):
    with make_pool(name) as pool, pytest.raises(kind, match=text):
        asyncio.run(pool.start())


def test_a_constructor_that_hangs_is_given_up():
    pool = WorkerPool(EnvSpec(class_path="worker_envs.HangsInConstructor"), num_workers=1, start_timeout_s=0.3)
    with pool, pytest.raises(RuntimeError, match=r"HangsInConstructor .*no answer within 0\.3 s"):
        asyncio.run(pool.start())


def test_a_module_that_hangs_while_it_is_imported_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "hanging_module.py").write_text("import time\ntime.sleep(1000)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    pool = WorkerPool(EnvSpec(class_path="hanging_module.Env"), num_workers=1, start_timeout_s=0.3)
    with pool, pytest.raises(RuntimeError, match=r"hanging_module\.Env failed to start .*no answer within 0\.3 s"):
        asyncio.run(pool.start())


def test_a_replacement_that_cannot_start_ends_in_an_error(tmp_path):
    text = r"ConstructsOnce failed to start .*3 times in a row: .*only once"
    with make_pool("ConstructsOnce", marker=str(tmp_path / "made")) as pool, pytest.raises(RuntimeError, match=text):
        asyncio.run(play(pool, ["kill"]))


def test_a_trainer_killed_leaves_no_worker_behind_not_even_a_hanging_one(tmp_path):
    program = """
        import asyncio, sys
        sys.path.insert(0, {helpers!r})
        from lit_agentrl.envs.spec import EnvSpec
        from lit_agentrl.rollouts.workers import WorkerPool, WorkerStats
        from worker_envs import act, task

        async def main():
            pool = WorkerPool(EnvSpec(class_path="worker_envs.Script"), num_workers=2)
            slots = [await pool.acquire() for _ in range(2)]
            for slot in slots:
                await slot.reset(task())
                print((await slot.step(act("inspect"))).info["pid"], flush=True)
            await slots[0].step(act("hang"))

        asyncio.run(main())
    """
    path = tmp_path / "trainer.py"
    path.write_text(textwrap.dedent(program.format(helpers=str(HELPERS))))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    trainer = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True, env=environment)
    workers = [int(trainer.stdout.readline()) for _ in range(2)]
    time.sleep(0.1)
    assert not any(gone_within(0.01, [pid]) for pid in workers)
    trainer.kill()
    trainer.wait()
    assert all(gone_within(4, [pid]) for pid in workers)
    trainer.stdout.close()


def test_ctrl_c_reaches_the_trainer_only():
    async def run(pool):
        from worker_envs import act, task

        slot = await pool.acquire()
        await slot.reset(task())
        return (await slot.step(act("inspect"))).info["pid"]

    with make_pool() as pool:
        # The terminal sends the signal to the trainer's process group and session.
        worker = asyncio.run(run(pool))
        assert os.getpgid(worker) != os.getpgid(0)
        assert os.getsid(worker) != os.getsid(0)
