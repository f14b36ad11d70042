"""An archive that changes: its history is consistent, and answers count only with the source that holds now."""

import re

import pytest

from lit_agentrl.envs.archive import ATTRIBUTES, Controls, make_archive
from lit_agentrl.envs.calls import call_message
from lit_agentrl.envs.knowledge_base import KnowledgeBase
from lit_agentrl.testing import check_environment
from lit_agentrl.types import Action, Message

CONTROLS = Controls(places=6, days=60, changes_per_day=2, letters_per_day=0.3)


@pytest.fixture(scope="module")
def env():
    return KnowledgeBase()


def task_of(env, kind, *, changed_by=None):
    """Return a task of a kind; `changed_by`: how the asked fact changes, by a new notice or a revision."""
    for seed in range(300):
        task = env.sample_task(seed, "train")
        if task.data["kind"] == kind and changed_by in (None, how_it_changes(task)):
            return task
    raise AssertionError(kind)


def fact_of(task):
    archive = make_archive(task.data["archive"], task.split, CONTROLS)
    (fact,) = [fact for fact in archive.facts if (fact.place, fact.what) == (task.data["place"], task.data["what"])]
    return archive, fact


def how_it_changes(task):
    _, fact = fact_of(task)
    ahead = [s for s in fact.history if task.data["day"] < s.day <= task.data["day"] + 8]
    # The first change is in the second step, so that a demonstration meets it.
    if not ahead or ahead[0].day != task.data["day"] + 2:
        return None
    return "new" if ahead[0].sentence.startswith("From day") else "revised"


def call(env, *calls):
    return env.step(Action(message=call_message(list(calls), number=0)))


def said(result):
    return [message.text for message in result.observation.messages]


def answer(env, text):
    return env.step(Action(message=Message.of("assistant", f"Answer: {text}")))


def quote(statement):
    return ("quote", {"document": statement.document, "sentence": statement.sentence})


def test_it_keeps_the_contract():
    check_environment(KnowledgeBase, seeds=range(30))
    check_environment(lambda: KnowledgeBase(announce=False, changing_share=1.0, archives=2), seeds=range(10))


def test_the_newest_notice_that_states_a_fact_says_what_holds():
    # Read from the texts with a parser of its own.
    for number in range(4):
        archive = make_archive(number, "train", CONTROLS)
        for day in range(0, 61, 5):
            stated = {}
            for document in archive.documents.values():
                if document.on(day) is None or document.kind == "letter":
                    continue
                head, _, text = document.text(day).partition(": ")
                since = int(head.split()[-1])
                for what, place, value in re.findall(r"[Tt]he ([a-z ]+) of (\w+) is (?:now )?([\w:]+)\.", text):
                    stated.setdefault((place, what), []).append((since, value, document.id))
            for fact in archive.facts:
                ranked = sorted(stated[fact.place, fact.what])
                assert ranked[-1] == (ranked[-1][0], fact.on(day).value, fact.on(day).document)
                assert [since for since, *_ in ranked].count(ranked[-1][0]) == 1


def test_values_never_come_back_and_are_single_words():
    assert all(re.fullmatch(r"[\w:]+", value) for values in ATTRIBUTES.values() for value in values)
    for fact in make_archive(0, "train", CONTROLS).facts:
        values = [statement.value for statement in fact.history]
        assert len(set(values)) == len(values)
    # A place that changes all year uses up the names of harbour masters, and goes on with other facts.
    restless = Controls(places=1, days=365, changes_per_day=1, letters_per_day=0.0)
    masters = [fact for fact in make_archive(0, "train", restless).facts if fact.what == "harbour master"]
    assert len(masters[0].history) == 30


def test_letters_state_what_does_not_hold():
    archive = make_archive(1, "train", CONTROLS)
    letters = [document for document in archive.documents.values() if document.kind == "letter"]
    assert letters
    for letter in letters:
        (hearsay,) = [s for s in letter.versions[0].sentences if letter.place in s]
        what = next(what for what in ATTRIBUTES if f"the {what} of" in hearsay)
        (fact,) = [fact for fact in archive.facts if (fact.place, fact.what) == (letter.place, what)]
        assert hearsay.rstrip(".").split()[-1] != fact.on(letter.versions[0].day).value


