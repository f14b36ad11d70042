"""Tools: typed Python functions, described to a model and called for it without ever raising."""

from __future__ import annotations

import asyncio
import difflib
import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import docstring_parser
from pydantic import BaseModel, ValidationError

from lit_agentrl.agents.tools.signature import arguments_model, parameters_schema, problems, validated
from lit_agentrl.types import ToolOutput, ToolSpec

ToolFunction: TypeAlias = Callable[..., Any]
ToolEntry: TypeAlias = str | Mapping[str, Any]
"""An import path, or `{class_path: ..., init_args: {...}}` of a function that makes a tool."""

_KEY = "agent.init_args.tools"
_BUILTIN = "lit_agentrl.agents.tools"
_INFRASTRUCTURE = ("base", "mcp_client", "mcp_keeper", "mcp_serve", "signature")
"""Modules of this package that hold no tools."""


class ToolRestartedError(ValueError):
    """What stands behind a tool had died and was started again; the text tells the model."""


@runtime_checkable
class ToolSource(Protocol):
    """Tools that come together, with descriptions and state of their own: those of a server, for example."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What a model is told about the tools."""
        ...

    def start_episode(self, slot: int) -> None:
        """Get ready for another episode; episodes of different slots run at the same time."""
        ...

    def call(self, name: str, arguments: Mapping[str, Any], *, slot: int) -> Any:
        """Call a tool; a `ValueError` is what the model is told."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """A function with its description and the model that checks its arguments."""

    function: ToolFunction
    spec: ToolSpec
    arguments: type[BaseModel]

    @classmethod
    def of(cls, function: ToolFunction) -> Tool:
        """Make a tool of a typed function; its Google docstring describes it and its arguments.

        Only the summary line and the Args section reach the model, because every prompt pays for them.

        Raises:
            ValueError: The function has no name or summary line, or parameters that cannot be passed by name.
        """
        name = getattr(function, "__name__", "")
        docstring = docstring_parser.parse(inspect.getdoc(function) or "", style=docstring_parser.DocstringStyle.GOOGLE)
        if not name.isidentifier() or not docstring.short_description:
            raise ValueError(f"{_KEY}: {function!r} needs a name and a docstring with a summary line to be a tool")
        texts = {entry.arg_name: " ".join((entry.description or "").split()) for entry in docstring.params}
        try:
            model = arguments_model(function, descriptions=texts)
        except ValueError as error:
            raise ValueError(f"{_KEY}: {error}") from None
        description = " ".join(docstring.short_description.split())
        spec = ToolSpec(name=name, description=description, parameters=parameters_schema(model))
        return cls(function=function, spec=spec, arguments=model)

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function wants them.

        Raises:
            ValueError: They do not fit; names each that does not.
        """
        try:
            return validated(self.arguments, arguments)
        except ValidationError as error:
            wrong = [f"argument {key!r} {text}" for key, text in problems(self.arguments, error)]
            raise ValueError("; ".join(wrong)) from None
        except Exception as error:  # arguments that are no mapping, or a validator of the tool's own
            raise ValueError(f"the arguments cannot be read ({_describe(error)})") from None


def tool_spec(function: ToolFunction) -> ToolSpec:
    """Return what a model is told about a typed function; see `Tool.of`."""
    return Tool.of(function).spec


