"""A calculator for models: exact, bounded, and never `eval`."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import TypeAlias

Number: TypeAlias = Fraction | float

MAX_CHARS = 400
MAX_DEPTH = 40
MAX_BITS = 4096
"""Largest numerator or denominator, about 1,230 decimal digits: `9**9**9` is refused before it is computed."""

_EXACT_DIGITS = 40
_TOKEN = re.compile(
    r"(?P<grouped>\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d*)?)|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<operator>\*\*|//|[-+*/%^(),×÷·−])|(?P<space>\s+)",  # noqa: RUF001
    flags=re.ASCII,
)
_ALIASES = {"^": "**", "×": "*", "·": "*", "÷": "/", "−": "-"}  # noqa: RUF001
_LITERAL = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", flags=re.ASCII)


def calculator(expression: str) -> str:
    """Compute an arithmetic expression exactly.

    Decimals are fractions inside, so `0.1+0.2` is 0.3. Besides Python's operators it reads `^` as power, the signs
    × ÷ · −, thousands commas (`1,234`; not inside a call, where commas separate arguments) and a trailing `=`. Results
    are exact where they have at most 40 digits as a decimal (integers always), else given to 12 significant digits.
    `round` rounds halves away from zero.

    Args:
        expression: For example 12*(3+4). Operators + - * / // % **; functions abs, round, floor, ceil, sqrt, min, max,
            gcd, lcm, factorial.

    Raises:
        ValueError: The expression cannot be read, has no real value, or is too large.
    """  # noqa: RUF002
    if len(expression) > MAX_CHARS:
        raise ValueError(f"the expression has {len(expression)} characters; at most {MAX_CHARS} are allowed")
    source = _normalize(expression)
    try:
        tree = ast.parse(source, mode="eval")
        return _format(_evaluate(tree.body, source, 0))
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{expression.strip()!r} is not an arithmetic expression") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("the result is too large") from None


def _normalize(expression: str) -> str:
    """Rewrite what people write to what Python reads."""
    text = expression.strip().rstrip("=? \t\n")
    if not text:
        raise ValueError("the expression is empty")
    pieces: list[str] = []
    calls: list[bool] = []  # for each open parenthesis, whether it is a function call's
    position, after_name = 0, False
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"unexpected {text[position]!r} in the expression")
        token, kind = match.group(), match.lastgroup
        if kind == "grouped" and any(calls):  # inside a call, `max(1,234)` has two arguments
            token, kind = re.match(r"\d+", token).group(), "number"  # type: ignore[union-attr]
        position += len(token)
        if token == "(":
            calls.append(after_name)
        elif token == ")" and calls:
            calls.pop()
        if kind in ("grouped", "number"):
            # Python refuses leading zeros
            token = re.sub(r"^0+(?=\d)", "", token.replace(",", ""))
        pieces.append(" " if kind == "space" else _ALIASES.get(token, token))
        after_name = kind == "name" or (after_name and kind == "space")
    return "".join(pieces).strip()


def _evaluate(node: ast.expr, source: str, depth: int) -> Number:
    if depth > MAX_DEPTH:
        raise ValueError(f"the expression is nested more than {MAX_DEPTH} deep")
    match node:
        case ast.Constant():
            return _bounded(_literal(ast.get_source_segment(source, node) or ""))
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign):
            operand = _evaluate(node.operand, source, depth + 1)
            return -operand if isinstance(sign, ast.USub) else operand
        case ast.BinOp() if type(node.op) in _OPERATORS:
            left = _evaluate(node.left, source, depth + 1)
            right = _evaluate(node.right, source, depth + 1)
            return _bounded(_OPERATORS[type(node.op)](left, right))
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return _bounded(_call(name, [_evaluate(argument, source, depth + 1) for argument in node.args]))
        case ast.Name(id=name):
            raise ValueError(f"unknown name {name!r}; only numbers and functions are allowed")
    raise ValueError("only numbers, + - * / // % **, parentheses and function calls are allowed")


def _literal(text: str) -> Fraction:
    if not _LITERAL.fullmatch(text):
        raise ValueError(f"{text!r} is not a number")
    return Fraction(text)


def _bounded(value: Number) -> Number:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OverflowError
    elif max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ValueError("the result is too large")
    return value


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        if isinstance(base, Fraction):
            bits = max(base.numerator.bit_length(), base.denominator.bit_length()) - 1
            if (abs(exponent) > 2 * MAX_BITS and abs(base) != 1 and base != 0) or bits * abs(exponent) > MAX_BITS:
                raise ValueError("the result is too large")
        return base ** int(exponent)
    if base < 0:
        raise ValueError("a negative number to a fractional power is not real")
    return _root(base) if exponent == Fraction(1, 2) else float(base) ** float(exponent)


def _root(value: Number) -> Number:
    if value < 0:
        raise ValueError("the square root of a negative number is not real")
    if isinstance(value, float):
        return math.sqrt(value)
    top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
    exact = top * top == value.numerator and bottom * bottom == value.denominator
    return Fraction(top, bottom) if exact else math.sqrt(value)


def _round(value: Number, digits: Number = Fraction(0)) -> Number:
    places = _integer("round", digits)
    if abs(places) > _EXACT_DIGITS:
        raise ValueError(f"round takes at most {_EXACT_DIGITS} places")
    scale = Fraction(10) ** places
    rounded = Fraction(math.floor(abs(Fraction(value)) * scale + Fraction(1, 2)), 1) / scale
    return -rounded if value < 0 else rounded


def _factorial(value: Number) -> Number:
    count = _integer("factorial", value)
    if not 0 <= count <= MAX_BITS // 8:  # log2(512!) is 3,875 bits
        raise ValueError(f"factorial takes integers from 0 to {MAX_BITS // 8}")
    return Fraction(math.factorial(count))


def _integer(name: str, value: Number) -> int:
    if isinstance(value, float) or value.denominator != 1:
        raise ValueError(f"{name} takes integers, got {_format(value)}")
    return value.numerator


def _gcd(*values: Number) -> Number:
    return Fraction(math.gcd(*(_integer("gcd", value) for value in values)))


def _lcm(*values: Number) -> Number:
    result = 1
    for value in values:  # bounded at each step: the common multiple of many numbers explodes
        result = math.lcm(result, _integer("lcm", value))
        _bounded(Fraction(result))
    return Fraction(result)


def _call(name: str, arguments: list[Number]) -> Number:
    if name not in _FUNCTIONS:
        raise ValueError(f"unknown function {name!r}; known are {', '.join(sorted(_FUNCTIONS))}")
    function, least, most = _FUNCTIONS[name]
    if not least <= len(arguments) <= most:
        accepted = str(least) if least == most else f"{least} or more" if most > 2 else f"{least} or {most}"
        raise ValueError(f"{name} takes {accepted} arguments, got {len(arguments)}")
    return function(*arguments)


def _format(value: Number) -> str:
    if isinstance(value, float):
        return f"{value:.12g}"
    if value.denominator == 1:
        return str(value.numerator)
    twos = (value.denominator & -value.denominator).bit_length() - 1
    fives, rest = 0, value.denominator >> twos
    while rest % 5 == 0:
        fives, rest = fives + 1, rest // 5
    places = max(twos, fives)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    if rest == 1 and len(digits) <= _EXACT_DIGITS:
        return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    return f"{float(value):.12g}"


_OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, tuple[Callable[..., Number], int, int]] = {
    "abs": (abs, 1, 1),
    "round": (_round, 1, 2),
    "floor": (lambda value: Fraction(math.floor(value)), 1, 1),
    "ceil": (lambda value: Fraction(math.ceil(value)), 1, 1),
    "sqrt": (_root, 1, 1),
    "min": (min, 1, MAX_CHARS),
    "max": (max, 1, MAX_CHARS),
    "gcd": (_gcd, 1, MAX_CHARS),
    "lcm": (_lcm, 1, MAX_CHARS),
    "factorial": (_factorial, 1, 1),
}
