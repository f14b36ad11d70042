"""`export RUN --out DIR`: a run's policy as a plain transformers folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lit_agentrl.policies.base import Policy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a run")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder to write; made if need be")
    parser.add_argument("--checkpoint", default="best", help="best, last, or a file; best falls back to last")


def main(args: argparse.Namespace) -> int:
    """Write the folder."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    policy, checkpoint = load_policy(args.run, checkpoint=args.checkpoint)
    policy.export(args.out)
    print(f"wrote {args.out} from {checkpoint}")
    print(f'load it with AutoModelForCausalLM.from_pretrained("{args.out}")')
    return 0


def load_policy(run: Path, *, checkpoint: str = "best") -> tuple[Policy, Path]:
    """Return a run's policy with the weights of a checkpoint, and the checkpoint's path.

    Args:
        run: Folder of the run.
        checkpoint: `best`, `last`, or a file. `best` falls back to `last`.

    Raises:
        ValueError: The folder is no run, trained no language model, or has no such checkpoint.
    """
    import torch
    import yaml
    from jsonargparse import ArgumentParser

    from lit_agentrl.policies.base import Policy

    config = run / "config.yaml"
    if not config.is_file():
        raise ValueError(f"{run} is no run folder: it has no config.yaml")
    settings = yaml.safe_load(config.read_text())
    if settings.get("policy") is None:
        raise ValueError(f"{run} trained no language model, so there is no policy to export")
    path = _checkpoint(run, checkpoint)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Policy, "policy", required=True)
    parsed = parser.parse_object({"policy": settings["policy"]})
    policy: Policy = parser.instantiate_classes(parsed).policy
    policy.build()
    state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["state_dict"]
    prefix = "policy."
    policy.load_state_dict({name.removeprefix(prefix): w for name, w in state.items() if name.startswith(prefix)})
    return policy, path


def _checkpoint(run: Path, name: str) -> Path:
    folder = run / "checkpoints"
    candidates = {"best": [folder / "best.ckpt", folder / "last.ckpt"], "last": [folder / "last.ckpt"]}
    for path in candidates.get(name, [Path(name)]):
        if path.is_file():
            return path
    raise ValueError(f"there is no checkpoint {name!r} in {folder}; accepted are best, last, or a file")
