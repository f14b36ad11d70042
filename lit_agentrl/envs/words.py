"""Words of texts, for the searches that environments offer: no index, no ranking model, the same everywhere."""

from __future__ import annotations

import re

_WORD = re.compile(r"\w+")
_STOP_WORDS = "a an and are did do does for in is it of on or s the to was what when which who whose"
_LEFT_OUT = frozenset(_STOP_WORDS.split())


def words(text: str) -> list[str]:
    """Return the words of a text as they are written, in order."""
    return _WORD.findall(text)


def content_words(text: str) -> set[str]:
    """Return the words of a text in lower case, without those that are in every text."""
    return {word for word in words(text.lower()) if word not in _LEFT_OUT}
