"""Checkpoints on disk: written beside and moved into place, loaded without executing anything."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO


def save_atomically(value: Any, path: Path) -> None:
    """Write with `torch.save` so that the file is either the old one or the new one, never a part.

    Raises:
        OSError: The disk is full or the folder is not writable; what was there before is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            torch.save(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        # torch reports a failed write as RuntimeError.
        raise OSError(
            f"the checkpoint {path} could not be written ({error}); free some disk space or choose another run_dir. "
            "Earlier checkpoints are whole: resume from them with --resume true"
        ) from error
    finally:
        Path(temporary).unlink(missing_ok=True)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint files, streamed to disk instead of being built in memory, and never half written."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint."""
        save_atomically(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint; plain values and tensors only."""
        return torch.load(path, map_location=map_location or "cpu", weights_only=True)


def batches_done(path: str | Path) -> int:
    """Return how many training batches a checkpoint has behind it: the step that a resumed run logs first.

    Not the optimizer steps: a batch without signal takes none, but is logged.

    Raises:
        ValueError: The file is missing or no checkpoint of a training run.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return int(checkpoint["loops"]["fit_loop"]["epoch_loop.state_dict"]["_batches_that_stepped"])
    except FileNotFoundError:
        raise ValueError(f"ckpt_path: there is no file {path}") from None
    except (KeyError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"ckpt_path: {path} is no checkpoint of a training run ({error})") from None
