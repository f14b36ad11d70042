"""Says in one line what is wrong with a configuration, which key it is, and what is accepted."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator

_HOMES = {
    "model": ("lit_agentrl.algorithms", "lit_agentrl.algorithms.base", "Learner"),
    "policy": ("lit_agentrl.policies", "lit_agentrl.policies.base", "Policy"),
    "agent": ("lit_agentrl.agents", "lit_agentrl.agents.base", "Agent"),
    "data": ("datamodules", "lightning", "LightningDataModule"),
}
# A configuration key that an error message speaks of; such errors are the user's to mend.
_KEY = re.compile(
    r"\b(?:model|data|policy|env|agent)\.(?:class_path|init_args)\b"
    r"|^(?:trainer|checkpoint|trajectories|progress|warm_start)\.\w+"
    r"|^(?:model|data|policy|env|agent|run_dir|ckpt_path|loggers|warm_start|the checkpoint)\b"
)
_NOISE = ("Does not validate against", "Subtypes:", "Errors:", "Given value type:")
_IMPORT_ERRORS = ("Expected a dot import path", "module '", "No module named", "Not a valid subclass", "Import path")
_LINKED = {"policy", "agent", "env"}  # filled in from the keys of the same names


def names_a_key(message: str) -> bool:
    """Say whether an error message names a configuration key."""
    return _KEY.search(message) is not None


def readable_error(message: str) -> str:
    """Return jsonargparse's report, or the traceback of a worker, as one line that begins with the key.

    Messages that are one line already come back as they are, without the command's name before keys.
    """
    text = re.sub(r"\b(?:fit|validate|test|predict)\.(?=[a-z_]+)", "", message.strip())
    if "Traceback (most recent call last)" in text:
        return _cause_of_traceback(text)
    if text.startswith("the following arguments are required:"):
        keys = text.partition(":")[2].strip()
        return (
            f"{keys}: required; name an experiment file that has them with --config FILE "
            "(`python -m lit_agentrl init DIR` copies some to start from)"
        )
    if text.startswith("unrecognized arguments:"):
        key = text.partition(":")[2].split()[0].lstrip("-").partition("=")[0]
        return _no_such_key(key)
    if found := re.match(r"Subcommand '\w+' does not accept option '(.+?)'", text):
        return _no_such_key(found[1])
    if "\n" not in text and not text.startswith("Parser key"):
        return text
    return _Report(text).line()


def _no_such_key(key: str) -> str:
    return f"{key}: there is no such key; `python -m lit_agentrl fit --help` lists all"


def _cause_of_traceback(text: str) -> str:
    last = text.strip().splitlines()[-1]
    kind, _, cause = last.partition(": ")
    if kind == "ValueError" and names_a_key(cause):
        return cause
    return f"{text.partition('Traceback')[0].strip().rstrip(':')}: {last}"


class _Report:
    """What jsonargparse says over many indented lines, taken apart."""

    def __init__(self, text: str) -> None:
        self.key: list[str] = []
        self.class_path: str | None = None
        self.leaves: list[str] = []
        self.given: str | None = None
        self.optional = False
        for line in text.splitlines():
            self._read(line.strip().removeprefix("- "))

    def _read(self, line: str) -> None:
        if not line or line.startswith(_NOISE):
            return
        if found := re.match(r'Parser key "(.+?)":\s*(.*)', line):
            prefix = "init_args." if self.class_path is not None else ""
            self.key.append(prefix + found[1])
            self._read(found[2])
        elif found := re.match(r"Problem with given class_path '(.+?)':\s*(.*)", line):
            self.class_path = found[1]
            self._read(found[2])
        elif found := re.match(r"Given value: (?:NestedArg\(key='.*?', val='(.*)'\)|(.*))", line):
            self.given = self.given or found[1] or found[2]
        elif line == "Expected a <class 'NoneType'>":
            self.optional = True
        elif found := re.match(r"(Expected an? .+?)\.? Got value: (.*)", line):
            self.leaves.append(found[1])
            self.given = found[2]
        else:
            self.leaves.append(line)

    def line(self) -> str:
        key = ".".join(self.key)
        for leaf in self.leaves:
            if names_a_key(leaf):  # raised by the class itself, which knows best
                return leaf
            if found := re.search(r"(?:Option|Key) '(.+?)' is not (?:accepted|expected)", leaf):
                return self._unknown_option(key, found[1])
            if found := re.match(r"unrecognized arguments: --([\w.]+)", leaf):
                return _no_such_key(f"{key}.init_args.{found[1]}")
            if leaf.startswith(_IMPORT_ERRORS) and key in {*_HOMES, "env"}:
                return _unknown_class(key, self.class_path or self.given or "")
        expected = [_type_name(leaf.partition(" a ")[2]) for leaf in self.leaves if leaf.startswith("Expected a ")]
        others = [leaf for leaf in self.leaves if not leaf.startswith("Expected a ")]
        if expected and not others:
            accepted = list(dict.fromkeys(expected)) + (["null"] if self.optional and self.class_path is None else [])
            return f"{key}: expected {' or '.join(accepted)}, got {self.given}"
        return f"{key}: {'; '.join(others)}" if key else "; ".join(others)

    def _unknown_option(self, key: str, option: str) -> str:
        if self.class_path is None:
            return f"{key}.{option}: there is no such key" if key else f"{option}: there is no such key"
        accepted = list(_init_names(self.class_path))
        close = difflib.get_close_matches(option, accepted, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        return (
            f"{key}.init_args.{option}: {self.class_path} has no such argument{hint}; "
            f"accepted are {', '.join(accepted) or 'none'}"
        )


def _type_name(name: str) -> str:
    if found := re.match(r"typing\.Literal\[(.*)\]", name):
        return f"one of {found[1]}"
    return re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", name)


def _unknown_class(key: str, class_path: str) -> str:
    if key == "env":
        from lit_agentrl.envs.spec import EnvSpec

        try:
            EnvSpec(class_path=class_path).check()
        except ValueError as error:
            return str(error)
    known = sorted(_shipped(key)) if key in _HOMES else []
    name = class_path.rpartition(".")[2]
    names = {path.rpartition(".")[2]: path for path in known}
    close = [names[match] for match in difflib.get_close_matches(name, names, n=3, cutoff=0.5)] or known
    return f"{key}.class_path: there is no class {class_path!r}; closest: {', '.join(close)}"


def _shipped(key: str) -> Iterator[str]:
    """Yield the import paths of the classes that this package offers for a key."""
    home, base_module, base_name = _HOMES[key]
    base = getattr(importlib.import_module(base_module), base_name)
    package = importlib.import_module(home)
    for info in pkgutil.iter_modules(package.__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{home}.{info.name}")
        for name, member in inspect.getmembers(module, inspect.isclass):
            if member.__module__ == module.__name__ and issubclass(member, base) and not inspect.isabstract(member):
                yield f"{module.__name__}.{name}"


def _init_names(class_path: str) -> Iterator[str]:
    """Yield the arguments of a class, those behind `**kwargs` included."""
    module_name, _, name = class_path.rpartition(".")
    cls = getattr(importlib.import_module(module_name), name)
    seen = set(_LINKED)
    for base in inspect.getmro(cls):
        init = vars(base).get("__init__")
        if init is None:
            continue
        parameters = list(inspect.signature(init).parameters.values())[1:]
        for parameter in parameters:
            if (
                parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
                and parameter.name not in seen
            ):
                seen.add(parameter.name)
                yield parameter.name
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return
