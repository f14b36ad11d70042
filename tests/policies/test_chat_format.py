import pytest

from lit_agentrl.policies.chat import ChatFormat
from lit_agentrl.policies.tiny import make_tiny_tokenizer
from lit_agentrl.types import ImagePart, Message, TextPart, ToolCall, ToolSpec

CALCULATOR = ToolSpec(
    name="calculator",
    description="Evaluates an expression.",
    parameters={"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
)
QUESTION = Message.of("user", "What is 2+2?")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# As Qwen 2.5 does it: tools announced with the call form, results in a user turn.
HERMES = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}"
    '{{ \'\nCall: <tool_call>\n{"name": <name>, "arguments": <args>}\n</tool_call><|im_end|>\n\' }}{% endif %}'
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def chat_format(template, **options):
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = template
    return ChatFormat(tokenizer, **options)


def test_a_prompt_ends_where_the_assistant_begins():
    chat = chat_format(CHATML)
    prompt = chat.prompt([QUESTION])
    assert prompt.text == "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"
    assert chat.decode(prompt.ids) == prompt.text


def test_decode_leaves_out_only_the_id_that_ended_the_completion():
    chat = chat_format(CHATML)
    assert chat.decode(chat.encode("4<|im_end|>")) == "4"
    assert chat.decode(chat.encode("<|im_start|>4")) == "<|im_start|>4"
    assert chat.decode(()) == ""


def test_auto_uses_the_templates_own_tools_when_it_announces_the_call_form():
    chat = chat_format(HERMES)
    assert chat.native_tools
    text = chat.prompt([QUESTION], [CALCULATOR]).text
    assert text.startswith('<|im_start|>system\n{"type": "function"')


def test_auto_falls_back_when_the_template_announces_another_call_form():
    # Tools and results are rendered, but the model is told to write [call ...], which `parse` would not find.
    chat = chat_format(
        HERMES.replace('<tool_call>\n{"name": <name>, "arguments": <args>}\n</tool_call>', "[call name]")
    )
    assert not chat.native_tools


def test_the_fallback_describes_tools_in_the_system_message_and_results_as_user():
    chat = chat_format(CHATML)
    messages = [
        Message.of("system", "Be brief."),
        QUESTION,
        chat.parse('<tool_call>\n{"name": "calculator", "arguments": {"expression": "2+2"}}\n</tool_call>'),
        Message.of("tool", "4", tool_call_id="call_0"),
        Message.of("tool", "5", tool_call_id="call_1"),
    ]
    assert chat.prompt(messages, [CALCULATOR]).text == (
        "<|im_start|>system\nBe brief.\nTools:\ncalculator(expression: string): Evaluates an expression.\n"
        "Call a tool by writing:\n"
        '<tool_call>\n{"name": "NAME", "arguments": {"ARG": "VALUE"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nWhat is 2+2?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "2+2"}}\n</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n4\n</tool_response>\n<tool_response>\n5\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_tool_calls_are_not_rendered_a_second_time():
    chat = chat_format(HERMES)
    reply = chat.parse('<tool_call>\n{"name": "calculator", "arguments": {}}\n</tool_call>')
    assert len(reply.tool_calls) == 1
    text = chat.prompt([QUESTION, reply, Message.of("tool", "4")]).text
    assert text.count("<tool_call>") == 1


def test_an_extension_holds_the_context_of_the_next_one():
    chat = chat_format(CHATML)
    history, context = [QUESTION], chat.prompt([QUESTION])
    for text in ("first", "second", "third"):
        completion = chat.encode(text + "<|im_end|>")
        reply, more = chat.parse(text), Message.of("user", "Go on.")
        extension = chat.extend(context, completion, history, reply, [more])
        assert extension.parent
        assert extension.context.ids == context.ids + completion + extension.new_ids
        history, context = [*history, reply, more], extension.context
    assert context == chat.prompt(history)


def test_tools_that_change_within_an_episode_start_a_new_root():
    chat = chat_format(HERMES)
    context = chat.prompt([QUESTION])
    reply = chat.parse("4")
    extension = chat.extend(
        context, chat.encode("4<|im_end|>"), [QUESTION], reply, [Message.of("user", "Check it.")], [CALCULATOR]
    )
    assert not extension.parent
    assert extension.new_ids == extension.context.ids
    assert "calculator" in extension.text


def test_a_demonstration_trains_replies_and_their_end_only():
    chat = chat_format(CHATML)
    ids, mask = chat.demonstration(
        [QUESTION, Message.of("assistant", "4"), Message.of("user", "Sure?"), Message.of("assistant", "Yes")]
    )
    assert len(ids) == len(mask)
    trained = [token for token, wanted in zip(ids, mask, strict=True) if wanted]
    assert trained == [*chat.encode("4<|im_end|>"), *chat.encode("Yes<|im_end|>")]
    assert mask[-1] == 1


def test_a_demonstration_equals_the_rollout_of_the_same_messages():
    chat = chat_format(HERMES)
    call = ToolCall(id="call_0", name="calculator", arguments={"expression": "2+2"})
    spoken = Message(role="assistant", content=(), tool_calls=(call,))
    result, answer = Message.of("tool", "4", tool_call_id="call_0"), Message.of("assistant", "It is 4.")
    ids, mask = chat.demonstration([QUESTION, spoken, result, answer], [CALCULATOR])

    context = chat.prompt([QUESTION], [CALCULATOR])
    text = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2+2"}}\n</tool_call>'
    first = chat.encode(text + "<|im_end|>")
    extension = chat.extend(context, first, [QUESTION], chat.parse(text), [result], [CALCULATOR])
    second = chat.encode("It is 4.<|im_end|>")
    assert ids == extension.context.ids + second
    assert mask == (0,) * len(context.ids) + (1,) * len(first) + (0,) * len(extension.new_ids) + (1,) * len(second)


def test_a_demonstration_without_a_reply_is_refused():
    with pytest.raises(ValueError, match="role assistant"):
        chat_format(CHATML).demonstration([QUESTION])


def test_images_are_refused_by_name():
    message = Message(role="user", content=(TextPart(text="Look:"), ImagePart(data=b"", media_type="image/png")))
    with pytest.raises(ValueError, match=r"role user holds an image \(image/png\)"):
        chat_format(CHATML).prompt([message])


def test_end_of_turn_is_the_templates_own_even_if_the_tokenizer_names_another():
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = CHATML
    tokenizer.eos_token = "<|pad|>"
    chat = ChatFormat(tokenizer)
    (end,) = chat.encode("<|im_end|>")
    assert chat.end_of_turn_id == end
    assert chat.eos_ids == {end, tokenizer.eos_token_id}


def test_a_tokenizer_without_a_template_is_refused():
    with pytest.raises(ValueError, match=r"policy\.init_args\.model: .* no chat template"):
        chat_format(None)
