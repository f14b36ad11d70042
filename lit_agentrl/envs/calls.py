"""Tool calls as a policy would write them, for demonstrations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from lit_agentrl.types import Message, ToolCall

Call: TypeAlias = tuple[str, dict[str, Any]]
"""Function name and named arguments."""


def call_message(calls: Sequence[Call], *, number: int) -> Message:
    """Return an assistant's message with calls, as a policy would write it.

    Args:
        calls: In the order in which they are to be run.
        number: Makes the call ids unique in the conversation.
    """
    plain = [(name, json.loads(json.dumps(arguments))) for name, arguments in calls]
    blocks = [
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"
        for name, arguments in plain
    ]
    made = tuple(
        ToolCall(id=f"call_{number}_{place}", name=name, arguments=arguments)
        for place, (name, arguments) in enumerate(plain)
    )
    return Message.of("assistant", "\n".join(blocks), tool_calls=made)