def test_a_fact_is_asked_on_several_days_and_has_other_answers(env):
    answers = {}
    for seed in range(400):
        task = env.sample_task(seed, "train")
        _, fact = fact_of(task)
        answers.setdefault((task.data["archive"], fact.place, fact.what), set()).add(fact.on(task.data["day"]).value)
    assert max(map(len, answers.values())) >= 2


def test_splits_have_places_of_their_own(env):
    places = {
        split: {env.sample_task(seed, split).data["place"] for seed in range(200)} for split in ("train", "val", "test")
    }
    assert len(places["train"] | places["val"] | places["test"]) == sum(map(len, places.values()))


@pytest.mark.parametrize("announce", [True, False])
def test_demonstrations_solve_their_tasks_and_look_again_after_a_change(announce):
    env = KnowledgeBase(announce=announce)
    parts = set()
    for seed in range(60):
        task = env.sample_task(seed, "test")
        shown = env.demonstrate(task)
        assert env.reset(task).messages == shown.messages[:1]
        for message in shown.messages:
            if message.role == "assistant":
                result = env.step(Action(message=message))
        assert (result.success, result.reward) == (True, 1.0)
        parts |= set(result.reward_parts)
        if "after_change" in result.reward_parts:
            assert sum(bool(m.tool_calls) for m in shown.messages) >= 4
    assert parts == {"answer", "quoted", "stale", "after_change", "without_change"}


def test_answer_and_quotation_are_both_needed(env):
    task = task_of(env, "steady")
    _, fact = fact_of(task)
    now = fact.on(task.data["day"])
    wanted = {"answer": 1.0, "quoted": 1.0, "stale": 0.0, "without_change": 1.0}
    env.reset(task)
    call(env, quote(now))
    result = answer(env, now.value)
    assert (result.terminated, result.success, result.reward, result.reward_parts) == (True, True, 1.0, wanted)
    env.reset(task)
    result = answer(env, f"{now.value}.")
    assert (result.success, result.reward) == (False, 0.0)
    assert (result.reward_parts["answer"], result.reward_parts["quoted"]) == (1.0, 0.0)
    env.reset(task)
    call(env, quote(now))
    result = answer(env, "nothing")
    assert (result.success, result.reward_parts["answer"], result.reward_parts["quoted"]) == (False, 0.0, 1.0)
    lenient = KnowledgeBase(answer_weight=0.25)
    lenient.reset(task)
    assert answer(lenient, now.value).reward == 0.25


@pytest.mark.parametrize("how", ["new", "revised"])
def test_what_was_true_when_it_was_read_is_stale_after_a_change(env, how):
    task = task_of(env, "changing", changed_by=how)
    _, fact = fact_of(task)
    before, after = fact.on(task.data["day"]), fact.on(task.data["day"] + 2)
    env.reset(task)
    assert before.sentence in said(call(env, ("search", {"query": f"{fact.what} {fact.place}"})))[0]
    (text,) = said(call(env, quote(before)))
    assert f"on {fact.place} {'is new' if how == 'new' else 'was revised'}" in text
    # A revised notice does not have the sentence any more; beside a new one the old notice is still there.
    assert ("has no such sentence" in text) == (how == "revised")
    assert env.step(Action(message=Message.of("assistant", f"Answer: {before.value}"))).reward_parts == {
        "answer": 0.0,
        "quoted": 0.0,
        "stale": 1.0,
        "after_change": 0.0,
    }
    env.reset(task)
    call(env, quote(before))
    call(env, ("search", {"query": fact.place}))
    call(env, quote(after))
    result = answer(env, after.value)
    assert (result.success, result.reward_parts["after_change"]) == (True, 1.0)


def test_a_quotation_that_a_revision_overtakes_does_not_count(env):
    task = task_of(env, "changing", changed_by="revised")
    _, fact = fact_of(task)
    before, after = fact.on(task.data["day"]), fact.on(task.data["day"] + 2)
    env.reset(task)
    assert said(call(env, quote(before)))[0].endswith(f"Quoted from {before.document}.")
    call(env, ("search", {"query": "x"}))
    result = answer(env, after.value)
    assert (result.reward_parts["answer"], result.reward_parts["quoted"]) == (1.0, 0.0)


