"""MiniWoB++ in worker processes: browsers that are killed, hang or are left behind, and two epochs of `fit`."""

import asyncio
import csv
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from process_watch import descendants, gone_within, happens, processes, with_variable
from scripted import CHAT, ScriptedEngine, call

from lit_agentrl.agents.context import EpisodeContext
from lit_agentrl.agents.tool_agent import ToolAgent
from lit_agentrl.envs import browser
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.protocols import EpisodeFailedError
from lit_agentrl.rollouts.workers import WorkerPool
from lit_agentrl.types import Action, Message, Sampling, ToolCall, Trajectory

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 6.0
ARGUMENTS = {"tasks": ["click-test", "login-user"], "timeout_s": TIMEOUT_S}

pytestmark = [
    pytest.mark.skipif(browser.find_browser() is None, reason=f"no Chromium: {browser.INSTALL}"),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]


def pool_of(**numbers):
    spec = EnvSpec(class_path="MiniWoB", init_args=ARGUMENTS)
    return WorkerPool(spec, **{"num_workers": 1, "timeout_s": 60, **numbers})


def browsers_of(pid):
    commands = {child: process.command for child, process in descendants(pid).items()}
    return [child for child, line in commands.items() if "--remote-debugging-pipe" in line and "--type=" not in line]


def assert_gone(pids, within_s=10.0):
    assert gone_within(within_s, pids), [processes().get(pid) for pid in pids]


def press():
    made = ToolCall(id="c0", name="press", arguments={"key": "Tab"})
    return Action(message=Message.of("assistant", "", tool_calls=(made,)))


@pytest.fixture(scope="module")
def pool():
    with pool_of(envs_per_worker=3) as made:
        yield made


async def opened(pool, seed=0):
    slot = await pool.acquire()
    return slot, await slot.reset(await pool.sample_task(seed, "train"))


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (signal.SIGKILL, "BrowserLostError: the browser was killed"),
        (signal.SIGSTOP, "BrowserLostError: the browser gave no answer within 6 s"),
    ],
)
def test_a_lost_browser_fails_the_episodes_that_use_it_and_is_replaced(pool, number, cause):
    async def run():
        slots = [(await opened(pool, seed))[0] for seed in range(2)]
        idle, _ = await opened(pool, 2)
        idle.release()
        (lost,) = browsers_of(os.getpid())
        os.kill(lost, number)
        began = time.monotonic()
        for slot in slots:
            with pytest.raises(EpisodeFailedError, match=cause if slot is slots[0] else "BrowserLostError"):
                await slot.step(press())
        took = time.monotonic() - began
        for slot in slots:
            slot.release()
        # All slots go on, the one whose episode was over before without an error.
        fresh = [await opened(pool, seed) for seed in range(3)]
        for slot, _ in fresh:
            assert (await slot.step(press())).terminated is False
            slot.release()
        return lost, took

    restarts = pool.stats.restarts
    lost, took = asyncio.run(run())
    assert took < TIMEOUT_S + 3  # the timeout, a quarter of a second for noticing, and a busy machine
    assert_gone([lost])
    assert len(browsers_of(os.getpid())) == 1
    assert pool.stats.restarts == restarts  # the worker itself lives


def test_contexts_share_one_browser_a_worker():
    async def run(pool):
        return [await opened(pool, seed) for seed in range(4)]

    before = set(browsers_of(os.getpid()))
    with pool_of(num_workers=2, envs_per_worker=2) as pool:
        asyncio.run(run(pool))
        ours = set(browsers_of(os.getpid())) - before
        assert len(ours) == 2
    assert_gone(ours)


def test_a_killed_worker_takes_its_browser_along_and_the_episode_is_replayed(pool):
    async def run():
        slot, _ = await opened(pool)
        (old,) = browsers_of(os.getpid())
        first = await slot.step(press())
        worker = next(
            pid for pid in descendants(os.getpid()) if old in descendants(pid) and pid != old and is_worker(pid)
        )
        os.kill(worker, signal.SIGKILL)
        second = await slot.step(press())
        slot.release()
        return old, first, second

    def is_worker(pid):
        return any("playwright/driver" in child.command for child in descendants(pid).values() if child.parent == pid)

    replays = pool.stats.replays
    old, first, second = asyncio.run(run())
    assert (first.terminated, second.terminated) == (False, False)
    assert pool.stats.replays == replays + 1
    assert_gone([old])


