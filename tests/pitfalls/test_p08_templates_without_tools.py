"""P08: templates without tool support, or with opinions on roles, get a working fallback or a clear error."""

import pytest

from lit_agentrl.policies.chat import ChatFormat
from lit_agentrl.policies.tiny import make_tiny_tokenizer
from lit_agentrl.types import Message, ToolSpec

LOOP = "{% for m in messages %}RULE{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
OPENING = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
RAISES_ON_TOOL = "{% if m.role == 'tool' %}{{ raise_exception('no such role') }}{% endif %}"
RAISES_ON_SYSTEM = "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
ALTERNATES = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
)
# Worse than raising: the result is silently left out.
IGNORES_TOOL = "{% if m.role == 'tool' %}{% continue %}{% endif %}"
TOOL = ToolSpec(name="look", description="Looks.", parameters={"type": "object", "properties": {}})
QUESTION = Message.of("user", "Where?")
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


def chat_format(rule, **options):
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = LOOP.replace("RULE", rule) + OPENING
    return ChatFormat(tokenizer, **options)


@pytest.mark.parametrize("rule", ["", RAISES_ON_TOOL, RAISES_ON_SYSTEM, RAISES_ON_SYSTEM + ALTERNATES, IGNORES_TOOL])
def test_a_tool_episode_works(rule):
    chat = chat_format(rule)
    assert not chat.native_tools
    context = chat.prompt([Message.of("system", "Be brief."), QUESTION], [TOOL])
    for part in ("Be brief.", "look(): Looks.", "Where?"):
        assert part in context.text
    completion = chat.encode(CALL + "<|im_end|>")
    extension = chat.extend(
        context,
        completion,
        [Message.of("system", "Be brief."), QUESTION],
        chat.parse(CALL),
        [Message.of("tool", "here"), Message.of("user", "So?")],
        [TOOL],
    )
    assert extension.parent
    assert chat.decode(extension.new_ids) == (
        "\n<|im_start|>user\n<tool_response>\nhere\n</tool_response>\nSo?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_native_tools_are_refused_when_the_template_has_none():
    with pytest.raises(ValueError, match=r"policy\.init_args\.tools: .* does not render tools"):
        chat_format("", tools="native")


def test_an_order_of_roles_that_no_rewriting_saves_is_named():
    chat = chat_format(RAISES_ON_SYSTEM + ALTERNATES)
    with pytest.raises(ValueError, match=r"refuses messages of roles assistant, user: roles must alternate"):
        chat.prompt([Message.of("assistant", "Hello"), QUESTION])
