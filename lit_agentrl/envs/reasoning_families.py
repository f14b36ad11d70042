"""What has to be known about the families of reasoning-gym. Imports it only inside functions: that takes seconds."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any

_KEY = "env.init_args.families"

DEFAULT_FAMILIES: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 4},
    "products": {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 3},
    "basic_arithmetic": {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 3},
}
"""Arithmetic that a small model cannot do in its head and a calculator does at once; under 120 characters a prompt."""

EXCLUDED: dict[str, str] = {
    "game_of_life_halting": "its grader gives full marks to any text",
    "coin_flip": "its grader takes 0 for any small probability",
    "composite": "it mixes other families; list those instead",
}
WITHOUT_GOLD = frozenset({"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"})
"""Graded by checking, without an answer text: good for reinforcement learning, no use as demonstrations."""

SLOW = frozenset({"futoshiki", "intermediate_integration", "knight_swap", "puzzle24", "sudoku", "zebra_puzzles"})
"""More than 30 ms an item; a validation task takes ten items on average."""

MALFORMED_ANSWER_ERRORS: dict[str, tuple[type[Exception], ...]] = {
    "boxnet": (AttributeError, TypeError),
    "game_of_life": (KeyError,),
    "prime_factorization": (ValueError,),
}
"""What a grader is known to raise on answers that it cannot read. Anything else that it raises is its own fault."""

_INDEXED = frozenset({"acre", "gsm_symbolic", "list_functions", "word_ladder"})
_INDEXED_POPULATION = 3_000  # these make a table of all items first
_POPULATION = 3 * 2**28


def population(family: str) -> int:
    """Return how many items of a family are numbered; they may repeat each other."""
    return _INDEXED_POPULATION if family in _INDEXED else _POPULATION


def check_families(families: Mapping[str, Mapping[str, Any]]) -> None:
    """Check names and options of families.

    Raises:
        ValueError: A family is unknown or excluded, or an option is unknown or refused by the family; names
            `env.init_args.families`.
    """
    from reasoning_gym.factory import DATASETS

    if not families:
        raise ValueError(f"{_KEY}: name at least one family, or leave it out for the default mix")
    usable = sorted(set(DATASETS) - set(EXCLUDED))
    for family, options in families.items():
        if family in EXCLUDED:
            raise ValueError(f"{_KEY}: {family!r} is excluded: {EXCLUDED[family]}")
        if family not in DATASETS:
            close = difflib.get_close_matches(family, usable, n=3) or usable
            raise ValueError(f"{_KEY}: unknown family {family!r}; closest: {', '.join(close)}")
        accepted = sorted({field.name for field in dataclasses.fields(DATASETS[family][1])} - {"seed", "size"})
        for option in options:
            if option not in accepted:
                raise ValueError(f"{_KEY}.{family}.{option}: no such option; accepted: {', '.join(accepted)}")
        try:
            config = DATASETS[family][1](**options)
            if hasattr(config, "validate"):
                config.validate()
        except (AssertionError, TypeError, ValueError) as error:
            raise ValueError(f"{_KEY}.{family}: the options {dict(options)} are refused: {error}") from error


def make_dataset(family: str, options: Mapping[str, Any]) -> Any:
    """Return the reasoning-gym data set of a family; its item i depends on the options and i alone."""
    from reasoning_gym.factory import create_dataset

    return create_dataset(family, **options, seed=0, size=population(family))


def calculator_expression(family: str, entry: Mapping[str, Any]) -> str | None:
    """Return what to type into a calculator to solve an item, or `None` for families that need more than that."""
    solver = _EXPRESSIONS.get(family)
    return solver(entry) if solver else None


def _stated(entry: Mapping[str, Any]) -> str:
    return str(entry["metadata"]["expression"])


def _last_line(entry: Mapping[str, Any]) -> str:
    return str(entry["question"]).splitlines()[-1].removesuffix("= ?").strip()


def _call_on_numbers(function: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda entry: f"{function}({', '.join(str(number) for number in entry['metadata']['numbers'])})"


_EXPRESSIONS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "basic_arithmetic": _stated,
    "chain_sum": _stated,
    "decimal_arithmetic": _last_line,
    "decimal_chain_sum": _stated,
    "gcd": _call_on_numbers("gcd"),
    "lcm": _call_on_numbers("lcm"),
    "products": _stated,
}
