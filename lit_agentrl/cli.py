"""`fit`, `validate`, `test` and `predict`: LightningCLI with the parts of an agent experiment as top-level keys."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from abc import ABC
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from callbacks import RolloutProgressBar, RunCheckpoint, TrajectoryLogger
from datamodules import RolloutDataModule
from lit_agentrl.agents.base import Agent
from lit_agentrl.algorithms.base import Algorithm
from lit_agentrl.checkpointing import AtomicCheckpointIO
from lit_agentrl.loggers import MetricsCSVLogger, make_loggers
from lit_agentrl.policies.base import Policy
from lit_agentrl.warm_start import Milestones, WarmStart, run_warm_start

_ENVIRONMENT_METHODS = ("sample_task", "reset", "step", "close")


class EnvironmentClass(ABC):
    """Any class with the methods of `lit_agentrl.protocols.Environment`; third-party ones need no base class."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return all(callable(getattr(other, name, None)) for name in _ENVIRONMENT_METHODS)


class CLI(LightningCLI):
    """Adds `policy`, `agent`, `env`, `warm_start`, `run_dir`, `resume` and `loggers` to Lightning's keys."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Declare keys and how parts reach the module and the data module."""
        parser.add_subclass_arguments(Policy, "policy", required=True, help="the language model that is trained")
        parser.add_subclass_arguments(Agent, "agent", required=False, help="how episodes are run")
        parser.add_subclass_arguments(
            EnvironmentClass, "env", required=False, instantiate=False, help="the tasks; built in worker processes"
        )
        parser.add_argument(
            "--run_dir", type=str | None, default=None, help="folder of the run; default: runs/<experiment>-<time>"
        )
        parser.add_argument("--resume", type=bool, default=False, help="go on from RUN/checkpoints/last.ckpt")
        parser.add_argument(
            "--loggers",
            type=list[Literal["csv", "tensorboard", "wandb"]],
            default=["csv", "tensorboard"],
            help="where metrics go; wandb works offline without a key",
        )
        parser.add_class_arguments(WarmStart, "warm_start", help="supervised steps on demonstrations before fit")
        parser.add_argument(
            "--milestones",
            type=bool,
            default=False,
            help="evaluate at the start, after the warm start and at the end, and print the table",
        )
        parser.add_lightning_class_args(RunCheckpoint, "checkpoint")
        parser.add_lightning_class_args(TrajectoryLogger, "trajectories")
        parser.add_lightning_class_args(RolloutProgressBar, "progress")
        parser.link_arguments("policy", "model.init_args.policy", apply_on="instantiate")
        parser.link_arguments("agent", "data.init_args.agent", apply_on="instantiate")
        parser.link_arguments("env", "data.init_args.env", apply_on="instantiate", compute_fn=_as_plain)

    @property
    def settings(self) -> Namespace:
        """The configuration of the command that runs."""
        return self.config[self.config.subcommand] if "subcommand" in self.config else self.config

    def _parse_ckpt_path(self) -> None:
        """Do nothing: our checkpoints hold no hyperparameters, and reading one only to look takes seconds."""

    def before_instantiate_classes(self) -> None:
        """Make the run's folder, refuse to overwrite one, and direct everything into it."""
        settings, command = self.settings, self.config.subcommand
        self.run_dir = _prepare_run_dir(settings, command)
        last = self.run_dir / "checkpoints" / "last.ckpt"
        if command == "fit":
            if settings.resume and last.exists() and settings.ckpt_path is None:
                settings.ckpt_path = str(last)
        elif settings.ckpt_path is None:
            for name in ("best.ckpt", "last.ckpt"):
                if (last.parent / name).exists():
                    settings.ckpt_path = str(last.parent / name)
                    break
        settings.trainer.default_root_dir = str(self.run_dir)
        self.resumed = settings.ckpt_path is not None or settings.resume

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Add the run's loggers and checkpoint files to what the configuration asks for."""
        given = self._get(self.config_init, "trainer", default={})
        loggers = make_loggers(self.settings.loggers, self.run_dir, resumed=self.resumed)
        if given.get("logger") not in (None, True, False):
            extra = given["logger"]
            loggers += extra if isinstance(extra, list) else [extra]
        plugins = given.get("plugins") or []
        plugins = [*(plugins if isinstance(plugins, list) else [plugins]), AtomicCheckpointIO()]
        return super().instantiate_trainer(logger=loggers, plugins=plugins, **kwargs)

    # fit ------------------------------------------------------------------------------------------------------------

    def before_fit(self) -> None:
        """Write the configuration, evaluate, and warm the policy up, unless a checkpoint has all that behind it."""
        settings = self.settings
        self._write_config()
        self._write_tokenizer()
        self.milestones = Milestones(self.run_dir)
        ckpt_path = settings.ckpt_path
        if ckpt_path is not None:
            step = int(torch.load(ckpt_path, map_location="cpu", weights_only=True, mmap=True)["global_step"])
            self._resume_loggers(step)
            return
        self._resume_loggers(0)
        if settings.milestones:
            self._evaluate("start")
        warm_start: WarmStart = self._get(self.config_init, "warm_start")
        if warm_start.num_steps:
            if not isinstance(self.datamodule, RolloutDataModule):
                raise ValueError("warm_start goes before rollouts: it needs data.class_path RolloutDataModule")
            run_warm_start(
                warm_start,
                model=self.model,
                datamodule=self.datamodule,
                run_dir=self.run_dir,
                trainer_settings=dict(self._get(self.config_init, "trainer")),
            )
            if settings.milestones:
                self._evaluate("warm start")
        self.datamodule.keep_workers = False

    def after_fit(self) -> None:
        """Write down the final success, and print the table of milestones."""
        if not self.settings.milestones:
            return
        name = type(self.model).__name__
        if "val/success" not in self.trainer.callback_metrics:  # the last epoch had no validation
            self.trainer.validate(self.model, datamodule=self.datamodule, verbose=False)
        self.milestones.record(name, self.trainer.callback_metrics)
        if self.trainer.is_global_zero:
            self.milestones.print(self.run_dir)

    def _evaluate(self, name: str) -> None:
        if self.milestones.has(name):
            return
        self.datamodule.keep_workers = True
        self.trainer.validate(self.model, datamodule=self.datamodule, verbose=False)
        self.milestones.record(name, self.trainer.callback_metrics)

    def _resume_loggers(self, step: int) -> None:
        for logger in self.trainer.loggers:
            if isinstance(logger, MetricsCSVLogger):
                logger.resume(step)

    def _write_config(self) -> None:
        """Keep the resolved configuration in the run's folder, and hand it to loggers as hyperparameters."""
        if not self.trainer.is_global_zero:
            return
        parser = self._parser(self.config.subcommand)
        settings = self.settings.clone()
        for key in ("ckpt_path", "resume", "run_dir", "config"):
            if key in settings:
                settings[key] = False if key == "resume" else None
        settings.trainer.default_root_dir = None
        (self.run_dir / "config.yaml").write_text(parser.dump(settings, skip_validation=True))
        plain = json.loads(json.dumps(_as_plain(settings), default=str))
        for logger in self.trainer.loggers:
            logger.log_hyperparams({key: value for key, value in plain.items() if value is not None})


    def _write_tokenizer(self) -> None:
        """Keep the tokenizer in the run's folder, so that `view` shows tokens without loading the model."""
        self.model.configure_model()
        if self.trainer.is_global_zero:
            self.model.policy.tokenizer.save_pretrained(self.run_dir / "tokenizer")


