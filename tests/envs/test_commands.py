"""What a reply says when it is one line of text."""

import pytest

from lit_agentrl.envs.commands import read_command, refusal


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("look around", "look around"),
        ("I should look first.\n\nAction: look around\n", "look around"),
        ("> take  coin ", "take coin"),
        ("- **action:** `open door`", "open door"),
        ("", ""),
        (" \n\t\n", ""),
        ("Action:", ""),
        ("go\ud800north", "go?north"),
    ],
)
def test_what_is_understood(reply, command):
    assert read_command(reply) == command


def test_what_no_game_can_take():
    assert refusal("") == "Error: the reply is empty. Answer with one command on a line of its own."
    assert refusal("x" * 201).startswith("Error: the command is longer than 200 characters.")
    assert refusal("x" * 200) is None
