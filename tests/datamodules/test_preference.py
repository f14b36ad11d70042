"""Preference files: their forms, what is wrong with them, who is held out, and in which order pairs come."""

import copy
import json
import sys
import types
import warnings

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from preference_support import sums, write_lines
from rl_support import EndingPolicy, trainer

from callbacks import TrajectoryLogger
from datamodules import PreferenceDataModule
from datamodules._preference_files import read_preferences
from datamodules.preference import is_held_out
from lit_agentrl.agents.tool_agent import ToolAgent
from lit_agentrl.algorithms import DMPO, DPO, ETO, GRPO, KTO, SFT, StepDPO
from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.comparisons import SIDE, Side


def said(role, text):
    return {"role": role, "content": text}


def unpaired(count):
    return [{"prompt": f"{n}?", "completion": f"{n}!", "label": n % 2 == 0} for n in range(count)]


def data(tmp_path, records, **options):
    file = write_lines(tmp_path / "preferences.jsonl", records)
    return PreferenceDataModule([file], **({"batch_size": 4, "held_out": 0.0, "seed": 0} | options))


def batches(datamodule, *, module=None, epochs=1, **options):
    """Run epochs with a module that only keeps what it is given."""
    module, seen = module or DPO(EndingPolicy(), seed=0), []
    module.training_step = lambda batch, batch_idx: seen.append(batch)
    trainer(max_epochs=epochs, **options).fit(module, datamodule=datamodule)
    return module, seen


def texts(module, batch):
    """Prompt, chosen and rejected text of every comparison of a batch."""
    chat, found = module.policy.chat, []
    for number in sorted(set(batch.trajectory.tolist())):
        mine = batch.trajectory[batch.segment] == number
        trained = batch.reason == TokenReason.TRAINED
        sides = [mine & trained & (batch.columns[SIDE] == side) for side in (Side.CHOSEN, Side.REJECTED)]
        shared = batch.token_ids[mine & (batch.columns[SIDE] == Side.SHARED)].tolist()
        found.append((chat.decode(shared), *(chat.decode(batch.token_ids[side].tolist()) for side in sides)))
    return found


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
    module, (batch,) = batches(data(tmp_path, [FORMS[form]], format=format), module=module)
    chat = module.policy.chat
    chosen, rejected = (chat.encode(text) for text in ("2", "3"))
    assert texts(module, batch) == [("<|im_start|>user\n1 + 1<|im_end|><|im_start|>assistant\n", "2", "3")]
    # Each answer is trained with the id that ends it, and one pair weighs 1.
    assert int((batch.weight != 0).sum()) == len(chosen) + len(rejected) + 2
    assert set(batch.weight[batch.weight != 0].tolist()) == {1.0}


def test_earlier_replies_of_the_prompt_are_context(tmp_path):
    prompt = [said("user", "a"), said("assistant", "b"), said("user", "c")]
    record = {"prompt": prompt, "chosen": [said("assistant", "d")], "rejected": [said("assistant", "e")]}
    module, (batch,) = batches(data(tmp_path, [record]))
    ((shared, chosen, rejected),) = texts(module, batch)
    assert "b<|im_end|>" in shared
    assert (chosen, rejected) == ("d", "e")


def test_replies_after_the_prompt_are_turns(tmp_path):
    later = [said("assistant", "b"), said("user", "c"), said("assistant", "d")]
    record = {"prompt": [said("user", "a")], "chosen": later, "rejected": [said("assistant", "e")]}
    _, (batch,) = batches(data(tmp_path, [record]))
    trained = batch.reason == TokenReason.TRAINED
    chosen = trained & (batch.columns[SIDE] == Side.CHOSEN)
    assert batch.turn[batch.segment[chosen]].tolist() == [0, 0, 1, 1]


def test_answers_that_are_judged_alone(tmp_path):
    module, (batch,) = batches(data(tmp_path, unpaired(4)), module=KTO(EndingPolicy(), seed=0))
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
    _, (batch,) = batches(data(tmp_path, sums(2)), module=KTO(EndingPolicy(), seed=0))
    assert int(batch.trajectory.max()) == 3


def test_ties_of_webgpt_are_dropped_and_counted(tmp_path):
    tie = FORMS["webgpt"] | {"score_0": 0.0, "score_1": 0.0}
    _, (batch,) = batches(data(tmp_path, [tie, FORMS["webgpt"], tie]))
    assert batch.metrics["preferences/ties"] == 2.0
    assert batch.metrics["train/comparisons"] == 1.0