PROGRAM = """
    import asyncio, os, sys
    from lit_agentrl.envs.spec import EnvSpec
    from lit_agentrl.rollouts.workers import WorkerPool

    async def main(pool):
        slots = [await pool.acquire() for _ in range(4)]
        for seed, slot in enumerate(slots):
            await slot.reset(await pool.sample_task(seed, "train"))
        print("ready", flush=True)
        if sys.argv[1] == "wait":
            await asyncio.sleep(100)

    with WorkerPool(EnvSpec(class_path="MiniWoB", init_args={arguments}), num_workers=2, envs_per_worker=2) as pool:
        asyncio.run(main(pool))
"""


@pytest.mark.parametrize("end", ["normal", "ctrl-c", "kill", "kill, browser stopped"])
def test_no_browser_outlives_the_trainer(end, tmp_path):
    path = tmp_path / "trainer.py"
    path.write_text(textwrap.dedent(PROGRAM).replace("{arguments}", repr(ARGUMENTS)))
    trainer = subprocess.Popen(
        [sys.executable, str(path), "end" if end == "normal" else "wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )
    assert trainer.stdout.readline() == "ready\n"
    started = descendants(trainer.pid) if end != "normal" else {}
    if end != "normal":
        running = browsers_of(trainer.pid)
        assert len(running) == 2
        if end == "kill, browser stopped":
            os.kill(running[0], signal.SIGSTOP)
        trainer.send_signal(signal.SIGINT if end == "ctrl-c" else signal.SIGKILL)
    trainer.wait(20)
    trainer.stdout.close()
    assert_gone(started)
    # Nobody has the folder of this test in its environment any more, and closing removed the browsers' files.
    assert happens(lambda: not with_variable("TMPDIR", tmp_path), within_s=10)
    if end in ("normal", "ctrl-c"):
        assert list(tmp_path.glob("lit_agentrl_browser_*")) == []


def test_files_of_killed_processes_are_removed_by_the_next(tmp_path, monkeypatch):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / f"lit_agentrl_browser_{dead.pid}_x"
    ours = tmp_path / f"lit_agentrl_browser_{os.getpid()}_x"
    for folder in (left, ours):
        (folder / "profile").mkdir(parents=True)
    monkeypatch.setattr(browser.tempfile, "tempdir", str(tmp_path))
    made = Path(browser._own_folder())
    assert sorted(tmp_path.iterdir()) == sorted([made, ours])


def test_an_agent_plays_through_a_worker(pool):
    async def run():
        tasks = await pool.sample_tasks([(seed, "train") for seed in range(4)])
        played = []
        for task, shown in zip(tasks, await pool.demonstrate(tasks), strict=True):
            replies = [message.text for message in shown.messages if message.role == "assistant"]
            # A call that cannot be parsed costs a turn and is told; then the demonstration is followed.
            engine = ScriptedEngine('<tool_call>{"name": "click", </tool_call>', call("click", id=50), *replies)
            trajectory = Trajectory(task=task, group=0, sample=0)
            slot = await pool.acquire()
            context = EpisodeContext(
                env=slot,
                engine=engine,
                chat=CHAT,
                tools=(),
                sampling=Sampling(max_new_tokens=1000),
                max_context=100_000,
                phase="train",
                run_seed=0,
                rollout=0,
            )
            await ToolAgent(max_turns=10).run(trajectory, context)
            slot.release()
            played.append(trajectory)
        return played

    for trajectory in asyncio.run(run()):
        assert (trajectory.status, trajectory.success, trajectory.reward) == ("completed", True, 1.0)
        assert trajectory.tool_errors == 1  # the unreadable call; the environment counts what it refuses itself
        assert trajectory.reward_parts["invalid_actions"] == 1.0
        assert trajectory.turns[2].messages[0].text.startswith("Error: there is no element 50")


def test_two_epochs_of_the_experiment(lit_agentrl, tmp_path):
    outcome = lit_agentrl(
        *("fit", "--config", ROOT / "configs/experiment/miniwob.yaml", "--run_dir", tmp_path / "run"),
        *("--data.init_args.num_groups", 3, "--data.init_args.group_size", 2, "--data.init_args.num_val_episodes", 4),
        *("--warm_start.num_steps", 2, "--warm_start.batch_size", 4),
    )
    assert outcome.code == 0, outcome.output
    assert "epoch   2/2" in outcome.output
    with (tmp_path / "run/metrics.csv").open() as file:
        rollouts = [row for row in csv.DictReader(file) if row.get("rollout/failed")]
    assert [float(row["rollout/failed"]) for row in rollouts] == [0.0, 0.0]
    # A prompt that does not fit would end an episode before its first turn.
    assert all(float(row["rollout/turns"]) >= 1 for row in rollouts)
