"""BFCL memory: every question can be answered from the store, and long answers do not pay."""

import inspect

import pytest

from lit_agentrl.envs.bfcl_memory import SCENARIOS, BFCLMemory, _entries, _questions
from lit_agentrl.envs.reasoning import GraderError
from lit_agentrl.rollouts.workers import WorkerPool
from lit_agentrl.testing import check_environment
from lit_agentrl.types import Action, Message, Task, ToolCall


def task_of(question_id):
    return Task(id=question_id, family="bfcl_memory", split="train", seed=0)


def act(text="", *named):
    made = tuple(ToolCall(id=f"c{place}", name=name, arguments=args) for place, (name, args) in enumerate(named))
    return Action(message=Message.of("assistant", text, tool_calls=made))


@pytest.fixture(scope="module")
def env():
    return BFCLMemory()


def test_it_keeps_the_contract():
    check_environment(BFCLMemory, seeds=range(30))
    check_environment(lambda: BFCLMemory(writing=True))


def test_the_demonstrations_answer_every_question(env):
    for question in _questions():
        shown = env.demonstrate(task_of(question))
        env.reset(task_of(question))
        for message in shown.messages:
            if message.role == "assistant":
                result = env.step(Action(message=message))
        assert result.success is True, question
    assert len(_questions()) == 155


def test_nothing_that_is_read_is_so_long_that_workers_cut_it(env):
    limit = inspect.signature(WorkerPool).parameters["max_output_chars"].default
    for question in _questions():
        assert max(len(message.text) for message in env.demonstrate(task_of(question)).messages) <= limit


def test_the_store_is_searched_and_read(env):
    opening = env.reset(task_of("memory_0-customer-0"))
    assert "What is my first name?" in opening.messages[0].text
    assert len(opening.tools) == 3
    listed = env.step(act("", ("archival_memory_list_keys", {}))).observation.messages[0].text
    first = next(iter(_entries("customer")))
    assert first in listed
    read = env.step(act("", ("archival_memory_retrieve", {"key": first}))).observation.messages[0].text
    assert "Michael" in read
    result = env.step(act("Answer: Michael."))
    assert (result.success, result.reward_parts) == (True, {"answer": 1.0, "answered": 1.0})


def test_every_state_has_a_key_of_what_was_looked_up(env):
    def keys(*calls):
        seen = [env.reset(task_of("memory_0-customer-0")).state_key]
        return seen + [env.step(act("", call)).observation.state_key for call in calls]

    listing, search = ("archival_memory_list_keys", {}), ("archival_memory_key_search", {"query": "name"})
    assert keys(listing, search) == keys(listing, search)
    assert len({*keys(listing, search), *keys(search, listing)}) == 5  # they share the beginning


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Michael",  # not marked as the answer
        "Answer: Michelle",
        "Answer: John, James, Robert, Michael, William",  # one word more than an answer may have
        "Answer: John\nAnswer: Michael",
        "Answer: What is my first name?",
    ],
)
def test_nothing_is_paid_for(env, text):
    env.reset(task_of("memory_0-customer-0"))
    result = env.step(act(text))
    assert (result.success, result.reward) == (False, 0.0)


def test_the_whole_store_is_no_answer(env):
    for question in list(_questions().values())[::10]:
        env.reset(task_of(question.id))
        everything = " ".join(_entries(question.scenario).values())
        assert env.step(act(f"Answer: {everything}")).success is False


def test_writing_is_offered_on_request():
    env = BFCLMemory(writing=True)
    env.reset(task_of("memory_0-customer-0"))
    env.step(act("", ("archival_memory_clear", {})))
    listed = env.step(act("", ("archival_memory_list_keys", {}))).observation.messages[0].text
    assert listed == '{"keys": []}'
    env.reset(task_of("memory_0-customer-0"))  # what was cleared is there again
    assert (
        "Michael"
        in env.step(act("", ("archival_memory_retrieve", {"key": next(iter(_entries("customer")))})))
        .observation.messages[0]
        .text
    )


def test_what_is_not_offered_cannot_be_called(env):
    env.reset(task_of("memory_0-customer-0"))
    text = env.step(act("", ("archival_memory_clear", {}))).observation.messages[0].text
    assert text == "Error: there is no function 'archival_memory_clear'"


def test_too_many_steps_are_a_wrong_answer():
    env = BFCLMemory(max_steps=2)
    env.reset(task_of("memory_0-customer-0"))
    ended = [env.step(act("", ("archival_memory_list_keys", {}))).terminated for _ in range(3)]
    assert ended == [False, False, True]


def test_users_are_not_shared_between_splits(env):
    for split in ("train", "val", "test"):
        users = {env.sample_task(seed, split).family.removeprefix("bfcl_memory_") for seed in range(100)}
        assert users == {user for user, home in SCENARIOS.items() if home == split}


def test_a_check_that_crashes_is_no_wrong_answer(env, monkeypatch):
    env.reset(task_of("memory_0-customer-0"))
    monkeypatch.setattr("lit_agentrl.envs.bfcl_memory._checks", lambda *_: 1 / 0)
    with pytest.raises(GraderError, match="memory_0-customer-0 raised ZeroDivisionError"):
        env.step(act("Answer: Michael"))


@pytest.mark.parametrize(("name", "value"), [("extra_words", -1), ("max_steps", 0)])
def test_wrong_arguments_name_their_key(name, value):
    with pytest.raises(ValueError, match=rf"env\.init_args\.{name} must be at least"):
        BFCLMemory(**{name: value})
