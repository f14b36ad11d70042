"""The data and simulated APIs of BFCL v4, called by name with plain values: nothing a model writes is evaluated.

The benchmark's own runner builds source text of every call and hands it to `eval`, and keeps instances in module
globals for ever. Here calls are dispatched to bound methods, and instances belong to their episode. Imports the package
only inside functions.
"""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import importlib.util
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lit_agentrl.envs.calls import Call
from lit_agentrl.envs.splits import content_digest
from lit_agentrl.types import Split, ToolSpec

INSTALL = "pip install 'lit_agentrl[bfcl]' && pip install --no-deps bfcl-eval==2026.3.23"
REQUIRES = {"bfcl_eval": INSTALL, "mpmath": INSTALL, "rank_bm25": INSTALL, "overrides": INSTALL}
_MODULES = "bfcl_eval.eval_checker.multi_turn_eval"
PRELOAD = (f"{_MODULES}.multi_turn_checker", f"{_MODULES}.func_source_code.math_api")

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
DOCS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
"""The API classes of the multi-turn part, with the file that describes and the module that implements each."""
STATELESS = frozenset({"MathAPI"})

_HELD_OUT_SHARE = 0.15  # for val and for test
_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_LIMITS = {"precision": 1000, "exponent": 10_000, "base": 10**15}
"""Absolute values up to which arithmetic ends soon, by argument."""
_DESCRIPTION = "Tool description: "  # before it stands the same text for every function of a class


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialogue:
    """One multi-turn task of the benchmark."""

    id: str
    category: str
    scenario: int
    """The number in the id. The four categories tell the same 200 stories, so splits go by scenario."""
    turns: tuple[str | None, ...]
    """What the user says, one message a turn; `None` where held-out functions are handed over instead."""
    gold: tuple[tuple[str, ...], ...]
    """Right calls of each turn, as Python source."""
    config: Mapping[str, Any]
    classes: tuple[str, ...]
    excluded: frozenset[str]
    held_out: Mapping[int, tuple[str, ...]]
    """Functions that are offered from a turn on only."""


def data_folder() -> Path:
    """Return where the installed package keeps its data."""
    spec = importlib.util.find_spec("bfcl_eval")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "data"


def read_lines(name: str) -> list[dict[str, Any]]:
    """Return the records of one of the package's files, which hold one JSON object a line.

    Raises:
        ValueError: A line is no JSON object; names file and line.
    """
    records = []
    for number, line in enumerate((data_folder() / name).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            record = json.loads(line)
            record["id" if "id" in record else "name"]  # every kind of record has one of the two
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"bfcl-eval: {name}, line {number}: {error}; is the package damaged?") from None
        records.append(record)
    return records


@functools.cache
def dialogues(category: str) -> tuple[Dialogue, ...]:
    """Return all tasks of a multi-turn category."""
    name = f"BFCL_v4_multi_turn_{category}.json"
    gold = {record["id"]: record["ground_truth"] for record in read_lines(f"possible_answer/{name}")}
    return tuple(
        Dialogue(
            id=record["id"],
            category=category,
            scenario=int(record["id"].rpartition("_")[2]),
            turns=tuple(turn[0]["content"] if turn else None for turn in record["question"]),
            gold=tuple(tuple(turn) for turn in gold[record["id"]]),
            config=record["initial_config"],
            classes=tuple(record["involved_classes"]),
            excluded=frozenset(record.get("excluded_function", ())),
            held_out={int(turn): tuple(names) for turn, names in record.get("missed_function", {}).items()},
        )
        for record in read_lines(name)
    )


def needs_what_is_held_out(dialogue: Dialogue) -> bool:
    """Whether right calls use a function before it is offered (`miss_func_49` does), which nobody can do here."""
    return any(
        source.partition("(")[0].strip() in names
        for first, names in dialogue.held_out.items()
        for calls in dialogue.gold[:first]
        for source in calls
    )


@functools.cache
def story_groups() -> dict[int, int]:
    """Return, for each scenario, the lowest one that it shares a user's message with: those belong in one split."""
    groups = {dialogue.scenario: dialogue.scenario for dialogue in dialogues("base")}
    owners: dict[str, int] = {}
    for dialogue in (dialogue for category in CATEGORIES for dialogue in dialogues(category)):
        for turn in filter(None, dialogue.turns):
            first, second = sorted((groups[owners.setdefault(turn, dialogue.scenario)], groups[dialogue.scenario]))
            if first != second:
                groups = {scenario: first if group == second else group for scenario, group in groups.items()}
    return groups


def split_of_story(scenario: int) -> Split:
    """Return the split of a scenario.

    Shares are kept for each set of API classes, or a split would be empty as soon as one asks for a single class.
    """
    return _splits()[story_groups()[scenario]]


