"""Preference files: their forms, and what is wrong with them."""

import json
import sys
import types

import pytest
from preference_support import batches, data_of, said, sums, texts, unpaired, write_lines
from rl_support import EndingPolicy

from datamodules._preference_files import read_preferences
from lit_agentrl.algorithms import DPO, GRPO, KTO, SFT, StepDPO
from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.comparisons import SIDE, Side

FORMS = {
    "plain": {"prompt": "1 + 1", "chosen": "2", "rejected": "3"},
    "conversational": {
        "prompt": [said("user", "1 + 1")],
        "chosen": [said("assistant", "2")],
        "rejected": [said("assistant", "3")],
    },
    "conversational, implicit": {
        "chosen": [said("user", "1 + 1"), said("assistant", "2")],
        "rejected": [said("user", "1 + 1"), said("assistant", "3")],
    },
    "webgpt": {
        "question": {"full_text": "1 + 1"},
        "answer_0": "3",
        "answer_1": "2",
        "score_0": -1.0,
        "score_1": 1.0,
    },
    "search_nodes": {
        "messages": [said("user", "1 + 1")],
        "candidates": [{"reply": "3", "q": 0.1}, {"reply": [said("assistant", "2")], "q": 0.9}],
    },
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("given", [True, False])
def test_every_form_of_a_pair_gives_the_same_ids(tmp_path, form, given):
    module = (StepDPO if form == "search_nodes" else DPO)(EndingPolicy(), seed=0)
    format = form.partition(",")[0] if given else "auto"
    module, (batch,) = batches(data_of(tmp_path, [FORMS[form]], format=format), module=module)
    chat = module.policy.chat
    chosen, rejected = (chat.encode(text) for text in ("2", "3"))
    assert texts(module, batch) == [("<|im_start|>user\n1 + 1<|im_end|><|im_start|>assistant\n", "2", "3")]
    # Each answer is trained with the id that ends it, and one pair weighs 1.
    assert int((batch.weight != 0).sum()) == len(chosen) + len(rejected) + 2
    assert set(batch.weight[batch.weight != 0].tolist()) == {1.0}


def test_earlier_replies_of_the_prompt_are_context(tmp_path):
    prompt = [said("user", "a"), said("assistant", "b"), said("user", "c")]
    record = {"prompt": prompt, "chosen": [said("assistant", "d")], "rejected": [said("assistant", "e")]}
    module, (batch,) = batches(data_of(tmp_path, [record]))
    ((shared, chosen, rejected),) = texts(module, batch)
    assert "b<|im_end|>" in shared
    assert (chosen, rejected) == ("d", "e")


def test_replies_after_the_prompt_are_turns(tmp_path):
    later = [said("assistant", "b"), said("user", "c"), said("assistant", "d")]
    record = {"prompt": [said("user", "a")], "chosen": later, "rejected": [said("assistant", "e")]}
    _, (batch,) = batches(data_of(tmp_path, [record]))
    trained = batch.reason == TokenReason.TRAINED
    chosen = trained & (batch.columns[SIDE] == Side.CHOSEN)
    assert batch.turn[batch.segment[chosen]].tolist() == [0, 0, 1, 1]


def test_answers_that_are_judged_alone(tmp_path):
    module, (batch,) = batches(data_of(tmp_path, unpaired(4)), module=KTO(EndingPolicy(), seed=0))
    sides = batch.columns[SIDE][batch.weight != 0]
    assert (sides == Side.CHOSEN).sum() == (sides == Side.REJECTED).sum() == 6  # two answers of three ids each
    # Every prompt has the answer to another one beside it, which is not trained.
    chat = module.policy.chat
    for number in range(4):
        mine = batch.trajectory[batch.segment] == number
        own = chat.decode(batch.token_ids[mine & (batch.weight != 0)].tolist())
        other = chat.decode(batch.token_ids[mine & (batch.columns[SIDE] == Side.MISMATCHED)].tolist())
        assert other.strip()
        assert own not in other


def test_pairs_are_two_judgements_for_kto(tmp_path):
    _, (batch,) = batches(data_of(tmp_path, sums(2)), module=KTO(EndingPolicy(), seed=0))
    assert int(batch.trajectory.max()) == 3


def test_ties_of_webgpt_are_dropped_and_counted(tmp_path):
    tie = FORMS["webgpt"] | {"score_0": 0.0, "score_1": 0.0}
    _, (batch,) = batches(data_of(tmp_path, [tie, FORMS["webgpt"], tie]))
    assert batch.metrics["preferences/ties"] == 2.0
    assert batch.metrics["train/comparisons"] == 1.0


def test_siblings_with_a_small_gap_make_no_pair(tmp_path):
    node = FORMS["search_nodes"] | {"candidates": [{"reply": str(n), "q": n / 10} for n in (1, 2, 9)]}
    _, (batch,) = batches(data_of(tmp_path, [node]), module=StepDPO(EndingPolicy(), min_q_gap=0.5, seed=0))
    # 9 against 1 and 9 against 2.
    assert batch.metrics["train/comparisons"] == 2.0


def test_json_is_a_list_of_records(tmp_path):
    (tmp_path / "pairs.json").write_text(json.dumps(sums(3)))
    assert len(read_preferences([str(tmp_path / "pairs.json")]).preferences) == 3


def fake_pyarrow(monkeypatch, records):
    class ArrowError(Exception):
        pass

    class ParquetFile:
        def __init__(self, path):
            if path.read_bytes() != b"PAR1":
                raise ArrowError("no magic bytes")

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *error: None  # noqa: E731

        def iter_batches(self):
            return [types.SimpleNamespace(to_pylist=lambda: records)]

    pyarrow, parquet = types.ModuleType("pyarrow"), types.ModuleType("pyarrow.parquet")
    pyarrow.ArrowException, parquet.ParquetFile = ArrowError, ParquetFile
    monkeypatch.setitem(sys.modules, "pyarrow", pyarrow)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)


