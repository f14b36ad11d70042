"""P31: empty, substring, several answers, answer inside the question, prompt echo: no free reward."""

import pytest

from lit_agentrl.envs.reasoning import ReasoningGym
from lit_agentrl.rewards.answers import exact_match, extract_answer, numeric_match, write_answer
from lit_agentrl.types import Action, Message

FORMATS = ["line", "tag", "boxed"]


@pytest.mark.parametrize("answer_format", FORMATS)
def test_no_answer_is_read_from_an_empty_marker(answer_format):
    assert extract_answer("", answer_format) is None
    assert extract_answer(write_answer("  ", answer_format), answer_format) is None


@pytest.mark.parametrize("answer_format", FORMATS)
def test_several_different_answers_are_none(answer_format):
    both = f"{write_answer('5', answer_format)}\n{write_answer('6', answer_format)}"
    assert extract_answer(both, answer_format) is None


def test_unclosed_and_nested_markers_are_no_answer():
    assert extract_answer("<answer>5", "tag") is None
    assert extract_answer("<answer><answer>5</answer>", "tag") is None
    assert extract_answer(r"\boxed{5", "boxed") is None


def test_substrings_match_in_neither_direction():
    assert not exact_match("15", "5")
    assert not exact_match("5", "15")
    assert not exact_match("", "5")
    assert not numeric_match("5 or 6", "5")
    assert not numeric_match(None, "5")


@pytest.fixture(scope="module")
def env():
    return ReasoningGym(["chain_sum", "basic_arithmetic", "spell_backward"], partial_credit=True)


def _task(env, family):
    return next(task for task in (env.sample_task(seed, "train") for seed in range(100)) if task.family == family)


def _reward(env, task, text):
    env.reset(task)
    return env.step(Action(message=Message.of("assistant", text))).reward


@pytest.mark.parametrize("family", ["chain_sum", "basic_arithmetic", "spell_backward"])
def test_the_right_answer_alone_is_paid_even_with_partial_credit(env, family):
    task = _task(env, family)
    gold, question = task.data["answer"], task.data["question"]
    assert _reward(env, task, f"Answer: {gold}") == 1.0
    hacks = {
        "empty": "",
        "no marker": gold,
        "empty answer": "Answer: ",
        "longer text": f"Answer: {gold} 17",
        "sentence": f"Answer: it is {gold}, or nearly",
        "two answers": f"Answer: {gold}\nAnswer: 17",
        "two in one": f"Answer: {gold} or 17",
        "prompt echo": env.reset(task).messages[0].text,
        "echo as answer": f"Answer: {question}",
        "echo and answer": f"Answer: {question} {gold}",
    }
    assert {name: _reward(env, task, text) for name, text in hacks.items()} == dict.fromkeys(hacks, 0.0)


def test_an_answer_that_stands_in_the_question_is_not_found_by_copying(env):
    # spell_backward prints the word; the answer to "Spell this word backward ...: dam" is "mad"
    task = _task(env, "spell_backward")
    word = task.data["answer"][::-1]
    assert word in task.data["question"]
    assert _reward(env, task, f"Answer: {word} {task.data['answer']}") == 0.0
