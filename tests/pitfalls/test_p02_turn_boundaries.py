"""P02: no token is lost or added between an assistant's turn and what follows, whatever the template puts there."""

import pytest

from lit_agentrl.policies.chat import ChatFormat
from lit_agentrl.policies.tiny import make_tiny_tokenizer
from lit_agentrl.types import Message

HISTORY = [Message.of("user", "Go.")]
RESULT = Message.of("tool", "ok")
BODY = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + CONTENT + 'AFTER' }}{% endfor %}"
OPENING = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def chat_format(after, content="m.content"):
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = BODY.replace("AFTER", after).replace("CONTENT", content) + OPENING
    return ChatFormat(tokenizer, tools="fallback")


def following(chat, completion_text):
    """Return the text of the ids that follow a completion."""
    completion = chat.encode(completion_text)
    reply = chat.parse(chat.decode(completion))
    extension = chat.extend(chat.prompt(HISTORY), completion, HISTORY, reply, [RESULT])
    assert extension.parent
    # One more id, so that decode does not leave out an end-of-turn id at the end.
    return chat.decode((*extension.new_ids, *chat.encode("#")))[:-1]


NEXT = "<|im_start|>user\n<tool_response>\nok\n</tool_response>"


@pytest.mark.parametrize(
    ("after", "sampled_end", "expected"),
    [
        ("<|im_end|>\n", True, f"\n{NEXT}<|im_end|>\n<|im_start|>assistant\n"),
        ("<|im_end|>\n", False, f"<|im_end|>\n{NEXT}<|im_end|>\n<|im_start|>assistant\n"),
        ("<|im_end|>", True, f"{NEXT}<|im_end|><|im_start|>assistant\n"),
        ("<|im_end|>", False, f"<|im_end|>{NEXT}<|im_end|><|im_start|>assistant\n"),
        (" <|im_end|>", True, f"{NEXT} <|im_end|><|im_start|>assistant\n"),
        ("\n\n", False, f"\n\n{NEXT}\n\n<|im_start|>assistant\n"),
        # The end was sampled, but the template knows none: its separator must still come.
        ("\n\n", True, f"\n\n{NEXT}\n\n<|im_start|>assistant\n"),
    ],
)
@pytest.mark.parametrize("content", ["m.content", "m.content | trim"])
@pytest.mark.parametrize("text", ["Done", "  Done\n\n", "\n", "", "Done\n<|im_start|>"])
def test_what_follows_is_what_the_template_writes(after, sampled_end, expected, content, text):
    chat = chat_format(after, content)
    assert following(chat, text + ("<|im_end|>" if sampled_end else "")) == expected


@pytest.mark.parametrize("after", ["<|im_end|>\n", "<|im_end|>"])
def test_the_whole_context_equals_the_template_rendered_at_once(after):
    chat = chat_format(after)
    completion = chat.encode("Done<|im_end|>")
    reply = chat.parse("Done")
    extension = chat.extend(chat.prompt(HISTORY), completion, HISTORY, reply, [RESULT])
    assert extension.context == chat.prompt([*HISTORY, reply, RESULT])
