"""MCP servers as tools: described by themselves, told about mistakes, restarted when they die, never left behind."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
import yaml
from extras_support import needs_mcp
from process_watch import gone_within, happens, processes, with_command
from scripted import ScriptedEngine, call, episode

from lit_agentrl.agents.tool_agent import ToolAgent
from lit_agentrl.agents.tools.base import ToolBox
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.rollouts.workers import WorkerPool
from lit_agentrl.types import Task

pytestmark = needs_mcp
ROOT = Path(__file__).parents[2]
SERVER = ROOT / "tests/support/mcp_test_server.py"
MAKER = "lit_agentrl.agents.tools.mcp_tools.make_mcp_tools"
NAMES = "add count sleep die hang flood spawn environment fail refuse show chatter binary odd elsewhere"
ALL = NAMES.split()


def entry(*arguments, **init_args):
    command = ["python", "-I", "-S", str(SERVER), *arguments]
    return {"class_path": MAKER, "init_args": {"command": command, "timeout_s": 10} | init_args}


@contextlib.contextmanager
def tools(*arguments, **init_args):
    box = ToolBox([entry(*arguments, **init_args)])
    try:
        yield box
    finally:
        box.close()


@pytest.fixture
def marker():
    return f"marker-{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def box():
    with tools() as made:
        yield made


def say(box, name, slot=0, max_chars=1000, **arguments):
    return box.call(name, arguments, max_chars=max_chars, slot=slot)


def test_tools_appear_with_the_servers_descriptions_and_schemas(box):
    assert [spec.name for spec in box.specs] == ALL  # of five pages
    add = box.specs[0]
    assert add.description == "The tool add."
    assert add.parameters["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}}
    assert add.parameters["required"] == ["a"]


def test_a_call_returns_the_servers_text(box):
    output = say(box, "add", a=41)
    assert (output.text, output.error, output.cut, output.restarted) == ("42", False, False, False)


def test_other_contents_than_text_are_named(box):
    assert say(box, "show").text == "a\n[image, image/png: it cannot be shown as text]\nb\n[memo://2]"


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("add", {}, "Error: add: argument 'a' is missing"),
        ("add", {"a": "x"}, "Error: add: argument 'a': 'x' is not of type 'integer'"),
        ("add", {"a": "x" * 9000, "b": 1.5}, "is not of type 'integer'; argument 'b': 1.5 is not of type 'integer'"),
        ("fail", {}, "Error: fail: no luck"),
        ("refuse", {}, "Error: refuse: not for you"),
        ("odd", {"y": 1}, "Error: odd: count() got an unexpected keyword argument 'y'"),  # only the server can check
        ("elsewhere", {"x": 1}, "Error: elsewhere: count() got an unexpected keyword argument 'x'"),
        ("subtract", {}, f"Error: there is no tool 'subtract'; available: {', '.join(ALL)}"),
    ],
)
def test_mistakes_are_told_on_one_line(box, name, arguments, text):
    output = box.call(name, arguments, max_chars=1000)
    assert text in output.text
    assert (output.error, output.restarted, "\n" in output.text) == (True, False, False)
    assert len(output.text) < 600


def test_long_outputs_are_cut_with_a_marker(box):
    output = say(box, "flood", length=100_000, max_chars=50)
    assert output.text == "x" * 50 + "\n[... cut, 100000 characters in all]"
    assert output.cut


def test_bytes_that_are_not_text_are_marked(box):
    assert say(box, "binary").text == "\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}."
    assert say(box, "add", a=1).text == "2"


def test_lines_that_are_no_messages_are_passed_over_in_silence(capfd):
    with tools(tools=["chatter"]) as box:
        assert say(box, "chatter").text == "done"
    assert capfd.readouterr() == ("", "")


def test_a_server_gets_none_of_the_trainers_variables(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_TRAINER", "1")
    with tools(env={"GIVEN": "1"}) as box:
        names = say(box, "environment").text.split()
    assert "GIVEN" in names
    assert "PATH" in names
    assert "SECRET_OF_THE_TRAINER" not in names


def test_a_call_that_takes_too_long_is_given_up_and_the_server_goes_on():
    with tools(timeout_s=0.3) as box:
        say(box, "count")
        output = say(box, "sleep", seconds=1)
        assert output.text == "Error: sleep: it took more than 0.3 s and was given up"
        assert (output.error, output.restarted) == (True, False)
        assert say(box, "count").text == "2"


def test_a_server_that_hangs_is_replaced(marker, monkeypatch):
    monkeypatch.setattr("lit_agentrl.agents.tools.mcp_client._PROBE_S", 0.5)
    with tools(marker, timeout_s=0.3) as box:
        before = with_command(marker)
        output = say(box, "hang")
        assert output.text.startswith(
            "Error: hang: the server died (it gave no answer within 0.3 s, to nothing any more"
        )
        assert output.restarted
        assert gone_within(5, before)
        assert say(box, "count").text == "1"


def test_a_server_that_dies_is_started_again_once_an_episode(marker):
    with tools(marker) as box:
        say(box, "count")
        before = with_command(marker)
        output = say(box, "die", code=3)
        assert output.text == (
            "Error: die: the server died (it ended) and was started again; what it remembered is gone, and the call "
            "may or may not have been carried out"
        )
        assert (output.error, output.restarted) == (True, True)
        assert gone_within(5, before)
        assert say(box, "count").text == "1"
        output = say(box, "die", code=3)
        assert output.text == "Error: die: the server died (it ended) and is not started again in this episode"
        assert not output.restarted
        assert say(box, "count").text == "Error: count: the server is down and is not started again in this episode"
        assert gone_within(5, with_command(marker))
        box.start_episode(0)
        assert say(box, "count").text == "1"


def test_restarts_are_counted_for_each_episode_that_runs():
    with tools() as box:
        for slot in (0, 1):
            assert say(box, "die", code=1, slot=slot).restarted
        box.start_episode(1)
        assert not say(box, "die", code=1, slot=0).restarted
        assert (
            say(box, "count", slot=0).text
            == "Error: count: the server is down and is not started again in this episode"
        )
        assert say(box, "count", slot=1).text == "1"
        assert say(box, "count", slot=0).text == "2"  # the other episode has started it


def test_a_server_that_cannot_be_started_again_is_told(tmp_path):
    with tools("--once", str(tmp_path / "started")) as box:
        output = say(box, "die", code=0)
        assert output.text.startswith("Error: die: the server is down and cannot be started: ")
        assert "will not start twice it ended with code 1" in output.text
        assert not output.restarted


def test_a_message_that_is_too_long_ends_the_server():
    with tools(max_message_mb=1) as box:
        assert say(box, "flood", length=900_000).error is False
        output = say(box, "flood", length=2_000_000)
        assert "the server died (it ended) and was started again" in output.text
        assert say(box, "add", a=1).text == "2"


def test_episodes_share_a_server_unless_each_is_to_have_its_own(marker):
    with tools() as box:
        assert [say(box, "count", slot=slot).text for slot in (0, 1, 0)] == ["1", "2", "3"]
    with tools(marker, fresh_per_episode=True) as box:
        assert [say(box, "count", slot=slot).text for slot in (0, 1, 0)] == ["1", "1", "2"]
        box.start_episode(0)
        assert [say(box, "count", slot=slot).text for slot in (0, 1)] == ["1", "2"]
        assert len(with_command(marker)) == 4  # two servers, each with its keeper


def test_a_choice_of_tools_and_a_prefix():
    with contextlib.closing(ToolBox([entry(tools=["count"], prefix="a_"), entry(tools=["count", "add"])])) as box:
        assert [spec.name for spec in box.specs] == ["a_count", "count", "add"]
        assert [say(box, name).text for name in ("a_count", "a_count", "count")] == ["1", "2", "1"]


@pytest.mark.parametrize("arguments", [(), ("--deaf",)])
def test_nothing_is_left_when_tools_are_closed(marker, arguments):
    with tools(marker, *arguments) as box:
        started = [*with_command(marker), int(say(box, "spawn", marker=marker).text)]
        assert len(started) == 3
        begin = time.monotonic()
    assert time.monotonic() - begin < 8
    assert gone_within(3, started)
    box.close()  # twice does no harm


def deaf_family(box, marker):
    """Return the ids of the keeper, of its deaf server and of what that has started, deaf too."""
    spawned = int(say(box, "spawn", marker=marker).text)
    started = with_command(marker)
    (keeper,) = [pid for pid in started if "mcp_keeper" in processes()[pid].command]
    (server,) = {pid for pid in started if processes()[pid].parent == keeper} - {spawned}
    return keeper, server, spawned


def test_nothing_is_left_of_a_server_killed_by_9(marker):
    with tools(marker, "--deaf") as box:
        keeper, server, spawned = deaf_family(box, marker)
        os.kill(server, signal.SIGKILL)
        assert gone_within(5, [keeper, server, spawned])


def test_a_keeper_killed_by_9_takes_the_server_with_it(marker):
    with tools(marker, "--deaf") as box:
        keeper, server, spawned = deaf_family(box, marker)
        os.kill(keeper, signal.SIGKILL)
        assert gone_within(5, [keeper, server])
        os.kill(spawned, signal.SIGKILL)  # nobody is left who knows of it


def test_nothing_is_left_after_kill_9_of_whoever_owns_the_tools(marker):
    program = (
        "import time\nfrom lit_agentrl.agents.tools.base import ToolBox\n"
        f"box = ToolBox([{entry(marker, '--deaf')!r}])\n"
        f"print(box.call('spawn', {{'marker': {marker!r}}}, max_chars=100).text, flush=True)\ntime.sleep(1000)"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert owner.stdout.readline()
        started = set(with_command(marker)) - {owner.pid}
        assert len(started) == 3
        owner.kill()
        assert gone_within(5, started)
    finally:
        owner.kill()
        owner.communicate()


def test_a_worker_killed_by_9_leaves_no_server(marker):
    async def run():
        with WorkerPool(EnvSpec(class_path="TinyArithmetic"), tools=[entry(marker, "--deaf")], num_workers=1) as pool:
            slot = await pool.acquire()
            await slot.reset(await pool.sample_task(0, "train"))
            assert (await slot.call_tool("count", {})).text == "1"
            started = with_command(marker)
            (keeper,) = [pid for pid in started if "mcp_keeper" in processes()[pid].command]
            os.kill(processes()[keeper].parent, signal.SIGKILL)
            # The episode is replayed on another worker, with another server: the call was made there, too.
            assert (await slot.call_tool("count", {})).text == "2"
            assert gone_within(5, started)
            return with_command(marker)

    assert gone_within(5, asyncio.run(run()))


def test_restarts_are_counted_in_the_trajectory():
    with tools(tools=["die", "count"]) as box:

        class Env:
            outputs_cut = 0

            async def reset(self, task: Task):
                from lit_agentrl.types import Message, Observation

                return Observation(messages=(Message.of("user", "Go."),))

            async def step(self, action):
                from scripted import done

                return done()

            async def call_tool(self, name, arguments):
                return box.call(name, arguments, max_chars=1000)

        engine = ScriptedEngine(call("count"), call("die", code=1), call("count"), "Bye.")
        trajectory = episode(ToolAgent(max_turns=5), Env(), engine, tools=box.specs, max_context=4096)
    assert (trajectory.tool_calls, trajectory.tool_errors, trajectory.tool_restarts) == (3, 1, 1)
    assert [turn.messages[-1].text for turn in trajectory.turns][1::2] == ["1", "1"]


def test_our_own_tools_can_be_served_and_the_shipped_config_uses_that():
    config = yaml.safe_load((ROOT / "configs/agent/mcp.yaml").read_text())
    with contextlib.closing(ToolBox(config["init_args"]["tools"])) as served:
        own = ToolBox(["lit_agentrl.agents.tools.calculator.calculator"])
        assert served.specs == own.specs
        assert say(served, "calculator", expression="6*7").text == "42"
        for wrong in ("1/0", "6*"):
            assert say(served, "calculator", expression=wrong) == say(own, "calculator", expression=wrong)


WITH_THE_SDK = """
import os, sys
from mcp.server.mcpserver import MCPServer
server = MCPServer("http")
@server.tool()
def add(a: int) -> int:
    "Add one."
    return a + 1
