"""What gymnasium's well-known environments are in words: action names, observations, and when they are solved."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_TAXI_PLACES = ("red", "green", "yellow", "blue", "in the taxi")
_SEPARATORS = re.compile(r"[\s_-]+")
_MAX_DIGITS = 9
_WORD = re.compile(r"\w+")
_AROUND = " \t\n\"'`*.,:;!?()[]"


@dataclass(frozen=True, kw_only=True, slots=True)
class GameText:
    """One environment in words."""

    rules: Callable[[Any], str]
    """Said once, when an episode opens; a function of the unwrapped environment."""
    actions: tuple[str, ...]
    state: Callable[[Any, Any], str]
    """Text of (unwrapped environment, observation)."""
    solved: Callable[[float, float, bool], bool] | None
    """Whether (last reward, return, terminated) is success; `None`: only `success_return` can tell."""


def _ended_well(reward: float, total: float, terminated: bool) -> bool:
    return terminated and reward > 0


def _reached_the_end(reward: float, total: float, terminated: bool) -> bool:
    return terminated


def _frozen_lake(env: Any, observation: Any) -> str:
    row, column = divmod(int(observation), env.ncol)
    return f"row {row} column {column}"


def _cliff(env: Any, observation: Any) -> str:
    row, column = divmod(int(observation), int(env.shape[1]))
    return f"row {row} column {column}"


def _taxi(env: Any, observation: Any) -> str:
    row, column, passenger, destination = env.decode(int(observation))
    return (
        f"taxi at row {row} column {column}; passenger {_TAXI_PLACES[passenger]}; "
        f"destination {_TAXI_PLACES[destination]}"
    )


def _blackjack(env: Any, observation: Any) -> str:
    hand, dealer, ace = (int(value) for value in observation)
    return f"your hand {hand}; dealer shows {dealer}; {'a' if ace else 'no'} usable ace"


def _cart_pole(env: Any, observation: Any) -> str:
    names = ("cart position", "cart velocity", "pole angle", "pole angular velocity")
    return "; ".join(f"{name} {float(value):+.3f}" for name, value in zip(names, observation, strict=True))


def _any_state(env: Any, observation: Any) -> str:
    return "state " + " ".join(f"{number:.4g}" for number in _numbers(observation))


def _numbers(value: Any) -> Iterator[float]:
    """Yield the numbers of an observation: nested tuples, arrays, or one number."""
    if isinstance(value, tuple):
        for part in value:
            yield from _numbers(part)
    else:
        yield from (float(number) for number in getattr(value, "flat", (value,)))


_GAMES = {
    "FrozenLake": GameText(
        rules=lambda env: (
            "Cross a frozen lake from S to G without falling into a hole H. Rows are counted downwards, columns to the "
            "right, from 0. The map:\n" + "\n".join("".join(cell.decode() for cell in row) for row in env.desc)
        ),
        actions=("left", "down", "right", "up"),
        state=_frozen_lake,
        solved=_ended_well,
    ),
    "CliffWalking": GameText(
        rules=lambda env: (
            "Walk from row 3 column 0 to row 3 column 11; the cells between them are a cliff, and whoever steps there "
            "starts again. Each step costs 1, the cliff 100. Rows are counted downwards."
        ),
        actions=("up", "right", "down", "left"),
        state=_cliff,
        solved=_reached_the_end,
    ),
    "Taxi": GameText(
        rules=lambda env: (
            "Drive a taxi on a grid of 5 x 5: pick the passenger up and drop him off at the destination. Red is at row "
            "0 column 0, green at row 0 column 4, yellow at row 4 column 0, blue at row 4 column 3."
        ),
        actions=("south", "north", "east", "west", "pick up", "drop off"),
        state=_taxi,
        solved=_ended_well,
    ),
    "Blackjack": GameText(
        rules=lambda env: "Blackjack against a dealer: come closer to 21 than he does, but not above it.",
        actions=("stick", "hit"),
        state=_blackjack,
        solved=_ended_well,
    ),
    "CartPole": GameText(
        rules=lambda env: "Keep a pole upright on a cart by pushing the cart to the left or to the right.",
        actions=("left", "right"),
        state=_cart_pole,
        solved=lambda reward, total, terminated: total >= 195,
    ),
}


def game_text(env_id: str, num_actions: int, actions: Sequence[str] | None) -> GameText:
    """Return an environment in words; one that is not known gets the numbers of its actions as their names.

    Raises:
        ValueError: The names are not as many as the actions, or two of them read the same.
    """
    known = _GAMES.get(env_id.rpartition("/")[2].partition("-v")[0])
    given = tuple(actions) if actions else known.actions if known else tuple(str(n) for n in range(num_actions))
    if len(given) != num_actions or len({normal(name) for name in given}) != num_actions or not all(map(normal, given)):
        raise ValueError(
            f"env.init_args.actions is {list(given)}: {env_id} has {num_actions} actions, which need a name each, all "
            "of them different"
        )
    if known is None:
        return GameText(rules=lambda env: f"The environment is {env_id}.", actions=given, state=_any_state, solved=None)
    return GameText(rules=known.rules, actions=given, state=known.state, solved=known.solved)


def normal(text: str) -> str:
    """Return a reply in the form in which names are compared: lower case, `_`, `-` and white space as one space."""
    return _SEPARATORS.sub(" ", text.strip(_AROUND).lower()).strip()


def read_action(reply: str, names: Sequence[str]) -> int | None:
    """Return the number of the action that a reply means, or `None`.

    Case does not matter, nor do punctuation around the reply or what separates the words of a name (`pick_up`). A reply
    means an action if it is its name, or its number, counted from 0, or, failing that, if of all names exactly one
    occurs in it, as whole words: `I go left.`, but not `left or right`.
    """
    said = normal(reply)
    normals = [normal(name) for name in names]
    if said in normals:
        return normals.index(said)
    number = reply.strip(_AROUND)
    if number.isascii() and number.isdigit():
        return int(number) if len(number) <= _MAX_DIGITS and int(number) < len(names) else None
    words = _words(said)
    found = [number for number, name in enumerate(normals) if (wanted := _words(name)).strip() and wanted in words]
    return found[0] if len(found) == 1 else None


def _words(text: str) -> str:
    """Return the words of a text, each between single spaces, so that whole words can be looked for."""
    return f" {' '.join(_WORD.findall(text))} "
