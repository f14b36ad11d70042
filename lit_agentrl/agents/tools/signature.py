"""Pydantic models of signatures: what a call may pass, told in words that name the argument."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import ErrorDetails, PydanticUndefined

_FIELD = "argument_{}"  # pydantic refuses some names, such as `schema` or `_x`, as fields, but none as aliases


def arguments_model(function: Callable[..., Any], *, descriptions: Mapping[str, str] | None = None) -> type[BaseModel]:
    """Return a pydantic model with one field per parameter, named by its alias.

    Args:
        function: A function or class with type hints; a parameter without one accepts anything.
        descriptions: Texts for the JSON schema, by parameter.

    Raises:
        ValueError: The function has positional-only parameters or `*args`: JSON objects cannot fill those.
    """
    parameters = inspect.signature(function).parameters.values()
    hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    fields: dict[str, Any] = {}
    extra: typing.Literal["allow", "forbid"] = "forbid"
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = "allow"
            continue
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise ValueError(f"{function.__qualname__}: parameter {parameter.name!r} cannot be passed by name")
        default = PydanticUndefined if parameter.default is parameter.empty else parameter.default
        description = (descriptions or {}).get(parameter.name)
        fields[_FIELD.format(len(fields))] = (
            hints.get(parameter.name, Any),
            Field(default, alias=parameter.name, description=description),
        )
    config = ConfigDict(extra=extra, arbitrary_types_allowed=True)
    return create_model(function.__name__, __config__=config, **fields)


def parameters_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a model from `arguments_model`, without the titles that only cost tokens."""
    schema = model.model_json_schema(by_alias=True)
    for properties in (
        schema.get("properties", {}),
        *(d.get("properties", {}) for d in schema.get("$defs", {}).values()),
    ):
        for declared in properties.values():
            declared.pop("title", None)
    schema.pop("title", None)
    schema.pop("description", None)
    schema.pop("additionalProperties", None)
    schema.setdefault("properties", {})
    return schema


def validated(model: type[BaseModel], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as the types of the signature ask for, defaults left out.

    Raises:
        ValidationError: Something is missing, unknown or of a wrong type; see `problems`.
    """
    instance = model.model_validate(dict(arguments))
    names = {name: field.alias or name for name, field in model.model_fields.items()}
    given = {names[name]: getattr(instance, name) for name in instance.model_fields_set if name in names}
    return given | dict(instance.model_extra or {})


def problems(model: type[BaseModel], error: ValidationError) -> list[tuple[str, str]]:
    """Return (argument, predicate) for each mistake, one an argument: `("count", "must be integer, got 1.5")`."""
    hints = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    found: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        argument = str(detail["loc"][0]) if detail["loc"] else ""
        found.setdefault(argument, _problem(detail, hints))
    return list(found.items())


def type_name(hint: Any) -> str:
    """Return a short name of a type, in JSON's words for plain types."""
    plain = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
    if hint in plain:
        return plain[hint]
    if typing.get_origin(hint) is typing.Literal:
        return f"one of {', '.join(map(repr, typing.get_args(hint)))}"
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _problem(detail: ErrorDetails, hints: Mapping[str, Any]) -> str:
    argument = str(detail["loc"][0]) if detail["loc"] else ""
    if detail["type"] == "extra_forbidden":
        accepted = ", ".join(f"{name} ({type_name(hint)})" for name, hint in hints.items())
        return f"is unknown (accepted: {accepted or 'none'})"
    if detail["type"] == "missing" and len(detail["loc"]) == 1:
        return f"is missing (expected {type_name(hints[argument])})"
    return f"must be {type_name(hints.get(argument, Any))}, got {_short(detail['input'])}"


def _short(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:60]}..."