def run(arguments: Sequence[str]) -> int:
    """Run one of Lightning's commands."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    _quieten()
    cli = CLI(
        Algorithm,
        L.LightningDataModule,
        args=list(arguments),
        subclass_mode_model=True,
        subclass_mode_data=True,
        auto_configure_optimizers=False,
        save_config_callback=None,
        seed_everything_default=0,
        trainer_defaults={
            "accelerator": "cpu",
            "num_sanity_val_steps": 0,
            "use_distributed_sampler": False,
            "enable_model_summary": False,
            "enable_checkpointing": True,
            "log_every_n_steps": 1,
        },
        parser_kwargs={"prog": "lit_agentrl"},
    )
    if cli.datamodule is not None:
        cli.datamodule.teardown("end")
    return 0


def _quieten() -> None:
    """Keep advertisements and remarks on things that are so on purpose out of the terminal."""
    for message in (
        ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*",
        ".*Your `IterableDataset` has `__len__` defined.*",  # never read by several loader workers
        ".*You have overridden `transfer_batch_to_device`.*",  # in the module, on purpose
        ".*LightningCLI's args parameter is intended.*",
        ".*Checkpoint directory .* exists and is not empty.*",
    ):
        warnings.filterwarnings("ignore", message=message)
    unwanted = ("litlogger", "litmodels", "TPU available", "GPU available", "`weights_only` was not set", "Loading `train_dataloader`")

    def wanted(record: logging.LogRecord) -> bool:
        return not any(text in record.getMessage() for text in unwanted)

    for name in (
        "lightning.pytorch.utilities.rank_zero",
        "lightning.fabric.utilities.rank_zero",
        "lightning.pytorch.trainer.connectors.checkpoint_connector",
    ):
        logging.getLogger(name).addFilter(wanted)


def _as_plain(value: Any) -> Any:
    """Return a namespace as nested dicts."""
    if isinstance(value, Namespace):
        return value.as_dict()
    return value


def _prepare_run_dir(settings: Namespace, command: str) -> Path:
    """Return the run's folder, made and writable.

    Raises:
        ValueError: It holds a run already and `resume` was not asked for, or cannot be written.
    """
    if settings.run_dir is None:
        configs = settings.get("config") or []
        name = Path(str(configs[-1])).stem if configs else command
        run_dir = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    else:
        run_dir = Path(settings.run_dir)
    run_dir = run_dir.resolve()
    if command == "fit" and not settings.resume and settings.ckpt_path is None and (run_dir / "config.yaml").exists():
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
    if command == "fit" and settings.resume and not any(run_dir.iterdir()):
        print(f"nothing to resume in {run_dir}: starting from the beginning", file=sys.stderr)
    return run_dir
