"""Games in which a reply is one line of text: what it says, and what the player is told about a bad one."""

from __future__ import annotations

import re

MAX_COMMAND_CHARS = 200
HOW = "Answer with one command on a line of its own."
"""What an opening says about replies."""
_LABEL = re.compile(r"^(?:[-*>#\s]*)(?:(?:action|command)\s*:)?\s*", flags=re.IGNORECASE)
_WRAPPING = " \t\"'`*"


def read_command(reply: str) -> str:
    """Return the command that a reply gives: its last line that is not empty, without `Action:`, `>` and quotes.

    So a policy may think on the lines before. Characters that no encoding has are replaced. Empty: there is none.
    """
    lines = [line for line in reply.splitlines() if line.strip()]
    if not lines:
        return ""
    command = _LABEL.sub("", lines[-1], count=1).strip(_WRAPPING)
    return " ".join(command.encode("utf-8", "replace").decode().split())


def refusal(command: str) -> str | None:
    """Return what to say about a command that no game can take, or `None`."""
    if not command:
        return f"Error: the reply is empty. {HOW}"
    if len(command) > MAX_COMMAND_CHARS:
        return f"Error: the command is longer than {MAX_COMMAND_CHARS} characters. Answer with one short command."
    return None
