"""The worker pool: what it promises when nothing goes wrong. What it does about crashes: tests/pitfalls/test_p32_*."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from process_watch import gone_within

from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.protocols import EpisodeFailedError
from lit_agentrl.rollouts.workers import WorkerPool

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="module", autouse=True)
def _importable():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        yield


@pytest.fixture(scope="module")
def pool(_importable):
    """Two workers with two slots each. Shared, because starting is what takes the time."""
    tools = ["worker_envs.echo", "worker_envs.tool_huge"]
    with WorkerPool(spec(), tools=tools, num_workers=2, envs_per_worker=2, max_output_chars=100) as pool:
        yield pool


def spec(name: str = "Script", **init_args) -> EnvSpec:
    return EnvSpec(class_path=f"worker_envs.{name}", init_args=init_args)


def script():
    import worker_envs

    return worker_envs


async def inspect(pool: WorkerPool) -> dict:
    slot = await pool.acquire()
    await slot.reset(script().task())
    info = (await slot.step(script().act("inspect"))).info
    slot.release()
    return info


def test_an_episode_runs_in_a_slot(pool):
    async def episode(pool):
        slot = await pool.acquire()
        first = await slot.reset(script().task(seed=5))
        second = await slot.step(script().act("add 3"))
        slot.release()
        return first.messages[0].text, second.observation.messages[0].text, second.reward

    assert asyncio.run(episode(pool)) == ("total=5", "total=8", 8.0)


def test_workers_are_slim_and_know_the_trainers_path_and_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "extra"))
    with WorkerPool(spec(), num_workers=1) as pool:
        info = asyncio.run(inspect(pool))
    assert not info["torch"]
    assert info["rss_mb"] < 80
    assert info["cwd"] == str(tmp_path)
    assert str(tmp_path / "extra") in info["path"]
    assert info["main"] is None


def test_nothing_starts_before_the_first_use_and_closing_twice_is_fine():
    pool = WorkerPool(spec(), num_workers=1)
    with pytest.raises(RuntimeError, match="start"):
        _ = pool.traits
    pool.close()
    asyncio.run(pool.start())
    assert pool.traits.deterministic
    pool.close()
    pool.close()


def test_a_pool_serves_one_event_loop_after_another_and_again_after_close():
    with WorkerPool(spec(), num_workers=1) as pool:
        first = asyncio.run(inspect(pool))["pid"]
        assert asyncio.run(inspect(pool))["pid"] == first
        pool.close()
        assert asyncio.run(inspect(pool))["pid"] != first


def test_a_loop_that_ended_half_way_leaves_its_slots_free_and_its_answers_unread(pool):
    async def abandon(pool):
        slot = await pool.acquire()
        await slot.reset(script().task())
        step = asyncio.ensure_future(slot.step(script().act("slow")))
        await asyncio.sleep(0.05)
        return slot, step

    async def after(pool, old):
        with pytest.raises(RuntimeError, match="released"):
            await old.step(script().act("add 1"))
        return await inspect(pool)

    old, _ = asyncio.run(abandon(pool))
    assert asyncio.run(after(pool, old))["pid"]
    assert pool.stats.restarts == 0


def test_more_episodes_than_slots_wait_first_come_first_served(pool):
    async def run(pool):
        order = []

        async def episode(number):
            slot = await pool.acquire()
            order.append(number)
            await slot.reset(script().task())
            await slot.step(script().act("slow" if number == 0 else "add 1"))
            slot.release()

        await pool.start()
        await asyncio.gather(*(episode(number) for number in range(9)))
        return order

    assert pool.num_slots == 4
    assert asyncio.run(run(pool)) == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_a_cancelled_wait_passes_the_slot_on(pool):
    async def run(pool):
        slots = [await pool.acquire() for _ in range(pool.num_slots)]
        waits = [asyncio.ensure_future(pool.acquire()) for _ in range(2)]
        await asyncio.sleep(0)
        slots[3].release()
        waits[0].cancel()
        given = await asyncio.wait_for(waits[1], 2)
        return (given.place, given.index) == (slots[3].place, slots[3].index)

    assert asyncio.run(run(pool))


def test_slots_of_one_worker_keep_their_episodes_apart(pool):
    async def run(pool):
        slots = [await pool.acquire() for _ in range(4)]
        await asyncio.gather(*(slot.reset(script().task(seed=10 * n)) for n, slot in enumerate(slots)))
        results = await asyncio.gather(*(slot.step(script().act(f"add {n}")) for n, slot in enumerate(slots)))
        assert {(slot.place, slot.index) for slot in slots} == {(0, 0), (0, 1), (1, 0), (1, 1)}
        return [result.reward for result in results]

    assert asyncio.run(run(pool)) == [0, 11, 22, 33]


def test_waiting_behind_a_slow_neighbour_is_not_hanging():
    async def run(pool):
        slots = [await pool.acquire() for _ in range(3)]
        await asyncio.gather(*(slot.reset(script().task()) for slot in slots))
        # 3 x 0.4 s in one worker: the last waits 1.2 s for its answer, of which only 0.4 s are its own.
        await asyncio.gather(*(slot.step(script().act("slow")) for slot in slots))

    with WorkerPool(spec(), num_workers=1, envs_per_worker=3, timeout_s=0.9) as pool:
        asyncio.run(run(pool))
        assert pool.stats.timeouts == 0


def test_a_trainer_that_was_busy_longer_than_the_timeout_reads_the_answer():
    async def run(pool):
        slot = await pool.acquire()
        await slot.reset(script().task())
        step = asyncio.ensure_future(slot.step(script().act("add 1")))
        await asyncio.sleep(0)
        time.sleep(0.5)
        return (await step).reward

    with WorkerPool(spec(), num_workers=1, timeout_s=0.3) as pool:
        assert asyncio.run(run(pool)) == 1.0


def test_tasks_come_in_order_from_all_workers(pool):
    seeds = [(seed, split) for seed in range(5) for split in ("train", "val")]
    tasks = asyncio.run(pool.sample_tasks(seeds))
    assert [task.id for task in tasks] == [f"{split}-{seed}" for seed, split in seeds]
    with pytest.raises(EpisodeFailedError, match=r"sample_task\(seed=-1, split='val'\): ValueError: no such seed"):
        asyncio.run(pool.sample_task(-1, "val"))


def test_demonstrations_use_the_agents_tools(pool):
    shown = asyncio.run(pool.demonstrate([script().task(seed=4), script().task(seed=2)]))
    assert [demonstration.messages[0].text for demonstration in shown] == ["4", "2"]
    assert [tool.name for tool in shown[0].tools] == ["echo", "tool_huge"]


def test_an_environment_without_demonstrations_is_named():
    with WorkerPool(spec("Plain"), num_workers=1) as pool, pytest.raises(ValueError, match=r"Plain has no .*demonst"):
        asyncio.run(pool.demonstrate([script().task()]))


def test_tools_run_next_to_the_environment(pool):
    async def run(pool):
        slot = await pool.acquire()
        return await slot.call_tool("echo", {"text": "hi"}), await slot.call_tool("nothing", {})

    good, bad = asyncio.run(run(pool))
    assert (good.text, good.error) == ("hi", False)
    assert bad.error
    assert [tool.name for tool in pool.tool_specs] == ["echo", "tool_huge"]


def test_long_outputs_are_cut_with_a_marker_and_counted(pool):
    async def run(pool):
        slot = await pool.acquire()
        await slot.reset(script().task())
        fits = await slot.step(script().act("say 100"))
        long = await slot.step(script().act("say 10000000"))
        dirty = await slot.step(script().act("ansi"))
        tool = await slot.call_tool("tool_huge", {})
        return [r.observation.messages[0].text for r in (fits, long, dirty)], tool, slot.outputs_cut

    (fits, long, dirty), tool, outputs_cut = asyncio.run(run(pool))
    assert fits == "x" * 100
    assert long.startswith("x" * 100 + "\n[... cut, 10000000")
    assert dirty.encode().startswith("a\ufffd\ufffdb".encode())
    assert tool.cut
    assert len(tool.text) < 200
    assert outputs_cut == pool.stats.outputs_cut == 3


def test_messages_larger_than_any_buffer_cross_in_both_directions():
    async def run(pool):
        slots = [await pool.acquire() for _ in range(2)]
        padding = "p" * 3_000_000
        await asyncio.gather(*(slot.reset(script().task(padding=padding)) for slot in slots))
        results = await asyncio.gather(*(slot.step(script().act("say 3000000")) for slot in slots))
        return [len(result.observation.messages[0].text) for result in results]

    with WorkerPool(spec(), num_workers=1, envs_per_worker=2, max_output_chars=3_000_000) as pool:
        assert asyncio.run(run(pool)) == [3_000_000, 3_000_000]


def test_a_forked_copy_of_the_trainer_gets_workers_of_its_own():
    with WorkerPool(spec(), num_workers=1) as pool:
        worker = asyncio.run(inspect(pool))["pid"]
        copy = os.fork()
        if copy == 0:
            own = asyncio.run(inspect(pool))["pid"]
            pool.close()
            os._exit(0 if own != worker else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 0
        assert asyncio.run(inspect(pool))["pid"] == worker


def test_closing_lets_environments_close(tmp_path):
    async def run(pool):
        slot = await pool.acquire()
        await slot.reset(script().task(close_marker=str(tmp_path / "closed")))

    with WorkerPool(spec(), num_workers=1) as pool:
        asyncio.run(run(pool))
    assert (tmp_path / "closed").exists()


def test_no_process_is_left_behind_not_even_those_that_environments_start():
    async def run(pool):
        info = await inspect(pool)
        slot = await pool.acquire()
        await slot.reset(script().task())
        return info["pid"], (await slot.step(script().act("spawn"))).info["child"]

    with WorkerPool(spec(), num_workers=1) as pool:
        worker, child = asyncio.run(run(pool))
    assert gone_within(4, [worker])
    assert gone_within(4, [child])


def test_a_pool_that_is_forgotten_ends_its_workers():
    pool = WorkerPool(spec(), num_workers=1)
    worker = asyncio.run(inspect(pool))["pid"]
    del pool
    gc.collect()
    assert gone_within(4, [worker])


def test_modules_that_an_environment_names_are_imported_once_before_forking(tmp_path, monkeypatch):
    (tmp_path / "worker_preloaded.py").write_text(f"open({str(tmp_path / 'imports')!r}, 'a').write('x')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with WorkerPool(spec("Preloading"), num_workers=2) as pool:
        asyncio.run(pool.start())
    assert (tmp_path / "imports").read_text() == "x"


def test_a_script_without_a_main_guard_works(tmp_path):
    program = """
        import asyncio, sys
        sys.path.insert(0, {here!r})
        from lit_agentrl.envs.spec import EnvSpec
        from lit_agentrl.rollouts.workers import WorkerPool
        print("top level")
        pool = WorkerPool(EnvSpec(class_path="worker_envs.Script"), num_workers=2)
        print(asyncio.run(pool.sample_task(3, "train")).id)
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(program.format(here=str(HERE))))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, env=environment, timeout=30
    )
    assert (done.returncode, done.stdout.split("\n")) == (0, ["top level", "train-3", ""]), done.stderr


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"num_workers": 0}, "num_workers must be at least 1, got 0"),
        ({"num_workers": 1, "envs_per_worker": 0}, "envs_per_worker must be at least 1, got 0"),
        ({"num_workers": 1, "timeout_s": 0}, "timeout_s must be greater than 0"),
        ({"num_workers": 1, "max_output_chars": 0}, "max_output_chars must be at least 1"),
        ({"num_workers": 1, "max_retries": -1}, "max_retries must be at least 0"),
    ],
)
def test_numbers_out_of_range_name_their_key(arguments, key):
    with pytest.raises(ValueError, match=f"data.init_args.{key}"):
        WorkerPool(spec(), **arguments)


def test_an_exclusive_environment_has_one_slot_a_worker_whatever_was_asked_for():
    async def two_at_once(pool):
        await pool.start()
        slots = [await pool.acquire() for _ in range(pool.num_slots)]
        return {slot.place for slot in slots}, {slot.index for slot in slots}

    with WorkerPool(spec(exclusive=True), num_workers=2, envs_per_worker=4) as pool:
        assert asyncio.run(two_at_once(pool)) == ({0, 1}, {0})
        assert pool.num_slots == 2


def test_a_class_of_the_script_itself_is_refused():
    with pytest.raises(ValueError, match=r"env\.class_path: __main__\.MyEnv .* module"):
        WorkerPool(EnvSpec(class_path="__main__.MyEnv"), num_workers=1)


def test_arguments_that_cannot_be_sent_are_refused():
    with pytest.raises(ValueError, match=r"env\.init_args"):
        WorkerPool(spec(deterministic=lambda: 0), num_workers=1)
