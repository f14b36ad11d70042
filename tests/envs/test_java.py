"""Java processes of simulators: they do as they are told, are replaced when they fail, and are never left behind."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from java_support import java_below, needs_java
from process_watch import gone_within, happens, runs

from lit_agentrl.envs import java
from lit_agentrl.envs.java import JavaLostError, JavaServer, jar_of, shared_server
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.envs.textworld_express import TextWorldExpress
from lit_agentrl.protocols import EpisodeFailedError
from lit_agentrl.rollouts.workers import WorkerPool
from lit_agentrl.types import Action, Message

pytestmark = needs_java

ROOT = Path(__file__).parents[2]
LOOK = Action(message=Message.of("assistant", "look around"))
COIN = {"games": {"coin": {"numLocations": 2}}}


@pytest.fixture
def env():
    made = TextWorldExpress(**COIN, timeout_s=15.0)
    yield made
    made.close()


def begin(env):
    env.reset(env.sample_task(0, "train"))
    return env._server.process.pid


def test_a_process_that_dies_fails_the_episode_and_is_replaced(env):
    first = begin(env)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(JavaLostError, match="textworld-express ended with code -9"):
        env.step(LOOK)
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step(LOOK)
    assert begin(env) != first
    assert env.step(LOOK).success is None


def test_a_process_that_hangs_is_ended_within_the_limit_and_replaced(env):
    first = begin(env)
    os.kill(first, signal.SIGSTOP)
    with pytest.raises(JavaLostError, match="textworld-express gave no answer in time"):
        env.step(LOOK)
    assert not runs(first)
    begin(env)
    assert env.step(LOOK).success is None


def test_instances_share_a_process_that_ends_with_the_last(env):
    other = TextWorldExpress(**COIN)
    pid = begin(env)
    assert begin(other) == pid
    env.close()
    assert other.step(LOOK).success is None
    other.close()
    assert gone_within(5, [pid])


def test_an_error_in_java_is_an_error_here_and_the_process_goes_on():
    server = JavaServer(jar_of("textworld_express", "textworld-express.jar"), heap_mb=64)
    try:
        number = server.make("java.lang.Object", timeout_s=5)
        with pytest.raises(RuntimeError, match="IllegalArgumentException"):
            number.call("wait", -1)
        assert number.call("hashCode") != 0
        assert server.alive
    finally:
        server.close()
    with pytest.raises(JavaLostError):
        number.call("hashCode")


def test_memory_is_bounded_and_running_out_of_it_ends_the_process():
    server = JavaServer(jar_of("textworld_express", "textworld-express.jar"), heap_mb=64)
    try:
        text = server.make("java.lang.StringBuilder", timeout_s=30)
        with pytest.raises(JavaLostError, match="ended with code 3"):
            text.call("setLength", 200_000_000)
    finally:
        server.close()


def test_a_stranger_without_the_token_is_refused():
    from py4j.java_gateway import GatewayParameters, JavaGateway
    from py4j.protocol import Py4JError

    server = shared_server(jar_of("textworld_express", "textworld-express.jar"), heap_mb=64)
    with pytest.raises(Py4JError):
        JavaGateway(gateway_parameters=GatewayParameters(port=server._port)).jvm.java.lang.Object()
    server.close()


def test_in_a_worker_only_the_episodes_of_the_lost_process_fail():
    async def episodes():
        slots = [await pool.acquire() for _ in range(2)]
        tasks = await pool.sample_tasks([(0, "train"), (1, "train")])
        for slot, task in zip(slots, tasks, strict=True):
            await slot.reset(task)
        (pid,) = java_below(os.getpid())
        os.kill(pid, signal.SIGKILL)
        for slot in slots:
            with pytest.raises(EpisodeFailedError, match="JavaLostError"):
                await slot.step(LOOK)
        for slot, task in zip(slots, tasks, strict=True):
            await slot.reset(task)
            assert (await slot.step(LOOK)).success is None

    spec = EnvSpec(class_path="TextWorldExpress", init_args=COIN)
    with WorkerPool(spec, num_workers=1, envs_per_worker=2, timeout_s=30) as pool:
        asyncio.run(episodes())
        assert (pool.stats.env_errors, pool.stats.restarts) == (2, 0)
    assert happens(lambda: not java_below(os.getpid()), within_s=5)


TRAINER = """
import asyncio, sys, time
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.rollouts.workers import WorkerPool

async def play():
    slot = await pool.acquire()
    await slot.reset(await pool.sample_task(0, "train"))
    print("plays", flush=True)
    await asyncio.to_thread(sys.stdin.readline)

pool = WorkerPool(EnvSpec(class_path=sys.argv[1]), num_workers=2)
asyncio.run(play())
"""


@pytest.mark.parametrize("name", ["TextWorldExpress", "ScienceWorld"])
@pytest.mark.parametrize("end", ["ends", "SIGINT", "SIGKILL"])
def test_no_process_is_left_however_the_trainer_ends(end, name):
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        start_new_session=True,
    )
    try:
        assert trainer.stdout.readline() == "plays\n"
        (pid,) = java_below(trainer.pid)
        if end == "ends":
            trainer.stdin.write("\n")
            trainer.stdin.flush()
            assert trainer.wait(timeout=30) == 0
        else:
            os.killpg(trainer.pid, getattr(signal, end))
            if end == "SIGINT":
                trainer.stdin.close()  # the thread that reads it holds the interpreter
            trainer.wait(timeout=30)
        assert gone_within(10, [pid])
    finally:
        trainer.kill()
        trainer.wait()
        trainer.stdout.close()


def test_without_java_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(java, "find_java", lambda: None)
    for name in ("TextWorldExpress", "ScienceWorld"):
        with pytest.raises(ValueError, match=rf"^env.class_path: {name} needs the program 'java'.*openjdk-17"):
            EnvSpec(class_path=name).check()


def test_java_home_comes_first(monkeypatch, tmp_path):
    binary = tmp_path / "bin/java"
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\nexit 1\n")
    binary.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.find_java() == str(binary)
    with pytest.raises(JavaLostError, match="does not start"):
        JavaServer(jar_of("textworld_express", "textworld-express.jar"), heap_mb=64)
