"""Made dialogues: an independent reader of the text agrees with every answer, and nothing is paid for guessing."""

import re
from collections import Counter

import pytest

from lit_agentrl.envs.dialogue_facts import QUESTION_TYPES
from lit_agentrl.envs.dialogue_memory import DialogueMemory, delay_bucket
from lit_agentrl.testing import check_environment
from lit_agentrl.types import Action, Message, ToolCall


def reply(text):
    return Action(message=Message.of("assistant", text))


def look_up(name, **arguments):
    call = ToolCall(id="c0", name=name, arguments=arguments)
    return Action(message=Message.of("assistant", "", tool_calls=(call,)))


def tasks_of(env, count=80, split="train"):
    return [env.sample_task(seed, split) for seed in range(count)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"delivery": "turns"},
        {"window": 6},
        {"window": 0, "sessions": 20, "facts": 30, "distractors": 0},
        {"sessions": 2, "facts": 0, "update_rate": 1.0, "withdraw_rate": 0.0},
    ],
)
def test_it_keeps_the_contract(options):
    check_environment(lambda: DialogueMemory(**options), seeds=range(10))


STATED = re.compile(
    r"(?:By the way, |You should know that |News: )?"
    r"(\w+(?:'s)?) (.+?) (?:has changed: it )?is (?:now )?(\w+)(?: now)?\."
)
WITHDRAWN = re.compile(r"(?:Forget what I said about|Scratch) (\w+(?:'s)?) (.+?)[;:]")


def read(task):
    """Answer a question by reading the sessions, without knowing how they were made."""
    sessions, question = task.data["sessions"], task.data["question"]
    after = re.fullmatch(r"What was (\S+) (.+) right after session (\d+)\?", question)
    if after:
        whose, what, last = after[1], after[2], int(after[3])
    else:
        whose, what = re.fullmatch(r"What is (\S+) (.+)\?", question).groups()
        last = len(sessions)
    held, settled = "unknown", None
    for number, session in enumerate(sessions[:last], start=1):
        for line in session["lines"]:
            taken_back, stated = WITHDRAWN.match(line), STATED.match(line)
            if taken_back and (taken_back[1].lower(), taken_back[2]) == (whose.lower(), what):
                held, settled = "unknown", number
            elif stated and (stated[1].lower(), stated[2]) == (whose.lower(), what):
                held, settled = stated[3], number
    return held, settled


@pytest.mark.parametrize("sessions", [2, 7])
def test_a_reader_of_the_text_agrees_with_every_answer_and_delay(sessions):
    env = DialogueMemory(sessions=sessions, facts=12, update_rate=0.4)
    seen = Counter()
    for task in tasks_of(env, 300):
        answer, settled = read(task)
        assert answer == task.data["answer"], task.data
        assert task.data["delay"] == (None if settled is None else sessions - settled)
        seen[task.data["type"]] += 1
    assert min(seen[kind] for kind in QUESTION_TYPES) > 40  # 75 expected


def test_types_mean_what_they_say():
    for kind in QUESTION_TYPES:
        env = DialogueMemory(types=(kind,))
        for task in tasks_of(env, 30):
            assert task.family == f"dialogue_{kind}"
            assert (task.data["answer"] == "unknown") == (kind == "abstain")
            text = "\n".join(line for session in task.data["sessions"] for line in session["lines"])
            if kind == "update":  # an older value stands in the dialogue, and is wrong
                whose = re.fullmatch(r"What is (.+)\?", task.data["question"])[1]
                assert len(re.findall(rf"(?i)\b{re.escape(whose)} (?:is|has changed)", text)) >= 2


def test_delays_cover_the_dialogue():
    env = DialogueMemory(sessions=5, types=("recall",))
    assert {task.data["delay"] for task in tasks_of(env, 100)} == {0, 1, 2, 3, 4}


def test_the_window_and_what_is_before_it():
    env = DialogueMemory(sessions=6, window=2)
    task = env.sample_task(0, "train")
    opening = env.reset(task)
    text = opening.messages[0].text
    assert text.startswith("There were 6 sessions. Sessions 1 to 4 can be looked up.\n\nSession 5 (day ")
    assert [tool.name for tool in opening.tools] == ["search_sessions", "read_session"]
    read = env.step(look_up("read_session", number=1)).observation.messages[0].text
    assert read.splitlines()[1:] == task.data["sessions"][0]["lines"]
    wrong = env.step(look_up("read_session", number=7)).observation.messages[0].text
    assert wrong == "Error: read_session: there is no session 7; there are 1 to 6"
    assert "argument 'number'" in env.step(look_up("read_session", number="x")).observation.messages[0].text
    assert "there is no tool 'forget'" in env.step(look_up("forget")).observation.messages[0].text


def test_a_window_of_all_sessions_needs_no_functions():
    env = DialogueMemory(sessions=3, window=3)
    opening = env.reset(env.sample_task(0, "train"))
    assert opening.tools == ()
    assert opening.messages[0].text.startswith("Session 1 (day ")


