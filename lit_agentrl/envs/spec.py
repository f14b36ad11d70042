"""An environment as configuration: a class path and arguments, checked before anything is built."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lit_agentrl.envs.extras import check_requirements
from lit_agentrl.protocols import Environment

_METHODS = ("sample_task", "reset", "step", "close")
_HOME = "lit_agentrl.envs"


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvSpec:
    """Which environment to build, in plain values, so that it crosses process borders and checkpoints."""

    class_path: str
    """Import path of the class; a bare name such as `ReasoningGym` is looked for in `lit_agentrl.envs`."""
    init_args: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> Environment:
        """Import and instantiate the environment.

        Raises:
            ValueError: As `check`, or what the class itself raises about values that do not fit.
        """
        environment: Environment = self.resolve()(**self._arguments())
        return environment

    def check(self) -> None:
        """Check everything that can be checked without building the environment.

        Raises:
            ValueError: The class cannot be imported, is no environment or needs a package that is not installed (names
                `env.class_path`), or an argument is missing, unknown or of a wrong type (names
                `env.init_args.<argument>`).
        """
        self._arguments()

    def _arguments(self) -> dict[str, Any]:
        """Return the checked arguments, converted to the types of the signature (a list to a tuple, for example)."""
        from pydantic import ValidationError  # slow to import, and whoever only carries a spec around does without

        from lit_agentrl.agents.tools.signature import arguments_model, problems, validated

        cls = self.resolve()
        check_requirements(cls)
        lacking = [name for name in _METHODS if not callable(getattr(cls, name, None))]
        if lacking:
            raise ValueError(
                f"env.class_path: {self.class_path!r} is no environment, it lacks {', '.join(lacking)}; "
                "see lit_agentrl.protocols.Environment"
            )
        model = arguments_model(cls)
        try:
            return validated(model, self.init_args)
        except ValidationError as error:
            wrong = [f"env.init_args.{argument} {text}" for argument, text in problems(model, error)]
            raise ValueError(f"{self.class_path}: {'; '.join(wrong)}") from None

    def resolve(self) -> type[Any]:
        """Import the class.

        Raises:
            ValueError: It cannot be imported; names `env.class_path` and the closest environments there are.
        """
        module_name, _, name = self.class_path.rpartition(".")
        if not module_name:
            known = _shipped()
            if name in known:
                return known[name]
            raise self._unknown()
        try:
            found = getattr(importlib.import_module(module_name), name, None)
        except ModuleNotFoundError as error:
            # A module on the path is missing: a wrong path. Any other one: a missing dependency of the environment.
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise ValueError(f"env.class_path: {self.class_path!r} cannot be imported: {error}") from error
            found = None
        if not inspect.isclass(found):
            raise self._unknown()
        return found

    def _unknown(self) -> ValueError:
        name = self.class_path.rpartition(".")[2]
        known = {cls.__name__: f"{cls.__module__}.{cls.__name__}" for cls in _shipped().values()}
        close = [known[match] for match in difflib.get_close_matches(name, known, n=3, cutoff=0.4)] or list(
            known.values()
        )
        return ValueError(f"env.class_path: there is no class {self.class_path!r}; closest: {', '.join(close)}")


def _shipped() -> dict[str, type[Any]]:
    """Return the environments of `lit_agentrl.envs` by name."""
    package = importlib.import_module(_HOME)
    found = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{_HOME}.{info.name}")
        for name, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ == module.__name__ and all(callable(getattr(cls, method, None)) for method in _METHODS):
                found[name] = cls
    return found
