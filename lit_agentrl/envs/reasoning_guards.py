r"""Answers that the graders of reasoning-gym must not see: they would be paid for nothing, run as code, or never end.

Found by giving every grader a list of malformed, hedged and hostile answers:

1. Some accept any text around the right answer, so that listing all candidates would pay.
2. Some pass the answer to `eval` or to sympy's parser, which evaluates: code of the model's choice, or `9**9**9`.
3. That of `complex_arithmetic` accepts `nan`.

An answer that is stopped here is a wrong answer.
"""

from __future__ import annotations

import re

from lit_agentrl.rewards.answers import parse_number

_MAX_EVALUATED_CHARS = 1000
_SYMPY_NAMES = frozenset({"sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "sqrt"})
_FORMULA = frozenset({"intermediate_integration", "polynomial_multiplication", "simple_integration"})
_EVALUATED: dict[str, re.Pattern[str]] = {
    "binary_matrix": re.compile(r"[\d\s,\[\]]*", re.ASCII),
    "complex_arithmetic": re.compile(r"[\d\s()+.ijeE*-]*", re.ASCII),
    "countdown": re.compile(r"(?!.*\*\s*\*)[\d\s()+*/=-]*", re.ASCII | re.DOTALL),
    "n_queens": re.compile(r"[\s,'\"\[\]_Q]*", re.ASCII),
    "puzzle24": re.compile(r"(?!.*\*\s*\*)[\d\s()+*/=-]*", re.ASCII | re.DOTALL),
    "spiral_matrix": re.compile(r"[\d\s,\[\]-]*", re.ASCII),
    "string_insertion": re.compile(r"[\w\s,'\"\[\]]*", re.ASCII),
} | {family: re.compile(r"[\w\s()+*/^.-]*", re.ASCII) for family in _FORMULA}
"""All that an answer of these families may consist of: nothing that calls, looks up attributes or explodes."""

_POWER = r"(?:\*\s*\*|\^)"
_DANGEROUS_FORMULA = re.compile(
    rf"{_POWER}(?!\s*\(?\s*-?\s*(?:\d{{1,3}}|[A-Za-z])(?!\w))"  # an exponent that is neither small nor a letter
    rf"|{_POWER}[^+*/-]*{_POWER}"  # a tower
    r"|exp\W*[^+]*exp|\d[eE]\d|\.\s*[A-Za-z_]"  # nested exponentials, huge literals, attributes
)
_EDGES = " .$"


def is_gradable(answer: str, *, family: str, question: str, gold: str | None) -> bool:
    """Whether an answer may be given to the grader of its family."""
    return _is_safe(answer, family) and not _is_hedge(" ".join(answer.split()), " ".join(question.split()), gold)


def _is_safe(answer: str, family: str) -> bool:
    pattern = _EVALUATED.get(family)
    if pattern is None:
        return True
    if len(answer) > _MAX_EVALUATED_CHARS or not pattern.fullmatch(answer):
        return False
    if family not in _FORMULA:
        return True
    names = re.findall(r"[A-Za-z_]+", answer)
    return not _DANGEROUS_FORMULA.search(answer) and all(len(name) == 1 or name in _SYMPY_NAMES for name in names)


def _is_hedge(answer: str, question: str, gold: str | None) -> bool:
    """Whether an answer repeats the question, lists numbers where one is due, or hides the gold answer among others."""
    if question in answer:
        return True
    if gold is None:
        return False
    if parse_number(gold) is not None:
        if parse_number(answer) is not None:
            return False
        if sum(parse_number(word.strip(",.;:()[]")) is not None for word in answer.split()) > 1:
            return True
    gold = " ".join(gold.split()).strip(_EDGES).casefold()
    given = answer.strip(_EDGES).casefold()
    if not gold or given == gold:
        return False
    around = re.split(rf"(?<!\w){re.escape(gold)}(?!\w)", given, maxsplit=1)
    return len(around) > 1 and any(character.isalnum() for character in "".join(around))
