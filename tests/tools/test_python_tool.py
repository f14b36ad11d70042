"""The Python tool as an agent calls it: output, errors and limits are texts."""

import asyncio
from pathlib import Path

import pytest
import yaml

from lit_agentrl.agents.tools.base import ToolBox
from lit_agentrl.agents.tools.sandbox import sandbox as module
from lit_agentrl.agents.tools.sandbox.support import Support
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.rollouts.workers import WorkerPool

CONFIG = Path(__file__).parents[2] / "configs/agent/python.yaml"
MAKER = "lit_agentrl.agents.tools.python.make_python"


@pytest.fixture(scope="module")
def box():
    entry = {"class_path": MAKER, "init_args": {"wall_s": 30, "memory_mb": 256, "output_kb": 4}}
    return ToolBox([entry])


def call(box, code, max_chars=2000):
    return box.call("python", {"code": code}, max_chars=max_chars)


def test_the_model_is_told_what_it_does(box):
    (spec,) = box.specs
    assert spec.name == "python"
    assert spec.description == "Run a Python program and return what it prints; nothing is kept between calls."
    assert spec.parameters["required"] == ["code"]


@pytest.mark.parametrize(
    ("code", "text"),
    [("print(6 * 7)", "42"), ("x = 20\nx + 1", "21"), ("x = 1", "(no output)"), ("import math; math.comb(5, 2)", "10")],
)
def test_output_and_last_value(box, code, text):
    output = call(box, code)
    assert (output.text, output.error) == (text, False)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('before')\n1/0", 'before Traceback (most recent call last): File "main.py", line 2'),
        ("print('x' * 10**6)", "the program took more than 4 kB of output and was ended"),
        ("raise SystemExit(3)", "the program ended with exit code 3"),
        ("import os; os.abort()", "the program ended with signal 6"),
        ("x = = 1", "SyntaxError"),
        ("open('/etc/passwd')", "FileNotFoundError"),
    ],
)
def test_what_goes_wrong_is_said(box, code, words):
    output = call(box, code)
    assert output.error
    assert output.text.startswith("Error: python: ")
    assert words in output.text


def test_a_program_without_end_is_told():
    box = ToolBox([{"class_path": MAKER, "init_args": {"wall_s": 0.5}}])
    assert "the program took more than 0.5 s by the clock and was ended" in call(box, "while True: pass").text


def test_a_process_that_fills_the_memory_is_told():
    box = ToolBox([{"class_path": MAKER, "init_args": {"memory_mb": 128}}])
    assert "MemoryError" in call(box, "x = bytearray(2**30)").text


def test_long_output_is_cut_with_a_marker(box):
    assert call(box, "print('x' * 3000)", max_chars=100).text.endswith("[... cut, 3000 characters in all]")


def test_the_shipped_config_works_in_a_worker():
    tools = yaml.safe_load(CONFIG.read_text())["init_args"]["tools"]

    async def ask(pool):
        slot = await pool.acquire()
        try:
            return await slot.call_tool("python", {"code": "sum(range(5))"})
        finally:
            slot.release()

    with WorkerPool(EnvSpec(class_path="TinyArithmetic", init_args={}), tools=tools, num_workers=1) as pool:
        assert asyncio.run(ask(pool)).text == "10"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"class_path": MAKER, "init_args": {"wal_s": 1}}, r"make_python: init_args\.wal_s is unknown"),
        ({"class_path": MAKER, "init_args": {"wall_s": "long"}}, r"init_args\.wall_s must be number"),
        ({"class_path": MAKER, "init_args": {"memory_mb": 1}}, r"init_args\.memory_mb must be a number of at least 32"),
        ({"path": MAKER}, r"agent\.init_args\.tools: expected an import path or \{class_path"),
        ({"class_path": f"{MAKER}x"}, r"make_pythonx' is not the import path of a function; closest: .*make_python"),
    ],
)
def test_wrong_entries_name_the_key(entry, words):
    with pytest.raises(ValueError, match=words):
        ToolBox([entry])


def test_an_unprotected_machine_is_refused_when_the_tool_is_made(monkeypatch):
    nothing = Support(namespaces=False, landlock=False, seccomp=False, bwrap=None)
    monkeypatch.setattr(module, "detect", lambda: nothing)
    with pytest.raises(ValueError, match=r"agent\.init_args\.tools: make_python: init_args\.allow_unsafe: true"):
        ToolBox([{"class_path": MAKER}])
    assert call(ToolBox([{"class_path": MAKER, "init_args": {"allow_unsafe": True}}]), "1 + 1").text == "2"
