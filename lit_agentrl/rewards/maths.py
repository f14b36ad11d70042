"""Checks of mathematical answers: integers as AIME asks for them, and everything else through math-verify."""

from __future__ import annotations

import functools
import logging
import re
from typing import Any, Literal, TypeAlias

from lit_agentrl.rewards.answers import exact_match
from lit_agentrl.rewards.grading import GraderError, IsolatedGrader

AnswerKind: TypeAlias = Literal["aime", "expression"]
"""Integers from 0 to 999, or anything that math-verify reads."""

AIME_MAX = 999
_AIME_ANSWER = re.compile(r"\$?\s*(\d{1,3})\s*\$?\s*\.?", flags=re.ASCII)
_MAX_CHARS = 500
_TEXT_COMMAND = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s*\{([^{}]*)\}")
# Of matrices and cases: their names are no words of the answer.
_FRAME = re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z]{3,}")
_FUNCTIONS = frozenset({"sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "sqrt", "arcsin", "arccos", "arctan"})
_ASSIGNMENT = re.compile(r"\s*[A-Za-z](?:_\{?\w+\}?)?(?:\([A-Za-z]\))?\s*=")
_POWER = r"(?:\^|\*\*)"
_EXPLODES = re.compile(
    rf"{_POWER}[\s{{(+-]*\d{{4,}}"  # an exponent of four digits
    rf"|{_POWER}[^=,;]*?{_POWER}[^=,;]*?{_POWER}"  # a tower of three
    r"|\d{4,}\s*!|!\s*!|\d[eE]\d{4,}"
)


def aime_answer(text: str | None) -> int | None:
    """Return the integer from 0 to 999 that a final answer is, and nothing beside it, or `None`."""
    match = _AIME_ANSWER.fullmatch(text.strip()) if text is not None else None
    return int(match[1]) if match else None


def aime_match(answer: str | None, gold: str) -> bool:
    """Whether an answer is the gold integer.

    Raises:
        ValueError: The gold answer is no integer from 0 to 999; that is a fault of the data, never a wrong answer.
    """
    expected = aime_answer(gold)
    if expected is None:
        raise ValueError(f"the gold answer {gold!r} is not an integer from 0 to {AIME_MAX}")
    return aime_answer(answer) == expected


def is_word(gold: str) -> bool:
    """Whether a gold answer is a word or a name, which only equal text can match."""
    return bool(_words(gold)) and not any(character.isdigit() for character in gold)


def is_checkable(answer: str, gold: str) -> bool:
    """Whether an answer may be given to math-verify; one that may not is wrong.

    Stopped are answers with words in them (math-verify would pick a number out of a sentence), equations where a value
    is due (it takes the last side, so `41 = 42` would be 42), and expressions that take for ever to evaluate.
    """
    if not answer.strip() or len(answer) > _MAX_CHARS or _words(answer):
        return False
    if "=" in answer and "=" not in gold:
        left = _ASSIGNMENT.match(answer.strip().strip("$"))
        if left is None or answer.count("=") > 1:
            return False
    return not _EXPLODES.search(answer)


def word_match(answer: str, gold: str) -> bool:
    """Whether an answer is the gold word, apart from case and LaTeX's `text`."""
    return exact_match(_untext(answer), _untext(gold))


def math_verify_match(answer: str, gold: str) -> bool:
    r"""Whether math-verify finds an answer equal to the gold answer. May take for ever: see `IsolatedGrader`.

    Only its LaTeX reader is used, on the answer as a whole: the one for plain text evaluates Python.

    Raises:
        ValueError: The gold answer cannot be read.
    """
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    expected = _parsed(gold)
    if not expected:
        raise ValueError(f"math-verify cannot read the gold answer {gold!r}")
    given = _read(answer)
    return bool(given) and bool(math_verify.verify(list(expected), given, timeout_seconds=None, raise_on_error=True))


class MathGrader:
    """Says whether answers are right; expressions are compared in a process of its own, which is killed if it loops.

    Args:
        kind: What the gold answers are.
        timeout_s: CPU seconds that one comparison may take.
    """

    def __init__(self, kind: AnswerKind, *, timeout_s: float = 5.0) -> None:
        self.kind = kind
        self._compare = IsolatedGrader(math_verify_match, timeout_s=timeout_s)

    @property
    def pid(self) -> int | None:
        """Id of the grader's process, if there is one."""
        return self._compare.pid

    def is_right(self, answer: str | None, gold: str) -> bool:
        """Whether an answer is the gold answer.

        Raises:
            GraderError: The comparison looped or crashed, or the gold answer cannot be read.
        """
        if self.kind == "aime":
            try:
                return aime_match(answer, gold)
            except ValueError as error:
                raise GraderError(str(error)) from None
        if answer is None:
            return False
        if is_word(gold):
            return word_match(answer, gold)
        return word_match(answer, gold) or (is_checkable(answer, gold) and bool(self._compare(answer, gold)))

    def close(self) -> None:
        """End the grader's process."""
        self._compare.close()


@functools.lru_cache(maxsize=1024)
def _parsed(gold: str) -> tuple[Any, ...]:
    return tuple(_read(gold))


def _read(text: str) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse

    inner = text.strip().strip("$").strip()
    # Words that could not be read are returned as text; two unreadable answers must not be equal for that.
    found = parse(
        f"\\boxed{{{inner}}}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return [value for value in found if not isinstance(value, str)]


def _untext(text: str) -> str:
    return _TEXT_COMMAND.sub(r"\1", text.strip().strip("$")).strip(" .")


def _words(text: str) -> list[str]:
    plain = _COMMAND.sub(" ", _TEXT_COMMAND.sub(r" \1 ", _FRAME.sub(" ", text)))
    return [word for word in _WORD.findall(plain) if word not in _FUNCTIONS]
