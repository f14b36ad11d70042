"""Checks of an environment's arguments: one error that names the configuration key and what is accepted."""

from __future__ import annotations

from collections.abc import Iterable


def check_some(
    key: str, given: Iterable[str], accepted: Iterable[str], *, or_none: bool = False, each_once: bool = False
) -> None:
    """Check that names are some of those that are accepted.

    Args:
        key: The argument.
        given: The names.
        accepted: All names that there are.
        or_none: Whether there may be none.
        each_once: Whether none may be named twice.

    Raises:
        ValueError: There is none, one that is not accepted, or one twice.
    """
    names, known = list(given), list(accepted)
    if set(names) - set(known) or not (names or or_none) or (each_once and len(set(names)) < len(names)):
        once = ", each once" if each_once else ""
        raise ValueError(f"env.init_args.{key} must be some of {', '.join(known)}{once}, got {names}")


def check_at_least(least: float, **given: float | None) -> None:
    """Check numbers by the name of their argument; `None` is passed over.

    Raises:
        ValueError: One is smaller.
    """
    for key, value in given.items():
        if value is not None and not value >= least:
            raise ValueError(f"env.init_args.{key} must be at least {least}, got {value}")