def test_neither_letters_nor_older_notices_are_sources(env):
    task = task_of(env, "changing", changed_by="new")
    archive, fact = fact_of(task)
    before, after = fact.on(task.data["day"]), fact.on(task.data["day"] + 2)
    env.reset(task)
    for _ in range(2):
        call(env, quote(after))
    call(env, quote(before))  # the old notice still says so
    assert answer(env, after.value).reward_parts["quoted"] == 0.0
    letter = next(d for d in archive.documents.values() if d.kind == "letter" and d.on(task.data["day"]))
    env.reset(task)
    call(env, ("quote", {"document": letter.id, "sentence": letter.versions[0].sentences[0]}))
    assert answer(env, after.value).reward_parts["quoted"] == 0.0


def test_a_reply_with_several_calls_takes_one_day(env):
    task = task_of(env, "steady")
    _, fact = fact_of(task)
    env.reset(task)
    texts = said(call(env, ("search", {"query": fact.place}), quote(fact.on(task.data["day"]))))
    assert texts[0].startswith(f"It is day {task.data['day'] + 1}.")
    assert texts[1] == f"Quoted from {fact.on(task.data['day']).document}."
    assert said(call(env, ("search", {"query": "zzz"})))[0].endswith("Nothing was found.")


def test_changes_are_announced_unless_that_is_off(env):
    task = task_of(env, "changing", changed_by="new")
    for one, announced in ((env, True), (KnowledgeBase(announce=False), False)):
        one.reset(task)
        call(one, ("search", {"query": "x"}))
        assert ("Changed since yesterday: " in said(call(one, ("search", {"query": "x"})))[0]) is announced


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("quote", {"document": "N999", "sentence": "x"}), "there is no document 'N999' on day"),
        (("quote", {"document": "N1", "sentence": "The"}), "N1 has no such sentence on day"),
        (("quote", {"document": "N1"}), "argument 'sentence' is missing"),
        (("search", {"query": 3}), "argument 'query' must be string"),
        (("read", {}), "there is no tool 'read'; available: search, quote"),
    ],
)
def test_wrong_calls_are_told(env, wrong, words):
    env.reset(task_of(env, "steady"))
    text = said(call(env, wrong))[0].partition("\n")[2]
    assert text.startswith("Error: ")
    assert words in text


def test_a_document_of_tomorrow_is_not_there_yet(env):
    task = task_of(env, "changing", changed_by="new")
    _, fact = fact_of(task)
    env.reset(task)
    after = fact.on(task.data["day"] + 2)
    assert f"there is no document '{after.document}'" in said(call(env, quote(after)))[0]
    assert said(call(env, quote(after)))[0].endswith(f"Quoted from {after.document}.")


def test_one_reply_with_calls_too_many_is_wrong():
    env = KnowledgeBase(max_steps=5)
    env.reset(env.sample_task(0, "train"))
    ended = [call(env, ("search", {"query": "x"})).terminated for _ in range(6)]
    assert ended == [False] * 5 + [True]
    with pytest.raises(RuntimeError, match="call reset first"):
        answer(env, "x")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"archives": 0}, r"archives must be at least 1"),
        ({"days": 19}, r"days must be at least 20"),
        ({"max_steps": 4}, r"max_steps must be at least 5"),
        ({"days": 20, "max_steps": 18}, r"days must be more than env\.init_args\.max_steps and two, got 20"),
        ({"places": 13}, r"places must be 1 to 12"),
        ({"changes_per_day": 7}, r"changes_per_day must be 1 to env\.init_args\.places \(6\)"),
        ({"changing_share": 1.5}, r"changing_share must be from 0 to 1"),
        ({"letters_per_day": -0.1}, r"letters_per_day must be from 0 to 1"),
        ({"answer_weight": 2}, r"answer_weight must be from 0 to 1"),
    ],
)
def test_wrong_arguments_name_their_key(arguments, words):
    with pytest.raises(ValueError, match=rf"env\.init_args\.{words}"):
        KnowledgeBase(**arguments)


def test_a_task_of_other_settings_is_refused(env):
    smaller = KnowledgeBase(places=2)
    known = {fact.place for fact in make_archive(0, "train", smaller.controls).facts}
    tasks = [env.sample_task(seed, "train") for seed in range(200)]
    strange = next(task for task in tasks if task.data["archive"] == 0 and task.data["place"] not in known)
    with pytest.raises(ValueError, match=r"was made with other env\.init_args"):
        smaller.reset(strange)