def test_siblings_with_a_small_gap_make_no_pair(tmp_path):
    node = FORMS["search_nodes"] | {"candidates": [{"reply": str(n), "q": n / 10} for n in (1, 2, 9)]}
    _, (batch,) = batches(data(tmp_path, [node]), module=StepDPO(EndingPolicy(), min_q_gap=0.5, seed=0))
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
        batches(data(tmp_path, records), module=kind(EndingPolicy(), seed=0))


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
        data(tmp_path, sums(2), **options)


def test_a_batch_of_one_gives_kto_no_baseline(tmp_path):
    with pytest.raises(ValueError, match=r"data\.init_args\.batch_size is 1: KTO"):
        batches(data(tmp_path, sums(2), batch_size=1), module=KTO(EndingPolicy(), seed=0))


def test_rollouts_are_cut_up_but_files_are_not(tmp_path):
    with pytest.raises(ValueError, match=r"model\.init_args\.num_minibatches .* must be 1"):
        batches(data(tmp_path, sums(2)), module=ETO(EndingPolicy(), num_minibatches=2, seed=0))


def test_no_prompt_is_in_training_and_validation(tmp_path):
    """Two pairs for each prompt, and a later step of the same conversation: all go to the same side."""
    records = [row | {"chosen": row["chosen"] + "!" * extra} for row in sums(40) for extra in range(2)]
    module, held_out = DPO(EndingPolicy(), seed=0), []
    module.validation_step = lambda batch, batch_idx: held_out.append(batch)
    module, seen = batches(data(tmp_path, records, held_out=0.3), module=module, limit_val_batches=1.0)
    parts = [{prompt for batch in part for prompt, *_ in texts(module, batch)} for part in (seen, held_out)]
    assert not parts[0] & parts[1]
    assert len(parts[0] | parts[1]) == 40
    assert 4 <= len(parts[1]) <= 20
    opening = "user\x1f1 + 1"
    assert is_held_out(opening, share=0.3) == is_held_out(opening, share=0.3)
    assert [is_held_out(opening, share=share) for share in (0.0, 1.0)] == [False, True]


def test_all_steps_of_one_conversation_are_on_one_side(tmp_path):
    steps = [said("user", "a"), said("assistant", "b"), said("user", "c")]
    nodes = [NODE | {"messages": steps[:length]} for length in (1, 3)]
    contents = read_preferences([write_lines(tmp_path / "nodes.jsonl", nodes)])
    from lit_agentrl.rollouts.preferences import sibling_preferences

    openings = {p.opening for node in contents.nodes for p in sibling_preferences(node, min_gap=0.0)}
    assert openings == {"user\x1fa"}


