"""Tool calls as text: Hermes blocks out of a completion, and short descriptions into a prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lit_agentrl.types import Message, ToolCall, ToolSpec

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
CALL_EXAMPLE = '<tool_call>\n{"name": "NAME", "arguments": {"ARG": "VALUE"}}\n</tool_call>'


def format_tool_call(call: ToolCall) -> str:
    """Return a call as the block that `parse_tool_calls` reads."""
    body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    return f"{_OPEN}\n{body}\n{_CLOSE}"


def assistant_text(message: Message) -> str:
    """Return an assistant message as the text that a model would have to produce.

    A sampled message holds its blocks in its text already. One that was written by hand with `tool_calls` only (a
    demonstration) gets them appended.
    """
    if not message.tool_calls or _OPEN in message.text:
        return message.text
    lines = [message.text] if message.text else []
    return "\n".join([*lines, *(format_tool_call(call) for call in message.tool_calls)])


def parse_tool_calls(text: str, *, call_prefix: str = "call") -> tuple[ToolCall, ...]:
    """Return the calls in a completion, in order; see `ChatFormat.parse`.

    Blocks inside the model's thinking (before the last `</think>`) are not calls.
    """
    _, *blocks = text.rpartition("</think>")[2].split(_OPEN)
    return tuple(_parse_block(block, id=f"{call_prefix}_{index}") for index, block in enumerate(blocks))


def _parse_block(block: str, *, id: str) -> ToolCall:
    body, closed, _ = block.partition(_CLOSE)
    if not closed:
        return ToolCall(id=id, name="", error=f"the call is not closed by {_CLOSE}")
    try:
        # Not strict: models write raw line breaks inside strings, and what is meant is clear.
        value = json.loads(body, strict=False)
    except (ValueError, RecursionError) as error:
        return ToolCall(id=id, name="", error=f"the call is not valid JSON: {error}")
    if not isinstance(value, dict):
        return ToolCall(id=id, name="", error="the call is not a JSON object")
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str) or not name:
        return ToolCall(id=id, name="", error='the call has no "name"')
    if not isinstance(arguments, dict):
        return ToolCall(id=id, name=name, error='"arguments" is not a JSON object')
    return ToolCall(id=id, name=name, arguments=arguments)


def describe_tools(tools: Sequence[ToolSpec]) -> str:
    """Return the fallback's system text: one line a tool, then the form of a call. Short: each token costs."""
    lines = [f"{tool.name}({_signature(tool)}): {tool.description}" for tool in tools]
    return "\n".join(["Tools:", *lines, "Call a tool by writing:", CALL_EXAMPLE])


def _signature(tool: ToolSpec) -> str:
    required = tool.parameters.get("required", ())
    properties = tool.parameters.get("properties", {})
    return ", ".join(
        f"{name}{'' if name in required else '?'}: {schema.get('type', 'any')}" for name, schema in properties.items()
    )


def wrap_tool_result(text: str) -> str:
    """Return a tool's output as the fallback's user message."""
    return f"<tool_response>\n{text}\n</tool_response>"