def test_parquet_through_pyarrow(tmp_path, monkeypatch):
    fake_pyarrow(monkeypatch, sums(3))
    (tmp_path / "pairs.parquet").write_bytes(b"PAR1")
    assert len(read_preferences([str(tmp_path / "pairs.parquet")]).preferences) == 3
    (tmp_path / "pairs.parquet").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"data\.init_args\.files: .*pairs\.parquet: cannot be read as Parquet"):
        read_preferences([str(tmp_path / "pairs.parquet")])


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "pairs.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"pairs\.parquet: reading Parquet needs pyarrow: pip install"):
        read_preferences([str(tmp_path / "pairs.parquet")])


PLAIN, TALK, WEBGPT, NODE = (FORMS[form] for form in ("plain", "conversational", "webgpt", "search_nodes"))
ALONE, IMPLICIT = unpaired(1)[0], FORMS["conversational, implicit"]
WRONG = {
    # a right record, what is changed in it -> what is said
    "identical answers": (PLAIN, {"rejected": "2"}, "chosen and rejected answers are identical"),
    "identical conversations": (TALK, {"rejected": TALK["chosen"]}, "chosen and rejected answers are identical"),
    "an empty answer": (PLAIN, {"rejected": "  "}, "'rejected' is empty"),
    "an empty message": (TALK, {"chosen": [said("assistant", "")]}, "'chosen' is empty"),
    "no message": (TALK, {"chosen": []}, "'chosen' must end with a message of role assistant"),
    "an answer of the user": (TALK, {"chosen": [said("user", "x")]}, "'chosen' must end with a message of role"),
    "an empty prompt": (PLAIN, {"prompt": ""}, "field 'prompt' is empty"),
    "a prompt without messages": (TALK, {"prompt": []}, "field 'prompt' is empty"),
    "a missing field": (PLAIN, {"rejected": None}, "field 'rejected' is missing"),
    "a wrong type": (PLAIN, {"chosen": 3}, "field 'chosen' must be str, not int"),
    "a wrong role": (TALK, {"prompt": [said("bot", "x")]}, "role one of system, user, assistant, tool"),
    "a wrong message": (TALK, {"prompt": ["x"]}, "must be a list of {role, content}"),
    "nothing in common": (IMPLICIT, {"rejected": [said("user", "b")]}, "chosen and rejected do not begin alike"),
    "a wrong label": (ALONE, {"label": 2}, "field 'label' must be true or false"),
    "a label as text": (ALONE, {"label": "yes"}, "field 'label' must be bool or int, not str"),
    "a wrong score": (WEBGPT, {"score_0": float("nan")}, "field 'score_0' must be a finite number"),
    "a missing question": (WEBGPT, {"question": {}}, "field 'full_text' is missing"),
    "a candidate without q": (NODE, {"candidates": [{"reply": "x"}]}, "field 'q' is missing"),
    "a candidate that is text": (NODE, {"candidates": ["x"]}, "candidate 0 must be an object with reply and q"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_names_key_file_and_line(tmp_path, name):
    right, change, message = WRONG[name]
    wrong = {key: value for key, value in (right | change).items() if value is not None}
    file = write_lines(tmp_path / "bad.jsonl", [right, wrong])
    with pytest.raises(ValueError, match=r"data\.init_args\.files: .*bad\.jsonl:2: ") as caught:
        read_preferences([file])
    assert message in str(caught.value)


def test_a_record_is_an_object(tmp_path):
    with pytest.raises(ValueError, match=r"bad\.jsonl:2: a record must be an object with fields, not list"):
        read_preferences([write_lines(tmp_path / "bad.jsonl", [PLAIN, ["x"]])])


def test_unknown_forms_list_what_is_known(tmp_path):
    file = write_lines(tmp_path / "bad.jsonl", [{"text": "x"}])
    with pytest.raises(ValueError, match=r"bad\.jsonl:1: fields text are of no known form: .*webgpt has question"):
        read_preferences([file])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.jsonl", None, r"absent\.jsonl: cannot be read"),
        ("broken.jsonl", b'{"prompt": 1', r"broken\.jsonl:1: is not JSON"),
        ("bytes.jsonl", b"\xff\xfe", r"bytes\.jsonl: cannot be read"),
        ("broken.json", b'[\n{"prompt": }]', r"broken\.json:2: is not JSON"),
        ("object.json", b"{}", r"object\.json:1: must hold a list"),
        ("pairs.csv", b"a,b", r"pairs\.csv: its name must end in \.jsonl, \.json or \.parquet"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"data\.init_args\.files: .*" + message):
        read_preferences([str(tmp_path / name)])


@pytest.mark.parametrize(
    ("kind", "records", "message"),
    [
        (DPO, unpaired(2), r"preferences\.jsonl:1 is a single answer, but DPO learns from pairs; use .*KTO"),
        (DPO, [NODE], r"preferences\.jsonl:1 is a node of a search, from which DPO does not learn; use .*StepDPO"),
        (StepDPO, sums(2), r"StepDPO learns from nodes of a search"),
        (GRPO, sums(2), r"model\.class_path: GRPO does not learn from preferences"),
        (SFT, sums(2), r"model\.class_path: SFT does not learn from preferences"),
        (DPO, [FORMS["webgpt"] | {"score_1": -1.0}], r"data\.init_args\.files: nothing to learn from in .*1 ties"),
    ],
)
def test_what_does_not_go_with_the_algorithm_is_refused(tmp_path, kind, records, message):
    with pytest.raises(ValueError, match=message):
        batches(data_of(tmp_path, records), module=kind(EndingPolicy(), seed=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, r"data\.init_args\.batch_size is 0"),
        ({"held_out": 1.0}, r"data\.init_args\.held_out is 1\.0: it must lie in \[0, 1\)"),
        ({"max_context": 0}, r"data\.init_args\.max_context is 0"),
        ({"format": "csv"}, r"data\.init_args\.format is 'csv': it must be one of auto, plain"),
        ({"env": {"class_path": "rl_envs.Parity"}}, r"agent: validation on episodes"),
    ],
)
def test_values_that_do_not_fit_name_their_key(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        data_of(tmp_path, sums(2), **options)


def test_a_batch_of_one_gives_kto_no_baseline(tmp_path):
    with pytest.raises(ValueError, match=r"data\.init_args\.batch_size is 1: KTO"):
        batches(data_of(tmp_path, sums(2), batch_size=1), module=KTO(EndingPolicy(), seed=0))
