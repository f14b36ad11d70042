"""Packages that only one environment needs: a missing one is one line that says what to install."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping


def check_requirements(cls: type) -> None:
    """Check that the packages are there that a class names in its attribute `requires` (module: how to install it).

    A class may have a static method `check_machine` for what is no Python package.

    Raises:
        ValueError: One is missing; names `env.class_path` and what to type.
    """
    check_installed(f"env.class_path: {cls.__name__}", getattr(cls, "requires", {}))
    check_machine = getattr(cls, "check_machine", None)
    if check_machine is not None:
        check_machine()


def check_installed(who: str, requires: Mapping[str, str]) -> None:
    """Check that packages are there, without importing them, so that it costs nothing in the trainer's process.

    Args:
        who: The configuration key and what needs the packages; begins the error.
        requires: How to install each module's package.

    Raises:
        ValueError: One is missing.
    """
    for module, how in requires.items():
        if importlib.util.find_spec(module) is None:
            raise ValueError(f"{who} needs the package {module!r}; install it with: {how}")