@functools.cache
def _splits() -> dict[int, Split]:
    kinds: dict[tuple[str, ...], list[int]] = {}
    for dialogue in dialogues("base"):
        if story_groups()[dialogue.scenario] == dialogue.scenario:
            kinds.setdefault(tuple(sorted(dialogue.classes)), []).append(dialogue.scenario)
    splits: dict[int, Split] = {}
    for stories in kinds.values():
        stories.sort(key=lambda story: content_digest(f"bfcl multi_turn {story}"))
        held_out = round(_HELD_OUT_SHARE * len(stories))
        for place, story in enumerate(stories):
            splits[story] = "test" if place < held_out else "val" if place < 2 * held_out else "train"
    return splits


@functools.cache
def tool_specs(class_name: str) -> dict[str, ToolSpec]:
    """Return what a model is told about the functions of a class, by name."""
    return {record["name"]: as_tool(record) for record in read_lines(f"multi_turn_func_doc/{DOCS[class_name]}.json")}


def as_tool(record: Mapping[str, Any]) -> ToolSpec:
    """Return a function's record as a tool: JSON schema types, without the text that all functions of a class share."""
    description = str(record["description"])
    return ToolSpec(
        name=record["name"],
        description=description.partition(_DESCRIPTION)[2].strip() or description,
        parameters=_json_schema(record["parameters"]),
    )


def _json_schema(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_json_schema(entry) for entry in schema]
    if not isinstance(schema, Mapping):
        return schema
    converted = {key: _json_schema(value) for key, value in schema.items()}
    if isinstance(schema.get("type"), str):
        converted["type"] = _JSON_TYPES.get(schema["type"], schema["type"])
    return converted


def make_instances(dialogue: Dialogue) -> dict[str, Any]:
    """Return fresh API objects, by class, in the dialogue's initial state."""
    instances = {}
    for name in dialogue.classes:
        instance = getattr(importlib.import_module(f"{_MODULES}.func_source_code.{DOCS[name]}"), name)()
        if name not in STATELESS:
            config = copy.deepcopy(dialogue.config.get(name, {}))
            instance._load_scenario(config, long_context=dialogue.category == "long_context")
        instances[name] = instance
    return instances


class Dispatcher:
    """The public methods of some API objects, by name; where two share a name, the later class has it."""

    def __init__(self, instances: Mapping[str, Any]) -> None:
        self._methods = {
            name: getattr(instance, name)
            for instance in instances.values()
            for name in _method_names(instance.__class__)
        }
        self._precise = "MathAPI" in instances

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a method and return what the benchmark would show: text, JSON, or the error."""
        method = self._methods.get(name)
        if method is None:
            return f"Error during execution: name {name!r} is not defined"
        if self._precise:
            if problem := _explodes(arguments):
                return f"Error during execution: {problem}"
            _forget_precision()
        try:
            # The APIs keep the lists that they are given and change them later; a message must not change with them.
            result = method(**copy.deepcopy(dict(arguments)))
            if isinstance(result, str):
                return result
            return _as_json(result) if type(result) is dict else str(result)
        except Exception as error:  # the benchmark's own rule: the model reads the exception's text
            return f"Error during execution: {error}"

    def named(self, source: str) -> Call:
        """Read a call that the benchmark's authors wrote as Python source; its arguments are literals.

        Raises:
            ValueError: The source is anything but one call of a known method with literal arguments.
        """
        return _read_call(source, self._methods)


@functools.cache
def _method_names(cls: type[object]) -> tuple[str, ...]:
    return tuple(name for name, _ in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_"))


def _read_call(source: str, methods: Mapping[str, Any]) -> Call:
    node = ast.parse(source.strip(), mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in methods:
        raise ValueError(f"{source!r} is no call of a known function")
    named = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    given = [ast.literal_eval(argument) for argument in node.args]
    bound = inspect.signature(methods[node.func.id]).bind(*given, **named)
    return node.func.id, dict(bound.arguments)


def _as_json(result: dict[str, Any]) -> str:
    try:
        return json.dumps(result)
    except (TypeError, ValueError):  # numbers of mpmath, objects
        return str(result)


def _explodes(arguments: Mapping[str, Any]) -> str | None:
    """Say what is too large to compute: arithmetic in C cannot be interrupted, it would cost the whole worker."""
    for name, limit in _LIMITS.items():
        value = arguments.get(name)
        if isinstance(value, int | float) and abs(value) > limit:
            return f"{name} must be at most {limit}"
    return None


def _forget_precision() -> None:
    """Undo what earlier calls, of any episode in this process, set for the whole process."""
    import decimal

    import mpmath

    decimal.setcontext(decimal.Context(prec=28))
    mpmath.mp.dps = 15


def turn_is_right(
    model: Mapping[str, Any], gold: Mapping[str, Any], results: Sequence[str], expected: Sequence[str], turn: int
) -> bool:
    """Apply the benchmark's two checks of a turn: equal states, and every expected result seen at some time.

    Args:
        model: API objects that the model acted on.
        gold: API objects that the right calls acted on.
        results: What all calls of the model returned so far.
        expected: What the right calls of this turn returned.
        turn: Index of the turn.
    """
    checker = importlib.import_module(f"{_MODULES}.multi_turn_checker")
    return bool(
        checker.state_checker(model, gold)["valid"]
        and checker.response_checker(list(results), list(expected), turn)["valid"]
    )
