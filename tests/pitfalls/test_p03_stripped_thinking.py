"""P03: a template that strips earlier thinking starts a new row; no token is trained in a context it was not in."""

import pytest

from lit_agentrl.policies.chat import ChatFormat
from lit_agentrl.policies.tiny import make_tiny_tokenizer
from lit_agentrl.types import Message

# As Qwen 3: thinking before the last user message is dropped, thinking after it is kept; tool results are no user.
STRIPPING = (
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% set text = m.content %}"
    "{% if m.role == 'assistant' and loop.index0 < ns.last and '</think>' in text %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HISTORY = [Message.of("user", "Go.")]
THOUGHT = "<think>\nHm.\n</think>\n\nDone"


@pytest.fixture
def chat():
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = STRIPPING
    return ChatFormat(tokenizer, tools="native")


def extend(chat, text, new_message):
    completion = chat.encode(text + "<|im_end|>")
    return chat.extend(chat.prompt(HISTORY), completion, HISTORY, chat.parse(text), [new_message])


def test_thinking_stripped_by_a_user_message_starts_a_new_root(chat):
    extension = extend(chat, THOUGHT, Message.of("user", "More."))
    assert not extension.parent
    assert "Hm." not in extension.text
    assert extension.new_ids == chat.encode(extension.text) == extension.context.ids


def test_thinking_kept_before_a_tool_result_continues(chat):
    extension = extend(chat, THOUGHT, Message.of("tool", "ok"))
    assert extension.parent
    assert "Hm." in extension.text


def test_a_reply_without_thinking_continues(chat):
    assert extend(chat, "Done", Message.of("user", "More.")).parent


def test_a_reply_that_was_rewritten_starts_a_new_root(chat):
    completion = chat.encode("Done, I think.<|im_end|>")
    extension = chat.extend(chat.prompt(HISTORY), completion, HISTORY, chat.parse("Done."), HISTORY)
    assert not extension.parent
    assert extension.context == chat.prompt([*HISTORY, chat.parse("Done."), *HISTORY])


def test_thinking_of_earlier_turns_stripped_later_starts_a_new_root(chat):
    first = extend(chat, THOUGHT, Message.of("tool", "ok"))
    history = [*HISTORY, chat.parse(THOUGHT), Message.of("tool", "ok")]
    second = chat.extend(
        first.context, chat.encode("Fine<|im_end|>"), history, chat.parse("Fine"), [Message.of("user", "More.")]
    )
    assert not second.parent
    assert "Hm." not in second.text


def test_a_demonstration_with_stripped_thinking_gives_one_row_per_context(chat):
    messages = [*HISTORY, Message.of("assistant", THOUGHT), Message.of("user", "More."), Message.of("assistant", "Ok")]
    with pytest.raises(ValueError, match="demonstration_rows"):
        chat.demonstration(messages)
    rows = chat.demonstration_rows(messages)
    trained = [chat.decode([index for index, wanted in zip(*row, strict=True) if wanted]) for row in rows]
    assert trained == [THOUGHT, "Ok"]
    assert "Hm." not in chat.decode(rows[1][0])
