"""Preference files: who is held out, in which order pairs come, and what a run writes is one."""

import copy
import json
import warnings

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from preference_support import batches, data_of, said, sums, texts, write_lines
from rl_support import EndingPolicy, trainer

from callbacks import TrajectoryLogger
from datamodules import PreferenceDataModule
from datamodules._preference_files import read_preferences
from datamodules.preference import is_held_out
from lit_agentrl.agents.tool_agent import ToolAgent
from lit_agentrl.algorithms import DMPO, DPO, ETO, GRPO


def test_rollouts_are_cut_up_but_files_are_not(tmp_path):
    with pytest.raises(ValueError, match=r"model\.init_args\.num_minibatches .* must be 1"):
        batches(data_of(tmp_path, sums(2)), module=ETO(EndingPolicy(), num_minibatches=2, seed=0))


def test_no_prompt_is_in_training_and_validation(tmp_path):
    """Two pairs for each prompt, and a later step of the same conversation: all go to the same side."""
    records = [row | {"chosen": row["chosen"] + "!" * extra} for row in sums(40) for extra in range(2)]
    module, held_out = DPO(EndingPolicy(), seed=0), []
    module.validation_step = lambda batch, batch_idx: held_out.append(batch)
    module, seen = batches(data_of(tmp_path, records, held_out=0.3), module=module, limit_val_batches=1.0)
    parts = [{prompt for batch in part for prompt, *_ in texts(module, batch)} for part in (seen, held_out)]
    assert not parts[0] & parts[1]
    assert len(parts[0] | parts[1]) == 40
    assert 4 <= len(parts[1]) <= 20
    opening = "user\x1f1 + 1"
    assert is_held_out(opening, share=0.3) == is_held_out(opening, share=0.3)
    assert [is_held_out(opening, share=share) for share in (0.0, 1.0)] == [False, True]


def test_all_steps_of_one_conversation_are_on_one_side(tmp_path):
    steps = [said("user", "a"), said("assistant", "b"), said("user", "c")]
    candidates = [{"reply": "yes", "q": 0.9}, {"reply": "no", "q": 0.1}]
    nodes = [{"messages": steps[:length], "candidates": candidates} for length in (1, 3)]
    contents = read_preferences([write_lines(tmp_path / "nodes.jsonl", nodes)])
    from lit_agentrl.rollouts.preferences import sibling_preferences

    openings = {p.opening for node in contents.nodes for p in sibling_preferences(node, min_gap=0.0)}
    assert openings == {"user\x1fa"}


def test_an_epoch_shows_every_pair_once_in_an_order_of_its_own(tmp_path):
    module, seen = batches(data_of(tmp_path, sums(10)), epochs=2)
    assert [batch.metrics["train/comparisons"] for batch in seen] == [4.0, 4.0, 2.0] * 2
    orders = [[row for batch in seen[start : start + 3] for row in texts(module, batch)] for start in (0, 3)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert len(set(orders[0])) == 10


def test_the_state_of_a_checkpoint_goes_on_with_the_next_order(tmp_path):
    _, seen = batches(data_of(tmp_path, sums(10)), epochs=2)
    first = data_of(tmp_path, sums(10))
    batches(first)
    resumed = data_of(tmp_path, sums(10))
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
        run.fit(module, datamodule=data_of(tmp_path, records, max_context=40))
    told = [str(w.message) for w in caught if "max_context" in str(w.message)]
    assert len(told) == 1
    assert "1 of 4 comparisons are longer than 40 tokens" in told[0]
    (batch,) = seen
    assert batch.metrics["preferences/too_long"] == 1.0
    assert batch.metrics["train/comparisons"] == 3.0
    assert not any("y" in text for row in texts(module, batch) for text in row[1:])


def test_nothing_that_fits_is_an_error_that_names_the_key(tmp_path):
    with pytest.raises(ValueError, match=r"data\.init_args\.max_context: no comparison fits in 4 tokens"):
        batches(data_of(tmp_path, sums(3), max_context=4))
    with pytest.raises(ValueError, match=r"data\.init_args\.max_context is 4000, but the model reads at most 160"):
        batches(data_of(tmp_path, sums(3), max_context=4000))


def test_validation_on_held_out_pairs_and_episodes(tmp_path):
    module = DPO(EndingPolicy(), seed=0)
    env = {"env": {"class_path": "rl_envs.Parity"}, "agent": ToolAgent(max_turns=2), "num_val_episodes": 6}
    episodes = {"num_workers": 1, "max_concurrent_episodes": 4, "max_new_tokens": 4, "num_test_episodes": 4}
    datamodule = data_of(tmp_path, sums(20), held_out=0.3, **env, **episodes)
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

    module, datamodule = DPO(EndingPolicy(), seed=0), data_of(tmp_path, sums(20), held_out=0.3)
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