@server.tool()
def die(code: int) -> str:
    "Die."
    os._exit(code)
server.run("streamable-http", port=int(sys.argv[-1]))
"""


@pytest.mark.parametrize(
    "program",
    [[str(SERVER), "--http"], pytest.param(["-c", WITH_THE_SDK], marks=pytest.mark.slow)],
    ids=["plain", "sdk"],
)
def test_a_server_over_http(program):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    @contextlib.contextmanager
    def server():
        command = [sys.executable, *program, str(port)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                assert happens(lambda: _listens(port), within_s=60)
                yield
            finally:
                process.kill()

    address = {"class_path": MAKER, "init_args": {"url": f"http://127.0.0.1:{port}/mcp", "headers": {"X-Key": "1"}}}
    with contextlib.ExitStack() as stack:
        with server():
            box = stack.enter_context(contextlib.closing(ToolBox([address])))
            assert say(box, "add", a=1).text == "2"
            assert "argument 'a' is missing" in say(box, "add").text
            assert "the server is down and cannot be started" in say(box, "die", code=1).text
        with server():
            box.start_episode(0)
            assert say(box, "add", a=1).text == "2"


def _listens(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"command": []}, r"init_args\.command or init_args\.url must be given, and not both"),
        ({"url": "http://localhost"}, r"init_args\.command or init_args\.url must be given, and not both"),
        ({"timeout_s": 0}, r"init_args\.timeout_s must be at least 0\.05, got 0"),
        ({"max_restarts": -1}, r"init_args\.max_restarts must be at least 0"),
        ({"max_message_mb": 0}, r"init_args\.max_message_mb must be at least 1"),
        ({"tool": ["add"]}, r"init_args\.tool is unknown"),
        ({"tools": ["subtract"]}, r"init_args\.tools: the server .* has no subtract; it has: add, count"),
        ({"command": ["no-such-program"]}, r"'no-such-program' cannot be started: .*cannot be run: No such file"),
        (
            {"command": ["python", "-I", "-S", str(SERVER), "--broken"]},
            r"cannot find the database it ended with code 1",
        ),
        (
            {"command": ["python", "-I", "-S", str(SERVER), "--mute"], "start_timeout_s": 0.3},
            r"cannot be started: did not answer within 0\.3 s",
        ),
    ],
)
def test_wrong_entries_name_the_key_and_leave_nothing(wrong, words, marker):
    made = entry(marker)
    made["init_args"] |= wrong
    with pytest.raises(ValueError, match=rf"agent\.init_args\.tools: .*{words}"):
        ToolBox([made])
    assert gone_within(5, with_command(marker))


def test_two_servers_with_a_tool_of_one_name_are_refused(marker):
    with pytest.raises(ValueError, match="two tools are named 'add'"):
        ToolBox([entry(marker), entry(marker)])
    assert gone_within(5, with_command(marker))
