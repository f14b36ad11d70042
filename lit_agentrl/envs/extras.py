"""Packages that only one environment needs: a missing one is one line that says what to install."""

from __future__ import annotations

import importlib.util
from typing import Any


def check_requirements(cls: type[Any]) -> None:
    """Check that the packages are there that a class names in its attribute `requires` (module: how to install it).

    Nothing is imported, so this costs nothing in the trainer's process.

    Raises:
        ValueError: One is missing; names `env.class_path` and what to type.
    """
    for module, how in getattr(cls, "requires", {}).items():
        if importlib.util.find_spec(module) is None:
            raise ValueError(f"env.class_path: {cls.__name__} needs the package {module!r}; install it with: {how}")