def test_an_epoch_shows_every_pair_once_in_an_order_of_its_own(tmp_path):
    module, seen = batches(data(tmp_path, sums(10)), epochs=2)
    assert [batch.metrics["train/comparisons"] for batch in seen] == [4.0, 4.0, 2.0] * 2
    orders = [[row for batch in seen[start : start + 3] for row in texts(module, batch)] for start in (0, 3)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert len(set(orders[0])) == 10


def test_the_state_of_a_checkpoint_goes_on_with_the_next_order(tmp_path):
    _, seen = batches(data(tmp_path, sums(10)), epochs=2)
    first = data(tmp_path, sums(10))
    batches(first)
    resumed = data(tmp_path, sums(10))
    resumed.load_state_dict(first.state_dict())
    _, again = batches(resumed)
    assert [b.token_ids.tolist() for b in again] == [b.token_ids.tolist() for b in seen[3:]]
    assert resumed.state_dict() == {"epochs": 2}


def test_those_that_are_too_long_are_left_out_counted_and_warned_of(tmp_path):
    records = [*sums(3), {"prompt": "x" * 60, "chosen": "y", "rejected": "z"}]
    with warnings.catch_warnings(record=True) as caught:
        module, seen = DPO(EndingPolicy(), seed=0), []
        module.training_step = lambda batch, batch_idx: seen.append(batch)
        run = trainer(max_epochs=1)
        warnings.simplefilter("always")
        run.fit(module, datamodule=data(tmp_path, records, max_context=40))
    told = [str(w.message) for w in caught if "max_context" in str(w.message)]
    assert len(told) == 1
    assert "1 of 4 comparisons are longer than 40 tokens" in told[0]
    (batch,) = seen
    assert batch.metrics["preferences/too_long"] == 1.0
    assert batch.metrics["train/comparisons"] == 3.0
    assert not any("y" in text for row in texts(module, batch) for text in row[1:])


def test_nothing_that_fits_is_an_error_that_names_the_key(tmp_path):
    with pytest.raises(ValueError, match=r"data\.init_args\.max_context: no comparison fits in 4 tokens"):
        batches(data(tmp_path, sums(3), max_context=4))
    with pytest.raises(ValueError, match=r"data\.init_args\.max_context is 4000, but the model reads at most 160"):
        batches(data(tmp_path, sums(3), max_context=4000))


def test_validation_on_held_out_pairs_and_episodes(tmp_path):
    module = DPO(EndingPolicy(), seed=0)
    env = {"env": {"class_path": "rl_envs.Parity"}, "agent": ToolAgent(max_turns=2), "num_val_episodes": 6}
    episodes = {"num_workers": 1, "max_concurrent_episodes": 4, "max_new_tokens": 4, "num_test_episodes": 4}
    datamodule = data(tmp_path, sums(20), held_out=0.3, **env, **episodes)
    run = trainer(max_epochs=1, limit_val_batches=1.0)
    run.fit(module, datamodule=datamodule)
    metrics = run.callback_metrics
    assert metrics["val/episodes"] == 6.0
    assert {"val/reward_accuracy", "val/reward_margin", "val/loss", "val/kl", "val/success"} <= metrics.keys()
    run.test(module, datamodule=datamodule, verbose=False)
    assert run.callback_metrics["test/episodes"] == 4.0
    assert "test/reward_accuracy" in run.callback_metrics
    assert datamodule.state_dict() == {"epochs": 1, "evaluations": 2}


def test_validation_without_an_environment_reports_pairs_only(tmp_path):
    class Seen(Callback):
        values: list = []  # noqa: RUF012

        def on_validation_end(self, trainer, module):
            self.values.append(dict(trainer.callback_metrics))

    module, datamodule = DPO(EndingPolicy(), seed=0), data(tmp_path, sums(20), held_out=0.3)
    run = trainer(callbacks=[Seen()], limit_val_batches=1.0)
    run.validate(module, datamodule=datamodule, verbose=False)
    (values,) = Seen.values
    # An untrained policy is its own reference: log 2.
    assert float(values["val/loss"]) == pytest.approx(0.6931, abs=1e-4)
    assert float(values["val/reward_margin"]) == pytest.approx(0.0, abs=1e-5)
    assert "val/success" not in values
    with pytest.raises(ValueError, match="env: predict runs episodes"):
        run.predict(module, datamodule=datamodule)


def test_the_files_of_a_run_are_trajectory_preferences(tmp_path):
    """Episodes are recorded as a run records them, then paired by task, ids as they were sampled."""
    from rl_support import parity_data

    module = GRPO(EndingPolicy(), seed=0)
    trainer(max_epochs=1, callbacks=[TrajectoryLogger(str(tmp_path))]).fit(module, datamodule=parity_data())
    (file,) = (tmp_path / "trajectories").iterdir()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    datamodule = PreferenceDataModule([str(file)], batch_size=64, held_out=0.0, seed=0)
    _, (batch,) = batches(datamodule, module=DMPO(EndingPolicy(), seed=0))
    by_task = {}
    for record in records:
        by_task.setdefault(record["task"]["id"], []).append(record["success"])
    expected = sum(min(sum(won), len(won) - sum(won)) for won in by_task.values())
    assert batch.metrics["train/comparisons"] == expected > 0
    ids = [i for r in records for turn in r["turns"] for i in turn["completion_ids"]]
    trained = batch.token_ids[batch.weight != 0]
    assert set(trained.tolist()) <= set(ids)
    assert int(batch.turn.max()) == 1
    assert torch.isin(trained, torch.tensor(ids)).all()

    for parent in (1, -1, 7):
        wrong = copy.deepcopy(records[:1])
        wrong[0]["turns"][1]["parent"] = parent
        file = write_lines(tmp_path / "wrong.jsonl", wrong)
        with pytest.raises(ValueError, match=rf"wrong\.jsonl:1: parent of turn 1 is {parent}: .* earlier turn"):
            batches(PreferenceDataModule([file], held_out=0.0), module=ETO(EndingPolicy(), seed=0))

    records[0]["turns"][0]["reply"]["text"] = "something else"
    other = write_lines(tmp_path / "other.jsonl", records)
    with pytest.raises(ValueError, match=r"other\.jsonl:1: .*another tokenizer"):
        batches(PreferenceDataModule([other], held_out=0.0), module=ETO(EndingPolicy(), seed=0))
