"""`lit-agentrl init DIR`: a starter set of configs for those who installed a wheel."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def configs_folder() -> Path:
    """Return the shipped configs: inside the wheel, or at the top of a source tree."""
    inside = _HERE / "configs"
    return inside if inside.is_dir() else _HERE.parents[1] / "configs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="folder to make; must not exist or be empty")


def main(args: argparse.Namespace) -> int:
    """Copy the configs.

    Raises:
        ValueError: The folder is not empty, or cannot be written.
    """
    folder: Path = args.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not an empty folder; choose another one")
    try:
        shutil.copytree(configs_folder(), folder / "configs")
    except OSError as error:
        raise ValueError(f"{folder} cannot be written ({error}); choose another folder") from None
    print(f"copied {sum(1 for _ in folder.rglob('*.yaml'))} files to {folder / 'configs'}")
    print(f"next: python -m lit_agentrl fit --config {folder / 'configs/experiment/tiny.yaml'}")
    return 0
