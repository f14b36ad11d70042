"""P09: a wrong tool name or wrong arguments come back to the model as one line of text."""

import asyncio

import pytest

from lit_agentrl.agents.tools.base import ToolBox


def add(left: int, right: int = 1) -> int:
    """Add."""
    return left + right


async def add_later(left: int) -> int:
    """Add, asynchronously."""
    await asyncio.sleep(0)
    return left + 1


def fail(kind: str) -> str:
    """Fail."""
    if kind == "exit":
        raise SystemExit(3)
    if kind == "lines":
        raise KeyError("two\nlines")
    raise RuntimeError("x" * 10_000)


BOX = ToolBox([add, add_later, fail])


def call(name, arguments):
    return BOX.call(name, arguments, max_chars=500)


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("ad", {}, "Error: there is no tool 'ad'; available: add, add_later, fail"),
        ("", {}, "Error: there is no tool ''; available: add, add_later, fail"),
        ("add", {}, "Error: add: argument 'left' is missing (expected integer)"),
        ("add", {"left": "two"}, "Error: add: argument 'left' must be integer, got \"two\""),
        ("add", {"left": 1.5}, "Error: add: argument 'left' must be integer, got 1.5"),
        (
            "add",
            {"left": 1, "rigt": 2},
            "Error: add: argument 'rigt' is unknown (accepted: left (integer), right (integer))",
        ),
        ("fail", {"kind": "exit"}, "Error: fail: SystemExit: 3"),
        ("fail", {"kind": "lines"}, r"Error: fail: KeyError: 'two\nlines'"),
    ],
)
def test_mistakes_come_back_as_one_line(name, arguments, text):
    output = call(name, arguments)
    assert (output.text, output.error) == (text, True)
    assert "\n" not in output.text


def test_every_wrong_argument_is_named():
    text = call("add", {"left": [], "other": 1}).text
    assert "'left' must be integer" in text
    assert "'other' is unknown" in text


@pytest.mark.parametrize("arguments", [None, [1, 2], "left=1", 7])
def test_arguments_that_are_no_object_come_back_as_text(arguments):
    assert call("add", arguments).error


def test_long_error_texts_are_cut():
    output = call("fail", {"kind": "long"})
    assert output.error
    assert output.cut
    assert len(output.text) < 560


def test_sync_and_async_tools_are_called_alike():
    assert call("add", {"left": 1}).text == "2"
    assert call("add_later", {"left": 1}).text == "2"


def test_async_tools_also_run_below_a_running_event_loop():
    async def agent():
        return call("add_later", {"left": 4})

    assert asyncio.run(agent()).text == "5"


def test_an_exception_whose_text_raises_is_survived():
    class NastyError(Exception):
        def __str__(self):
            raise RuntimeError

    def nasty() -> str:
        """Raise something nasty."""
        raise NastyError

    assert ToolBox([nasty]).call("nasty", {}, max_chars=100).text == "Error: nasty: NastyError"
