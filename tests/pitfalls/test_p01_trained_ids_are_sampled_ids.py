"""P01: ids trained = ids sampled; nothing is decoded and encoded again between turns."""

import random

from lit_agentrl.policies.chat import ChatFormat
from lit_agentrl.policies.tiny import make_tiny_tokenizer
from lit_agentrl.types import Message


def test_a_spelling_that_the_tokenizer_would_not_choose_is_kept():
    chat = ChatFormat(make_tiny_tokenizer(), tools="native")
    # " the" is one token of this tokenizer; the model spelled it in four.
    spelled = tuple(index for letter in " the" for index in chat.encode(letter))
    assert len(spelled) == 4
    assert len(chat.encode(" the")) == 1
    history = [Message.of("user", "Go on.")]
    context = chat.prompt(history)
    completion = (*spelled, chat.end_of_turn_id)
    extension = chat.extend(context, completion, history, chat.parse(chat.decode(completion)), history)
    assert extension.parent
    assert extension.context.ids[len(context.ids) :][:5] == completion


def test_random_ids_survive_ten_turns():
    chat = ChatFormat(make_tiny_tokenizer(), tools="native")
    draw = random.Random(0)
    ordinary = [index for index in range(508) if index not in chat.eos_ids]
    history = [Message.of("user", "Go on.")]
    context = chat.prompt(history)
    expected = context.ids
    for turn in range(10):
        # Bytes that are no UTF-8, special tokens, half a tool call: whatever a model at its start may write.
        completion = (*draw.choices(ordinary, k=30), chat.end_of_turn_id)
        reply = chat.parse(chat.decode(completion))
        more = [Message.of("tool" if turn % 2 else "user", f"Turn {turn}.")]
        extension = chat.extend(context, completion, history, reply, more)
        assert extension.parent
        expected += completion + extension.new_ids
        history, context = [*history, reply, *more], extension.context
    assert context.ids == expected
