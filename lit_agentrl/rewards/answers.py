"""Reading and comparing final answers, strictly: what is not exactly one answer is none.

A lenient reader is a reward to be hacked: a policy soon finds out that listing ten numbers, or repeating the question,
pays. So several different answers are no answer, and an answer is compared whole, never searched for the right one.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from fractions import Fraction
from itertools import zip_longest
from typing import Literal, TypeAlias, get_args

AnswerFormat: TypeAlias = Literal["line", "tag", "boxed"]
"""How a final answer is marked: `Answer: 42`, `<answer>42</answer>` or `\\boxed{42}`."""
ANSWER_FORMATS: tuple[AnswerFormat, ...] = get_args(AnswerFormat)

_LINE = re.compile(r"^[ \t]*answer:", flags=re.IGNORECASE | re.MULTILINE)
_OPEN_TAG, _CLOSE_TAG = "<answer>", "</answer>"
_BOX = "\\boxed{"
_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][+-]?\d{1,3})?", flags=re.ASCII)
_MAX_NUMBER_CHARS = 2000
_ARTICLES = frozenset({"a", "an", "the", "and"})
_INSTRUCTIONS: dict[AnswerFormat, str] = {
    "line": 'End with "Answer:" and the result.',
    "tag": "Put the result in <answer></answer>.",
    "boxed": "Put the result in \\boxed{}.",
}


def answer_instruction(answer_format: AnswerFormat) -> str:
    """Return one short sentence that tells a model how to mark its final answer."""
    return _INSTRUCTIONS[answer_format]


def write_answer(answer: str, answer_format: AnswerFormat) -> str:
    """Return the text that states an answer; `extract_answer` reads it back."""
    if answer_format == "line":
        return f"Answer: {answer}"
    return f"{_OPEN_TAG}{answer}{_CLOSE_TAG}" if answer_format == "tag" else f"{_BOX}{answer}}}"


def extract_answer(text: str, answer_format: AnswerFormat) -> str | None:
    """Return the one final answer of a text, outer whitespace removed, or `None`.

    `None` means: no marker, an empty answer, an unclosed or nested marker, or several different answers. A marker that
    is repeated with the same answer counts once. For `line`, everything after the last marker is the answer, so that
    grids of several lines can be answered and chatter after the answer makes it wrong.
    """
    found = {"line": _after_lines, "tag": _inside_tags, "boxed": _inside_boxes}[answer_format](text)
    distinct = {_squeeze(candidate) for candidate in found}
    if len(distinct) != 1:
        return None
    return found[-1].strip() or None


def exact_match(answer: str | None, gold: str) -> bool:
    """Whether an answer is the gold answer, apart from case and the amount of whitespace."""
    return answer is not None and bool(answer.strip()) and _squeeze(answer).casefold() == _squeeze(gold).casefold()


def word_f1(answer: str, gold: str) -> float:
    """Return the harmonic mean of precision and recall of an answer's words, as a multiset; case and articles aside."""
    given, wanted = Counter(plain_words(answer)), Counter(plain_words(gold))
    shared = sum((given & wanted).values())
    return 2 * shared / (given.total() + wanted.total()) if shared else 0.0


def plain_words(text: str) -> list[str]:
    """Return a text's words in lower case, without punctuation and articles."""
    plain = text.lower().replace(",", " ").translate(str.maketrans("", "", string.punctuation))
    return [word for word in plain.split() if word not in _ARTICLES]


def parse_number(text: str) -> Fraction | None:
    """Return the exact value of a text that is one number (`-1,234.50`, `3/4`, `2e3`) and nothing else, or `None`."""
    numerator, slash, denominator = text.strip().partition("/")
    top = _parse_decimal(numerator.strip())
    if not slash or top is None:
        return top
    bottom = _parse_decimal(denominator.strip())
    return top / bottom if bottom else None


def numeric_match(answer: str | None, gold: str, *, tolerance: float = 0.0) -> bool:
    """Whether an answer is one number within `tolerance` (absolute) of the gold number.

    Raises:
        ValueError: The gold answer is no number; that is a fault of the data, never a wrong answer.
    """
    expected = parse_number(gold)
    if expected is None:
        raise ValueError(f"the gold answer {gold!r} is not a number")
    given = None if answer is None else parse_number(answer)
    return given is not None and abs(given - expected) <= Fraction(tolerance)


def _parse_decimal(text: str) -> Fraction | None:
    mantissa = text.lower().partition("e")[0]
    # Longer numbers than any answer: Python refuses to read those of more than 4,300 digits.
    if len(text) > _MAX_NUMBER_CHARS or not any(map(str.isdigit, mantissa)) or not _NUMBER.fullmatch(text):
        return None
    return Fraction(text.replace(",", ""))


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def _after_lines(text: str) -> list[str]:
    markers = list(_LINE.finditer(text))
    ends = [match.start() for match in markers[1:]]
    return [text[match.end() : end] for match, end in zip_longest(markers, ends)]


def _inside_tags(text: str) -> list[str]:
    found = []
    for piece in text.split(_OPEN_TAG)[1:]:
        answer, closing, _ = piece.partition(_CLOSE_TAG)
        if not closing:
            return []
        found.append(answer)
    return found


def _inside_boxes(text: str) -> list[str]:
    found = []
    for piece in text.split(_BOX)[1:]:
        depth = 1
        for position, character in enumerate(piece):
            depth += (character == "{") - (character == "}")
            if depth == 0:
                found.append(piece[:position])
                break
        else:
            return []
    return found
