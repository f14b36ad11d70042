"""Where a run lives on disk."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

# Lightning starts the other ranks of a machine with the same command line: they inherit the folder that rank 0 chose.
_CHOSEN = "LIT_AGENTRL_RUN_DIR"


def prepare_run_dir(given: str | None, *, command: str, configs: Sequence[str], resume: bool) -> Path:
    """Return the absolute path of the run's folder, made and writable.

    Args:
        given: What the user asked for; default: `runs/<experiment>-<time>`.
        command: `fit`, `validate`, `test` or `predict`.
        configs: Configuration files; the last one names the experiment.
        resume: Whether to go on with the run that is there.

    Raises:
        ValueError: The folder holds a run and `fit` would overwrite it, or it cannot be written.
    """
    if getattr(rank_zero_only, "rank", 0) != 0 and _CHOSEN in os.environ:
        return Path(os.environ[_CHOSEN])
    if given is None:
        name = Path(configs[-1]).stem if configs else command
        run_dir = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    else:
        run_dir = Path(given)
    run_dir = run_dir.expanduser().resolve()
    os.environ[_CHOSEN] = str(run_dir)
    if command == "fit" and not resume and (run_dir / "config.yaml").exists():
        raise ValueError(
            f"run_dir: {run_dir} already holds a run; go on with it by --resume true, or choose another folder"
        )
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        probe = run_dir / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"run_dir: {run_dir} cannot be written ({error}); choose another folder") from None
    if command == "fit" and resume and not any(run_dir.iterdir()):
        print(f"nothing to resume in {run_dir}: starting from the beginning", file=sys.stderr)
    return run_dir


def find_checkpoint(run_dir: Path, names: Sequence[str]) -> Path | None:
    """Return the first of the named checkpoints (`best`, `last`) that a run has."""
    for name in names:
        path = run_dir / "checkpoints" / f"{name}.ckpt"
        if path.is_file():
            return path
    return None
