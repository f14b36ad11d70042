import json

import pytest

from lit_agentrl.agents.tools.base import tool_spec
from lit_agentrl.agents.tools.calculator import calculator
from lit_agentrl.envs.arithmetic import TinyArithmetic
from lit_agentrl.testing import check_environment
from lit_agentrl.types import Action, Message, Task

TASK = Task(id="t", family="tiny_arithmetic", split="train", seed=0, data={"question": "7*8=", "answer": "56"})


def reply(text):
    return Action(message=Message.of("assistant", text))


@pytest.mark.parametrize("mode", ["direct", "call"])
@pytest.mark.parametrize("digits", [1, 3])
def test_it_keeps_the_contract(mode, digits):
    check_environment(lambda: TinyArithmetic(mode=mode, digits=digits, operators="+-*"))


def test_direct_mode_grades_the_first_reply():
    env = TinyArithmetic(mode="direct")
    assert env.reset(TASK).messages == (Message.of("user", "7*8="),)
    result = env.step(reply(" 56\n"))
    assert (result.reward, result.success, result.terminated) == (1.0, True, True)


def test_a_wrong_answer_is_worth_nothing():
    env = TinyArithmetic(mode="direct")
    for text in ("57", "", "56 57", "7*8=56", "?"):
        env.reset(TASK)
        result = env.step(reply(text))
        assert (result.reward, result.success) == (0.0, False)


def test_call_mode_tells_the_result_once_and_wants_it_repeated():
    env = TinyArithmetic(mode="call")
    env.reset(TASK)
    told = env.step(reply("?"))
    assert told.observation.messages == (Message.of("user", "56"),)
    assert (told.reward, told.terminated, told.success) == (0.0, False, None)
    assert env.step(reply("56")).success is True


def test_asking_twice_is_a_wrong_answer():
    env = TinyArithmetic(mode="call")
    env.reset(TASK)
    env.step(reply("?"))
    assert env.step(reply("?")).success is False


def test_tasks_fit_their_options():
    env = TinyArithmetic(digits=2, operators="*")
    for seed in range(50):
        data = env.sample_task(seed, "train").data
        left, right = data["question"].removesuffix("=").split("*")
        assert int(left) * int(right) == int(data["answer"])
        assert max(len(left), len(right)) <= 2


def test_splits_share_no_question_even_with_one_digit():
    env = TinyArithmetic(digits=1)
    questions = {
        split: {env.sample_task(seed, split).data["question"] for seed in range(500)}
        for split in ("train", "val", "test")
    }
    assert not questions["train"] & questions["val"]
    assert not questions["train"] & questions["test"]
    assert not questions["val"] & questions["test"]
    assert sum(map(len, questions.values())) <= 100  # 10 x 10 sums


def test_an_episode_is_a_dozen_characters():
    env = TinyArithmetic()
    shown = env.demonstrate(env.sample_task(0, "train"), ())
    assert [message.role for message in shown.messages] == ["user", "assistant", "user", "assistant"]
    assert sum(len(message.text) for message in shown.messages) <= 9  # "9+9=", "?", "18", "18"


def test_the_agents_calculator_is_shown_where_it_is_offered():
    shown = TinyArithmetic(mode="direct").demonstrate(TASK, (tool_spec(calculator),))
    _, call, output, answer = shown.messages
    block = call.text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    assert json.loads(block) == {"name": "calculator", "arguments": {"expression": "7*8"}}
    assert call.tool_calls[0].arguments == {"expression": "7*8"}
    assert (output.role, output.text, output.tool_call_id) == ("tool", "56", call.tool_calls[0].id)
    assert answer.text == "56"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "tool"}, r"env\.init_args\.mode must be 'direct' or 'call', got 'tool'"),
        ({"digits": 0}, r"env\.init_args\.digits must be 1 to 9, got 0"),
        ({"operators": "/"}, r"env\.init_args\.operators must be some of \+-\*, got '/'"),
        ({"operators": ""}, r"env\.init_args\.operators"),
    ],
)
def test_wrong_arguments_name_their_key(arguments, message):
    with pytest.raises(ValueError, match=message):
        TinyArithmetic(**arguments)


def test_replies_that_make_sense_are_listed_where_they_are_few():
    env = TinyArithmetic(mode="call", last_digit=True)
    task = env.sample_task(0, "train")
    assert env.reset(task).actions == ("?", "!", *"0123456789")
    assert env.step(reply("?")).observation.actions == tuple("0123456789")  # a source answers once
    assert TinyArithmetic(mode="direct", last_digit=True).reset(task).actions == tuple("0123456789")
    assert TinyArithmetic(mode="call").reset(task).actions == ()
