import pytest

from lit_agentrl.policies.tool_text import assistant_text, describe_tools, format_tool_call, parse_tool_calls
from lit_agentrl.types import Message, ToolCall, ToolSpec


def test_several_calls_keep_their_order_and_get_ids():
    first, second = parse_tool_calls(
        'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>{"name": "look"}</tool_call> done',
        call_prefix="t3",
    )
    assert first == ToolCall(id="t3_0", name="add", arguments={"a": 1})
    assert second == ToolCall(id="t3_1", name="look", arguments={})


@pytest.mark.parametrize(
    ("body", "name", "reason"),
    [
        ("{name: add}</tool_call>", "", "not valid JSON"),
        ("[" * 100_000 + "</tool_call>", "", "not valid JSON"),
        ('["add"]</tool_call>', "", "not a JSON object"),
        ('{"arguments": {}}</tool_call>', "", 'no "name"'),
        ('{"name": 3}</tool_call>', "", 'no "name"'),
        ('{"name": "add", "arguments": "1"}</tool_call>', "add", '"arguments" is not a JSON object'),
        ('{"name": "add", "arguments": {}}', "", "not closed"),
        ("", "", "not closed"),
    ],
)
def test_calls_that_cannot_be_read_are_kept_with_the_reason(body, name, reason):
    (call,) = parse_tool_calls("<tool_call>" + body)
    assert call.name == name
    assert reason in call.error


def test_raw_line_breaks_in_arguments_are_understood():
    (call,) = parse_tool_calls('<tool_call>{"name": "run", "arguments": {"code": "a\nb"}}</tool_call>')
    assert call.error is None
    assert call.arguments == {"code": "a\nb"}


def test_calls_considered_while_thinking_are_not_made():
    text = '<think>maybe <tool_call>{"name": "drop"}</tool_call></think><tool_call>{"name": "keep"}</tool_call>'
    assert [call.name for call in parse_tool_calls(text)] == ["keep"]


def test_a_call_survives_formatting_and_parsing():
    call = ToolCall(id="call_0", name="write", arguments={"text": 'é "quoted"\n', "n": [1, 2.5, None]})
    assert parse_tool_calls(format_tool_call(call)) == (call,)


def test_hand_written_calls_are_appended_to_the_text_and_sampled_ones_are_not():
    call = ToolCall(id="call_0", name="look")
    block = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    assert assistant_text(Message.of("assistant", "Hm.", tool_calls=(call,))) == f"Hm.\n{block}"
    assert assistant_text(Message.of("assistant", f"Hm. {block}", tool_calls=(call,))) == f"Hm. {block}"


def test_tools_are_described_in_one_line_each():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}
    text = describe_tools([ToolSpec(name="add", description="Adds.", parameters=schema)])
    assert text.splitlines()[1] == "add(a: integer, b?: any): Adds."
