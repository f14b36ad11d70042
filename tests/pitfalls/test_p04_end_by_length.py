"""P04 (chat side): what ends a completion is its last id, never a search for the end-of-sequence id."""

import pytest

from lit_agentrl.policies.chat import ChatFormat
from lit_agentrl.policies.tiny import make_tiny_tokenizer
from lit_agentrl.types import Message

HISTORY = [Message.of("user", "Go.")]


@pytest.fixture(params=["pad differs", "pad is the end"])
def chat(request):
    tokenizer = make_tiny_tokenizer()
    if request.param == "pad is the end":
        tokenizer.pad_token = tokenizer.eos_token
    return ChatFormat(tokenizer, tools="native")


def extend(chat, completion):
    return chat.extend(chat.prompt(HISTORY), completion, HISTORY, chat.parse(chat.decode(completion)), HISTORY)


def test_a_missing_end_is_added_to_the_context_and_not_to_the_completion(chat):
    ended = extend(chat, chat.encode("Do<|im_end|>"))
    cut = extend(chat, chat.encode("Do"))
    assert cut.context.ids == ended.context.ids
    assert cut.new_ids == (chat.end_of_turn_id, *ended.new_ids)


def test_an_end_inside_the_completion_is_text(chat):
    completion = chat.encode("Do<|im_end|>it<|im_end|>")
    assert chat.decode(completion) == "Do<|im_end|>it"
    extension = extend(chat, completion)
    assert extension.parent
    assert extension.context.ids[len(chat.prompt(HISTORY).ids) :][: len(completion)] == completion


def test_the_end_of_a_demonstration_is_trained(chat):
    ids, mask = chat.demonstration([*HISTORY, Message.of("assistant", "Do")])
    assert (ids[-1], mask[-1]) == (chat.end_of_turn_id, 1)


def test_an_empty_completion_is_continued(chat):
    extension = extend(chat, ())
    assert extension.parent
    assert extension.new_ids[0] == chat.end_of_turn_id