def test_a_search_finds_what_settles_the_answer():
    env = DialogueMemory(sessions=12, facts=20, update_rate=0.3, window=0)
    found = 0
    tasks = [task for task in tasks_of(env, 100) if task.data["delay"] is not None]
    for task in tasks:
        env.reset(task)
        text = env.step(look_up("search_sessions", query=task.data["query"])).observation.messages[0].text
        settled = len(task.data["sessions"]) - task.data["delay"]
        found += f"Session {settled} (" in text
    assert found / len(tasks) > 0.95
    env.reset(tasks[0])
    nothing = env.step(look_up("search_sessions", query="zeppelin")).observation.messages[0].text
    assert nothing == "Nothing was found."


def test_sessions_as_turns():
    env = DialogueMemory(sessions=3, delivery="turns")
    task = env.sample_task(1, "train")
    assert env.reset(task).messages[0].text.startswith("Session 1 (day ")
    assert env.step(reply("Noted.")).observation.messages[0].text.startswith("Session 2 (day ")
    # An answer before the question is no answer.
    assert env.step(reply(f"Answer: {task.data['answer']}")).observation.messages[0].text.startswith("Session 3 (day ")
    asked = env.step(reply("")).observation
    assert asked.messages[0].text.startswith(task.data["question"])
    assert asked.tools == ()
    assert env.step(reply(f"Answer: {task.data['answer']}")).success is True


def test_success_is_told_by_type_and_delay():
    env = DialogueMemory(sessions=6, types=("update",))
    task = next(task for task in tasks_of(env) if task.data["delay"] == 3)
    env.reset(task)
    result = env.step(reply(f"Answer: {task.data['answer']}"))
    assert result.reward_parts == {"answer": 1.0, "answered": 1.0, "type_update": 1.0, "delay_2-3": 1.0}
    env.reset(task)
    assert env.step(reply("Answer: x")).reward_parts["delay_2-3"] == 0.0


@pytest.mark.parametrize(("delay", "bucket"), [(0, "0"), (1, "1"), (2, "2-3"), (3, "2-3"), (4, "4-7"), (9, "8-15")])
def test_delays_are_reported_in_ranges(delay, bucket):
    assert delay_bucket(delay) == bucket


def test_no_free_reward():
    env = DialogueMemory(types=("update", "recall", "temporal"), window=6)
    for task in tasks_of(env, 40):
        everything = "\n".join(line for session in task.data["sessions"] for line in session["lines"])
        gold = task.data["answer"]
        for text in (
            "",
            gold,  # not marked as the answer
            "Answer:",
            "Answer: unknown",
            f"Answer: {everything}",
            f"Answer: {gold} or 111",
            f"Answer: {task.data['question']}",
            f"Answer: 111\nAnswer: {gold}",
        ):
            env.reset(task)
            assert env.step(reply(text)).reward == 0.0, text


def test_every_state_has_a_key_of_what_was_looked_up():
    env = DialogueMemory()
    task = tasks_of(env)[0]

    def keys(*calls):
        return [env.reset(task).state_key, *(env.step(call).observation.state_key for call in calls)]

    search, read_first = look_up("search_sessions", query="name"), look_up("read_session", number=1)
    assert keys(search, read_first) == keys(search, read_first)
    assert len({*keys(search, read_first), *keys(read_first, search)}) == 5  # they share the beginning


def test_too_many_lookups_are_a_wrong_answer():
    env = DialogueMemory(max_lookups=2)
    env.reset(env.sample_task(0, "train"))
    ended = [env.step(look_up("read_session", number=1)).terminated for _ in range(3)]
    assert ended == [False, False, True]


def test_a_demonstration_leaves_the_running_episode_alone():
    env = DialogueMemory()
    first, second = env.sample_task(0, "train"), env.sample_task(1, "train")
    env.reset(first)
    env.demonstrate(second)
    assert env.step(reply(f"Answer: {first.data['answer']}")).success is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sessions": 1}, "sessions must be at least 2, got 1"),
        ({"facts": 46}, "facts must be 0 to 45, got 46"),
        ({"distractors": -1}, "distractors must be at least 0"),
        ({"update_rate": 1.1}, "update_rate must be from 0 to 1, got 1.1"),
        ({"update_rate": 0.7, "withdraw_rate": 0.7}, "update_rate and withdraw_rate must not exceed 1 together"),
        ({"types": ("guess",)}, "types must be some of recall, update, temporal, abstain"),
        ({"window": -1}, "window must be at least 0"),
        ({"delivery": "post"}, "delivery must be one of prompt, turns"),
        ({"max_lookups": 0}, "max_lookups must be at least 1"),
    ],
)
def test_wrong_arguments_name_their_key(arguments, message):
    with pytest.raises(ValueError, match=rf"env\.init_args\.{message}"):
        DialogueMemory(**arguments)
