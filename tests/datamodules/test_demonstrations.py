"""Batches of demonstrations, and what happens to those that are too long."""

import warnings

import pytest
import torch
from rl_support import EndingPolicy, parity_data, trainer

from datamodules import DemonstrationDataModule
from lit_agentrl.agents.tool_agent import ToolAgent
from lit_agentrl.algorithms import SFT

# One to five words with the chat markers and the reply are 14 to 18 tokens.
SOME_FIT = 16


def data(**options):
    defaults = {"num_workers": 1, "batch_size": 16, "batches_per_epoch": 2, "seed": 0}
    return DemonstrationDataModule({"class_path": "rl_envs.Parity"}, ToolAgent(), **(defaults | options))


def batches(datamodule, *, epochs=1):
    """Run the epochs with a module that only keeps what it is given."""
    module, seen = SFT(EndingPolicy(), seed=0), []
    module.training_step = lambda batch, batch_idx: seen.append(batch)
    trainer(max_epochs=epochs).fit(module, datamodule=datamodule)
    return module, seen


def test_only_replies_and_their_ends_are_trained_and_weights_sum_to_one():
    module, (batch, _) = batches(data())
    chat = module.policy.chat
    assert set(batch.token_ids[batch.weight != 0].tolist()) == {*chat.encode("b"), chat.end_of_turn_id}
    assert float(batch.weight.sum()) == pytest.approx(1.0)
    assert int(batch.trajectory.max()) == 15


def test_no_demonstration_is_shown_twice():
    _, seen = batches(data(batch_size=4), epochs=2)
    assert len(seen) == 4
    texts = [tuple(batch.token_ids.tolist()) for batch in seen]
    assert len(set(texts)) > 1


def test_those_that_are_too_long_are_left_out_counted_and_warned_of_once():
    datamodule = data(max_context=SOME_FIT)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module, seen = SFT(EndingPolicy(), seed=0), []
        module.training_step = lambda batch, batch_idx: seen.append(batch)
        run = trainer(max_epochs=1)
        warnings.simplefilter("always")
        run.fit(module, datamodule=datamodule)
    told = [str(w.message) for w in caught if "max_context" in str(w.message)]
    assert len(told) == 1
    assert "demonstrations are longer than 16 tokens" in told[0]
    kept = [int(batch.trajectory.max()) + 1 for batch in seen]
    assert 0 < sum(kept) < 32
    assert seen[-1].metrics == {"demonstrations/too_long": 32.0 - sum(kept)}
    assert max(batch.row_length(leaf) for batch in seen for leaf in batch.leaves()) <= SOME_FIT


def test_nothing_that_fits_is_an_error_that_names_the_key():
    with pytest.raises(
        ValueError, match=r"data\.init_args\.max_context: no demonstration fits in 4 tokens, the shortest"
    ):
        batches(data(max_context=4))


def test_a_warm_start_uses_the_workers_of_the_rollouts():
    rollouts = parity_data()
    beside = DemonstrationDataModule.beside(rollouts, batch_size=2, batches_per_epoch=1)
    assert beside.pool is rollouts.pool
    assert beside.keep_workers
    _, (batch,) = batches(beside)
    assert bool(torch.isfinite(batch.weight).all())
    rollouts.teardown("end")


def test_the_state_of_a_checkpoint_goes_on_with_new_demonstrations():
    datamodule = data(batch_size=2, batches_per_epoch=1)
    _, (first,) = batches(datamodule)
    resumed = data(batch_size=2, batches_per_epoch=1)
    resumed.load_state_dict(datamodule.state_dict())
    _, (second,) = batches(resumed)
    assert resumed.state_dict()["epochs"] == 2
    assert first.origin.numel() > 0
    assert second.origin.numel() > 0


@pytest.mark.parametrize("key", ["batch_size", "batches_per_epoch"])
def test_values_below_one_name_their_key(key):
    with pytest.raises(ValueError, match=f"data.init_args.{key} is 0: it must be at least 1"):
        data(**{key: 0})