class ToolBox:
    """Tools by name. Whatever goes wrong in a call comes back as text for the model, never as an exception."""

    def __init__(self, tools: Sequence[ToolFunction | ToolEntry] = ()) -> None:
        """Collect tools.

        Args:
            tools: Functions, import paths such as `lit_agentrl.agents.tools.calculator.calculator`, or mappings
                `{class_path: ..., init_args: {...}}` of functions that make a tool.

        Raises:
            ValueError: A path leads to no function, a function cannot be a tool, or two tools share a name.
        """
        self._tools: dict[str, Tool | ToolSource] = {}
        self._specs: dict[str, ToolSpec] = {}
        self._sources: list[ToolSource] = []
        try:
            for entry in tools:
                self._add(entry if callable(entry) else resolve_tool(entry))
        except BaseException:
            self.close()
            raise

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What a model is told about the tools, in the order given."""
        return tuple(self._specs.values())

    def start_episode(self, slot: int) -> None:
        """Tell tools that have a state that another episode begins in a slot."""
        for source in self._sources:
            source.start_episode(slot)

    def call(self, name: str, arguments: Mapping[str, Any], *, max_chars: int, slot: int = 0) -> ToolOutput:
        """Call a tool.

        Args:
            name: The name that the model wrote.
            arguments: The arguments that the model wrote.
            max_chars: Output beyond this many characters is cut; the marker that says so comes on top.
            slot: Which of the episodes that run at the same time calls; matters to tools that have a state.
        """
        tool = self._tools.get(name)
        if tool is None:
            available = ", ".join(self._tools) or "none"
            return _error(f"there is no tool {name!r}; available: {available}", max_chars)
        try:
            if not isinstance(tool, Tool):
                return readable(tool.call(name, arguments, slot=slot), max_chars)
            return readable(_run(tool.function, tool.checked(arguments)), max_chars)
        except (Exception, SystemExit) as error:
            output = _error(f"{name}: {_describe(error)}", max_chars)
            return replace(output, restarted=isinstance(error, ToolRestartedError))

    def close(self) -> None:
        """End what tools have running. Closing twice is fine."""
        for source in self._sources:
            source.close()

    def _add(self, made: ToolFunction | ToolSource) -> None:
        tool = made if isinstance(made, ToolSource) else Tool.of(made)
        if not isinstance(tool, Tool):
            self._sources.append(tool)
        for spec in (tool.spec,) if isinstance(tool, Tool) else tool.specs:
            if spec.name in self._tools:
                raise ValueError(f"{_KEY}: two tools are named {spec.name!r}")
            self._tools[spec.name] = tool
            self._specs[spec.name] = spec


def tool_path(entry: ToolEntry) -> str:
    """Return the import path in an entry.

    Raises:
        ValueError: It is neither a path nor a mapping of the right form.
    """
    path = entry if isinstance(entry, str) else entry.get("class_path")
    if not isinstance(path, str) or (not isinstance(entry, str) and set(entry) - {"class_path", "init_args"}):
        raise ValueError(f"{_KEY}: expected an import path or {{class_path: ..., init_args: ...}}, got {entry!r}")
    return path


def resolve_tool(entry: ToolEntry) -> ToolFunction | ToolSource:
    """Import a tool by its path, or make it, or several at once.

    Raises:
        ValueError: The path leads to no function (names the closest ones that do), or the arguments do not fit.
    """
    found = _import(tool_path(entry))
    if isinstance(entry, str):
        return found
    path, arguments = tool_path(entry), entry.get("init_args") or {}
    try:
        model = arguments_model(found)
        made: ToolFunction | ToolSource = found(**validated(model, arguments))
    except ValidationError as error:
        wrong = "; ".join(f"init_args.{argument} {text}" for argument, text in problems(model, error))
        raise ValueError(f"{_KEY}: {path}: {wrong}") from None
    if not callable(made) and not isinstance(made, ToolSource):
        raise ValueError(f"{_KEY}: {path} makes no tool, but {type(made).__name__}")
    return made


def _import(path: str) -> ToolFunction:
    module_name, _, attribute = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), attribute) if module_name else None
    except ModuleNotFoundError as error:
        # A module on the path is missing: a wrong path. Any other one: the tool's own missing dependency.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(f"{_KEY}: {path!r} cannot be imported: {error}") from error
        found = None
    except AttributeError:
        found = None
    except Exception as error:
        raise ValueError(f"{_KEY}: {path!r} cannot be imported: {_describe(error)}") from error
    if callable(found):
        return found
    candidates = list(dict.fromkeys([*_functions(module_name), *_builtin_tools()]))
    close = difflib.get_close_matches(path, candidates, n=3, cutoff=0.0)
    raise ValueError(f"{_KEY}: {path!r} is not the import path of a function; closest: {', '.join(close)}")


def _builtin_tools() -> list[str]:
    package = importlib.import_module(_BUILTIN)
    modules = [info.name for info in pkgutil.iter_modules(package.__path__) if info.name not in _INFRASTRUCTURE]
    return [path for module in modules for path in _functions(f"{_BUILTIN}.{module}")]


def _functions(module_name: str) -> list[str]:
    try:
        module = importlib.import_module(module_name)
    except Exception:  # only collects suggestions: the module was already reported as wrong
        return []
    members = inspect.getmembers(module, inspect.isfunction)
    own = [name for name, value in members if value.__module__ == module_name and not name.startswith("_")]
    return [f"{module_name}.{name}" for name in own]


def _run(function: ToolFunction, arguments: Mapping[str, Any]) -> Any:
    result = function(**arguments)
    if inspect.iscoroutine(result):
        # A thread of its own, because the caller's may already run an event loop.
        with ThreadPoolExecutor(max_workers=1) as executor:
            return executor.submit(asyncio.run, result).result()
    return result


def readable(value: Any, max_chars: int) -> ToolOutput:
    """Turn any value into text of bounded length, marked where something is missing."""
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return ToolOutput(text=f"[... cut, {len(data)} bytes that are not text]", cut=True)
    elif isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError):
            text = str(value)
    total = len(text)
    head = text[:max_chars]
    clean = "".join(character if _is_text(character) else "\N{REPLACEMENT CHARACTER}" for character in head)
    if total > max_chars:
        return ToolOutput(text=f"{clean}\n[... cut, {total} characters in all]", cut=True)
    if clean != head:
        replaced = sum(not _is_text(character) for character in head)
        return ToolOutput(text=f"{clean}\n[... {replaced} characters that are not text were replaced]", cut=True)
    return ToolOutput(text=clean)


def _is_text(character: str) -> bool:
    """Whether a character can be encoded as UTF-8 and is no control character but tab and line breaks."""
    code = ord(character)
    return not (0xD800 <= code <= 0xDFFF or code == 0x7F or (code < 0x20 and character not in "\t\n\r"))


def _describe(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:  # an exception whose own text raises
        text = ""
    if isinstance(error, ValueError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _error(text: str, max_chars: int) -> ToolOutput:
    output = readable(f"Error: {text}", max_chars)
    return ToolOutput(text=" ".join(output.text.split()), error=True, cut=output.cut)
