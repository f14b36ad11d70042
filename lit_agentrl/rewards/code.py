"""Reading the one program of a reply. Nothing is run or parsed here."""

from __future__ import annotations

import re

_BLOCK = re.compile(r"^[ \t]*```[ \t]*(?:python3?|py)?[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_FENCE = "```"


def code_instruction() -> str:
    """Return one short sentence that tells a model how to mark a program."""
    return "Put the code in a ```python block."


def write_code(code: str) -> str:
    """Return the text that states a program; `extract_code` reads it back."""
    return f"{_FENCE}python\n{code.strip()}\n{_FENCE}"


def extract_code(text: str, function: str) -> str | None:
    """Return the program of a reply that defines a function, or `None`.

    It is the one code block in which the function begins a line; a reply without any fence is a program itself. `None`
    means: no such block, a block that is not closed, or several different ones.

    Args:
        text: The reply.
        function: Name of the function.
    """
    if _FENCE not in text:
        blocks = [text]
    elif text.count(_FENCE) % 2:
        return None
    else:
        blocks = _BLOCK.findall(text)
    defines = re.compile(rf"^def[ \t]+{re.escape(function)}[ \t]*\(", re.MULTILINE)
    found = {block.strip("\n").rstrip() for block in blocks if defines.search(block)}
    return found.pop() if len(found) == 1 else None
