"""`RunCheckpoint` and the files that it writes."""

import pickle
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from callbacks import RunCheckpoint
from lit_agentrl.checkpointing import AtomicCheckpointIO, batches_done, save_atomically

MODULE = SimpleNamespace(named_parameters=lambda: [], device="cpu")


class FakeTrainer:
    """As much of a trainer as the callback looks at."""

    def __init__(self, folder):
        self.default_root_dir = folder
        self.callback_metrics = {}
        self.state = SimpleNamespace(fn="fit")
        self.current_epoch = 0
        self.max_epochs = 10
        self.should_stop = False
        self.saved = []
        self.strategy = SimpleNamespace(reduce=lambda value, reduce_op: value)

    def save_checkpoint(self, path, weights_only=False):
        self.saved.append((self.current_epoch, path.name, weights_only))


def scores(callback, values, tmp_path):
    """Run one epoch per score; `None` is an epoch without validation. Returns (epoch, file, weights only)."""
    trainer = FakeTrainer(tmp_path)
    for epoch, value in enumerate(values):
        trainer.current_epoch = epoch
        trainer.callback_metrics = {} if value is None else {"val/success": torch.tensor(value)}
        if value is not None:
            callback.on_validation_end(trainer, None)
        callback.on_train_epoch_end(trainer, MODULE)
    return trainer.saved


def test_best_is_the_first_of_equals(tmp_path):
    saved = scores(RunCheckpoint(), [0.1, 0.5, 0.5, 0.4, None], tmp_path)
    assert [(epoch, name) for epoch, name, _ in saved if name == "best.ckpt"] == [(0, "best.ckpt"), (1, "best.ckpt")]
    assert [epoch for epoch, name, _ in saved if name == "last.ckpt"] == [0, 1, 2, 3, 4]


def test_less_can_be_better(tmp_path):
    saved = scores(RunCheckpoint(mode="min"), [0.5, 0.4, 0.6], tmp_path)
    assert [epoch for epoch, name, _ in saved if name == "best.ckpt"] == [0, 1]


def test_not_a_number_is_never_best(tmp_path):
    saved = scores(RunCheckpoint(), [float("nan"), 0.1], tmp_path)
    assert [epoch for epoch, name, _ in saved if name == "best.ckpt"] == [1]


def test_last_is_written_as_often_as_asked_and_at_the_end(tmp_path):
    saved = scores(RunCheckpoint(every_n_rollouts=4), [None] * 10, tmp_path)
    assert [epoch + 1 for epoch, _, _ in saved] == [4, 8, 10]


def test_a_resumed_run_knows_the_best_score(tmp_path):
    first = RunCheckpoint()
    scores(first, [0.5], tmp_path)
    second = RunCheckpoint()
    second.load_state_dict(first.state_dict())
    assert [name for _, name, _ in scores(second, [0.5], tmp_path)] == ["last.ckpt"]


def test_nothing_is_written_when_switched_off(tmp_path):
    assert scores(RunCheckpoint(enabled=False), [0.5], tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "message"), [({"mode": "most"}, "checkpoint.mode"), ({"every_n_rollouts": 0}, "every_n_rollouts")]
)
def test_wrong_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        RunCheckpoint(**arguments)


# Files ---------------------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_earlier_checkpoint_whole(tmp_path):
    """A limit on file sizes stands in for the full disk: writing fails in the middle."""
    path = tmp_path / "last.ckpt"
    save_atomically({"weights": torch.arange(10)}, path)
    program = (
        "import resource, signal, sys, torch\n"
        "from pathlib import Path\n"
        "from lit_agentrl.checkpointing import save_atomically\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, {resource.RLIM_INFINITY}))\n"
        f"save_atomically({{'weights': torch.zeros(1_000_000)}}, Path({str(path)!r}))\n"
    )
    failed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert failed.returncode == 1
    message = failed.stderr.strip().splitlines()[-1]
    assert message.startswith(f"OSError: the checkpoint {path} could not be written")
    assert "free some disk space" in message
    assert torch.load(path, weights_only=True)["weights"].tolist() == list(range(10))
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"], "a part was left behind"


def test_checkpoints_hold_plain_values_only(tmp_path):
    """What would run code when it is loaded is refused."""
    AtomicCheckpointIO().save_checkpoint({"callback": print}, tmp_path / "bad.ckpt")
    with pytest.raises(pickle.UnpicklingError, match="Weights only"):
        AtomicCheckpointIO().load_checkpoint(tmp_path / "bad.ckpt")


def test_what_is_no_training_checkpoint(tmp_path):
    save_atomically({"weights": torch.zeros(1)}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"ckpt_path: .*weights\.pt is no checkpoint of a training run"):
        batches_done(tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="ckpt_path: there is no file"):
        batches_done(tmp_path / "none.ckpt")
