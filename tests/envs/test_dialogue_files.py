"""LoCoMo and LongMemEval in the form in which they were published, on small files written by hand."""

import copy
import json

import pytest

from lit_agentrl.envs.dialogue_files import DialogueFiles
from lit_agentrl.envs.splits import held_out_seed
from lit_agentrl.testing import check_environment
from lit_agentrl.types import Action, Message


def locomo(number):
    return {
        "sample_id": f"conv-{number}",
        "conversation": {
            "speaker_a": "Ann",
            "speaker_b": "Bob",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Ann", "dia_id": "D1:1", "text": f"I adopted {number} cats yesterday."},
                {
                    "speaker": "Bob",
                    "dia_id": "D1:2",
                    "text": "Look!",
                    "img_url": ["https://example.org/a.jpg"],
                    "blip_caption": "a photo of a red kayak",
                    "query": "kayak",
                },
            ],
            "session_2_date_time": "9:00 am on 1 June, 2023",
            "session_2": [{"speaker": "Bob", "dia_id": "D2:1", "text": "I paint and I row."}],
            "session_10_date_time": "9:00 am on 2 June, 2023",
            "session_10": [{"speaker": "Ann", "dia_id": "D10:1", "text": "Good night."}],
        },
        "event_summary": {},
        "observation": {},
        "session_summary": {},
        "qa": [
            {"question": "What does Bob do?", "answer": "painting, rowing", "evidence": ["D2:1"], "category": 1},
            {"question": "When did Ann adopt cats?", "answer": "7 May 2023", "evidence": ["D1:1"], "category": 2},
            {"question": "Is Bob sporty?", "answer": "Likely yes", "evidence": ["D1:2; D2:1"], "category": 3},
            {"question": "How many cats?", "answer": number, "evidence": ["D1:1"], "category": 4},
            {"question": "What did Bob adopt?", "evidence": ["D1:1"], "category": 5, "adversarial_answer": "cats"},
        ],
    }


def longmemeval(question_id, question_type="single-session-user", answer="Graz"):
    return {
        "question_id": question_id,
        "question_type": question_type,
        "question": "Where do I live?",
        "answer": answer,
        "question_date": "2023/05/30 (Tue) 23:40",
        "haystack_session_ids": ["answer_1", "sharegpt_2"],
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 10:00"],
        "haystack_sessions": [
            [
                {"role": "user", "content": "I live in Graz.", "has_answer": True},
                {"role": "assistant", "content": "Nice."},
            ],
            [{"role": "user", "content": "Write a poem."}],
        ],
        "answer_session_ids": ["answer_1"],
    }


def write(path, records):
    path.write_text(json.dumps(records))
    return str(path)


@pytest.fixture
def locomo_file(tmp_path):
    return write(tmp_path / "locomo10.json", [locomo(number) for number in range(10)])


@pytest.fixture
def longmemeval_file(tmp_path):
    records = [longmemeval(f"q{number}") for number in range(20)]
    return write(tmp_path / "longmemeval_s.json", records)


def answered(env, task, answer):
    env.reset(task)
    return env.step(Action(message=Message.of("assistant", f"Answer: {answer}")))


def test_both_keep_the_contract(locomo_file, longmemeval_file):
    check_environment(lambda: DialogueFiles([locomo_file]))
    check_environment(lambda: DialogueFiles([locomo_file], delivery="turns", partial_credit=True))
    check_environment(lambda: DialogueFiles([longmemeval_file], window=1))


def first_dialogue(env):
    return {
        task.data["question"]: task for task in (env.sample_task(held_out_seed("test", n), "test") for n in range(5))
    }


def test_locomo_is_read(tmp_path):
    env = DialogueFiles({"test": [write(tmp_path / "a.json", [locomo(3)])]}, window=3)
    tasks = first_dialogue(env)
    text = env.reset(tasks["How many cats?"]).messages[0].text
    assert text.startswith("Session 1 (1:56 pm on 8 May, 2023)\nAnn: I adopted 3 cats yesterday.\nBob: Look! [shares")
    assert "[shares a photo: a photo of a red kayak]" in text
    assert text.index("Session 2 (") < text.index("Session 10 (")
    assert {task.family: (task.data["type"], task.data["delay"]) for task in tasks.values()} == {
        "dialogue_locomo_multi_hop": ("recall", 1),
        "dialogue_locomo_temporal": ("temporal", 2),
        "dialogue_locomo_open_domain": ("recall", 1),
        "dialogue_locomo_single_hop": ("recall", 2),
        "dialogue_locomo_adversarial": ("abstain", None),
    }


def test_locomo_is_scored(tmp_path):
    env = DialogueFiles({"test": [write(tmp_path / "a.json", [locomo(3)])]}, partial_credit=True)
    tasks = first_dialogue(env)
    assert answered(env, tasks["How many cats?"], "3").success is True
    assert answered(env, tasks["When did Ann adopt cats?"], "the 7 May, 2023").reward == 1.0
    # two of three gold words, and nothing else: precision 1, recall 2/3
    partly = answered(env, tasks["When did Ann adopt cats?"], "May 2023")
    assert partly.reward == pytest.approx(0.8)
    assert answered(env, tasks["What does Bob do?"], "rowing, painting").reward == 1.0
    assert answered(env, tasks["What does Bob do?"], "rowing").reward == 0.5
    assert answered(env, tasks["What does Bob do?"], "rowing, painting, judo, chess").reward == 0.5
    assert answered(env, tasks["What did Bob adopt?"], "unknown").success is True
    assert answered(env, tasks["What did Bob adopt?"], "cats").reward == 0.0
    assert answered(env, tasks["What did Bob adopt?"], "cats or unknown").reward == 0.0
    assert answered(env, tasks["How many cats?"], "unknown").reward == 0.0


def test_longmemeval_is_read(tmp_path):
    records = [
        longmemeval("q1"),
        longmemeval("q1_abs"),
        longmemeval("q2", "knowledge-update"),
        longmemeval("q3", "temporal-reasoning", answer=7),
        longmemeval("q4", "single-session-preference", answer="The user would prefer hills."),
    ]
    env = DialogueFiles({"test": [write(tmp_path / "a.json", records)]}, window=2)
    tasks = [env.sample_task(held_out_seed("test", number), "test") for number in range(4)]
    assert [(task.id, task.data["type"], task.data["answer"], task.data["delay"]) for task in tasks] == [
        ("longmemeval-q1", "recall", "Graz", 1),
        ("longmemeval-q1_abs", "abstain", "unknown", None),
        ("longmemeval-q2", "update", "Graz", 1),
        ("longmemeval-q3", "temporal", "7", 1),
    ]
    assert env.sample_task(held_out_seed("test", 4), "test").id == "longmemeval-q1"  # the preference is left out
    text = env.reset(tasks[0]).messages[0].text
    assert text.startswith("Session 1 (2023/05/20 (Sat) 02:21)\nuser: I live in Graz.\nassistant: Nice.\n\nSession 2")
    assert "(It is 2023/05/30 (Tue) 23:40.) Where do I live?" in text


def test_dialogues_are_not_shared_between_splits(locomo_file):
    env = DialogueFiles([locomo_file])
    dialogues = {
        split: {env.sample_task(seed, split).data["dialogue"] for seed in range(300)}
        for split in ("train", "val", "test")
    }
    assert {split: len(names) for split, names in dialogues.items()} == {"train": 6, "val": 2, "test": 2}
    assert len(set.union(*dialogues.values())) == 10


def test_a_question_and_its_unanswerable_twin_stay_together(tmp_path):
    records = [longmemeval(f"q{number}{end}") for number in range(30) for end in ("", "_abs")]
    env = DialogueFiles([write(tmp_path / "a.json", records)])
    homes = {}
    for split, questions in env._questions.items():
        for question in questions:
            homes.setdefault(question.id.removesuffix("_abs"), set()).add(split)
    assert all(len(splits) == 1 for splits in homes.values())


def broken(change):
    record = copy.deepcopy(locomo(1))
    change(record)
    return record


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"a": 1}, r"record 1: neither LoCoMo .* nor LongMemEval .*; there are a"),
        (broken(lambda r: r.pop("sample_id")), r"record 1: no field 'sample_id'"),
        (broken(lambda r: r["qa"][0].update(category=9)), r"qa 0: the category must be 1 to 5, got 9"),
        (broken(lambda r: r["qa"][0].pop("answer")), r"no field 'answer'"),
        (broken(lambda r: r["qa"][0].update(answer=" ... ")), r"has no word in it"),
        (broken(lambda r: r["conversation"]["session_1"][0].pop("text")), r"no field 'text'"),
        (broken(lambda r: r.update(conversation={"speaker_a": "Ann"})), r"no session_1, session_2"),
        (longmemeval("q", "riddle"), r"q: unknown question_type 'riddle'"),
        (longmemeval("q") | {"haystack_dates": []}, r"q: 2 haystack_sessions and 0 haystack_dates"),
    ],
)
def test_what_cannot_be_read_names_file_and_record(tmp_path, record, message):
    path = write(tmp_path / "a.json", [record])
    with pytest.raises(
        ValueError, match=rf"env\.init_args\.files: .*a\.json, record 1: .*{message.split(': ', 1)[-1]}"
    ):
        DialogueFiles([path])


def test_a_file_is_read_once_and_belongs_to_one_split(tmp_path):
    first = write(tmp_path / "a.json", [longmemeval("q1")])
    second = write(tmp_path / "b.json", [longmemeval("q1_abs")])
    with pytest.raises(ValueError, match="'longmemeval-q1' has been read before"):
        DialogueFiles([first, first])
    with pytest.raises(ValueError, match=r"'longmemeval-q1_abs' belongs to a dialogue of .*a\.json \(train\)"):
        DialogueFiles({"train": [first], "test": [second]})
    with pytest.raises(ValueError, match=r"no question for split 'test' \(train 1, val 0, test 0\)"):
        DialogueFiles({"train": [first]}).sample_task(0, "test")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"success_f1": 0.0}, r"success_f1 must be in \(0, 1\], got 0\.0"),
        ({"files": []}, "files: name at least one file"),
        ({"files": {"dev": ["a.json"]}}, "files must be a list or name splits train, val, test"),
    ],
)
def test_wrong_arguments_name_their_key(locomo_file, arguments, message):
    with pytest.raises(ValueError, match=rf"env\.init_args\.{message}"):
        DialogueFiles(**({"files": [locomo_file]} | arguments))


def test_another_file_than_that_of_the_task_is_told(tmp_path, locomo_file):
    env = DialogueFiles([write(tmp_path / "a.json", [longmemeval("q1"), longmemeval("q2"), longmemeval("q3")])])
    task = DialogueFiles([locomo_file]).sample_task(0, "train")
    with pytest.raises(ValueError, match="the files have no dialogue 'locomo-conv-"):
        env.reset(task)
