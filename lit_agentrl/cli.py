"""`fit`, `validate`, `test` and `predict`: LightningCLI with the parts of an agent experiment as top-level keys."""

from __future__ import annotations

import json
import logging
import os
import warnings
from abc import ABC
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import lightning as L
from jsonargparse import Namespace, set_parsing_settings
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from callbacks import ProgressAxes, RolloutProgressBar, RunCheckpoint, TrajectoryLogger
from datamodules import PreferenceDataModule
from datamodules._environment import EnvironmentDataModule
from lit_agentrl.agents.base import Agent
from lit_agentrl.algorithms.base import Algorithm
from lit_agentrl.algorithms.learner import Learner
from lit_agentrl.checkpointing import AtomicCheckpointIO, batches_done
from lit_agentrl.config_errors import readable_error
from lit_agentrl.loggers import MetricsCSVLogger, make_loggers
from lit_agentrl.milestones import Milestones, print_result
from lit_agentrl.policies.base import Policy
from lit_agentrl.rollouts.collector import run_coroutine
from lit_agentrl.run_folder import find_checkpoint, prepare_run_dir
from lit_agentrl.warm_start import WarmStart, run_warm_start

_ENVIRONMENT_METHODS = ("sample_task", "reset", "step", "close")


class EnvironmentClass(ABC):  # noqa: B024 (the hook below decides; there is nothing to inherit)
    """Any class with the methods of `lit_agentrl.protocols.Environment`; third-party ones need no base class."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return all(callable(getattr(other, name, None)) for name in _ENVIRONMENT_METHODS)


class Parser(LightningArgumentParser):
    """Reports what is wrong in one line, and leaves out the list of a hundred keys."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # An abbreviated key would be taken for another one as soon as a longer name is added.
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the error and exit with status 2."""
        if not self.exit_on_error:  # a parser inside another one, which adds the place
            super().error(message, ex)
        self.exit(2, f"error: {readable_error(message)}\n")


class CLI(LightningCLI):
    """Adds `policy`, `agent`, `env`, `warm_start`, `run_dir`, `resume` and `loggers` to Lightning's keys."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Declare keys and how parts reach the module and the data module."""
        parser.add_subclass_arguments(
            Policy, "policy", required=False, help="the language model that is trained; value functions need none"
        )
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
            type=bool | list[Literal["start", "warm start", "end"]],
            default=False,
            help="evaluate at the start, after the warm start and at the end, or at those named, and print the table",
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
        self.run_dir = prepare_run_dir(
            settings.run_dir,
            command=command,
            configs=[str(path) for path in settings.get("config") or []],
            resume=bool(settings.resume),
        )
        if settings.ckpt_path is None and (settings.resume or command != "fit"):
            found = find_checkpoint(self.run_dir, ("last",) if command == "fit" else ("best", "last"))
            settings.ckpt_path = None if found is None else str(found)
        # Evaluations write into a folder of their own: the run's trajectories and metrics are those of its training.
        self.out_dir = self.run_dir if command == "fit" else self.run_dir / command
        settings.trainer.default_root_dir = str(self.out_dir)
        if "verbose" in settings:
            settings.verbose = False

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Add the run's loggers and checkpoint files to what the configuration asks for."""
        given = self._get(self.config_init, "trainer", default={})
        loggers = []
        if self.config.subcommand == "fit":
            ckpt_path = self.settings.ckpt_path
            self.batches_done = 0 if ckpt_path is None else batches_done(ckpt_path)
            loggers += make_loggers(
                self.settings.loggers,
                self.run_dir,
                resumed=bool(self.settings.resume),
                next_step=self.batches_done or None,
            )
        if given.get("logger") not in (None, True, False):
            extra = given["logger"]
            loggers += extra if isinstance(extra, list) else [extra]
        plugins = given.get("plugins") or []
        plugins = [*(plugins if isinstance(plugins, list) else [plugins]), AtomicCheckpointIO()]
        self.axes = ProgressAxes()
        callbacks = [*(given.get("callbacks") or []), self.axes]
        return super().instantiate_trainer(logger=loggers or False, plugins=plugins, callbacks=callbacks, **kwargs)

    def _run_subcommand(self, subcommand: str) -> None:
        """Run the command, and end the workers whatever happens."""
        environment = self._environment
        if environment is None:
            super()._run_subcommand(subcommand)
            return
        environment.keep_workers = True  # evaluations, warm start and training follow each other
        try:
            super()._run_subcommand(subcommand)
        finally:
            environment.pool.close()

    @property
    def _environment(self) -> EnvironmentDataModule | None:
        """The data module that owns environment workers, if any does."""
        data = self.datamodule
        if isinstance(data, PreferenceDataModule):
            return data.episodes
        return data if isinstance(data, EnvironmentDataModule) else None

    # fit ------------------------------------------------------------------------------------------------------------

    def before_fit(self) -> None:
        """Check everything, write the configuration, evaluate, and warm the policy up.

        A run that goes on from a checkpoint has evaluation and warm start behind it.
        """
        settings = self.settings
        self._check()
        self._write_config()
        self._write_tokenizer(self.run_dir)
        self.milestones = Milestones(self.run_dir)
        recorded = self.milestones.count(step=0) if settings.resume else 0
        for logger in self.trainer.loggers:
            if isinstance(logger, MetricsCSVLogger):
                logger.resume(next_step=self.batches_done, rows_before_training=recorded)
        if settings.ckpt_path is not None:
            return
        if self._wants("start"):
            self._evaluate("start")
        warm_start: WarmStart = self._get(self.config_init, "warm_start")
        if warm_start.num_steps:
            environment = self._environment
            assert environment is not None
            run_warm_start(
                warm_start,
                model=self.model,
                datamodule=environment,
                run_dir=self.run_dir,
                trainer_settings=dict(self._get(self.config_init, "trainer")),
                show_progress=self._get(self.config_init, "progress").is_enabled,
            )
            if self._wants("warm start"):
                self._evaluate("warm start")

    def _wants(self, milestone: str) -> bool:
        chosen = self.settings.milestones
        return milestone in chosen if isinstance(chosen, list) else bool(chosen)

    def after_fit(self) -> None:
        """Write down the final success, and print the table of milestones."""
        if not self._wants("end"):
            return
        name = type(self.model).__name__
        step = self.trainer.fit_loop.epoch_loop._batches_that_stepped
        if not self.milestones.has(name, step=step):
            if self.axes.validated_at != self.trainer.global_step:  # the last epoch had no validation
                self.trainer.validate(self.model, datamodule=self.datamodule, verbose=False)
            self.milestones.record(name, self.trainer.callback_metrics, step=step)
        if self.trainer.is_global_zero:
            self.milestones.print(self.run_dir)

    def _check(self) -> None:
        """Find out before any work what would otherwise be found out after the warm start, or in a worker.

        Raises:
            ValueError: Names the key.
        """
        warm_start: WarmStart = self._get(self.config_init, "warm_start")
        if warm_start.num_steps and (self._environment is None or not isinstance(self.model, Algorithm)):
            raise ValueError(
                "warm_start.num_steps: demonstrations are shown by an environment to a language model; give both (env, "
                "agent, policy), or set it to 0"
            )
        self.model.configure_model()
        # What `Trainer.fit` does first of all; from here on the data module can see model and ranks.
        self.trainer.strategy.connect(self.model)
        self.datamodule.trainer = self.trainer
        self.datamodule.setup("fit")
        environment = self._environment
        if environment is not None:
            limit = environment.context_limit if isinstance(self.model, Algorithm) else None
            if limit is not None and environment.max_new_tokens >= limit:
                raise ValueError(
                    f"data.init_args.max_new_tokens is {environment.max_new_tokens}, but a context has only "
                    f"{limit} tokens, the prompt included"
                )
            run_coroutine(environment.pool.start())

    def _evaluate(self, name: str) -> None:
        if self.milestones.has(name, step=0):
            # The evaluation took its number in an earlier attempt of this run.
            state = self.datamodule.state_dict()
            self.datamodule.load_state_dict(state | {"evaluations": state["evaluations"] + 1})
            return
        self.trainer.validate(self.model, datamodule=self.datamodule, verbose=False)
        self.milestones.record(name, self.trainer.callback_metrics, step=0)

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

    def _write_tokenizer(self, folder: Path) -> None:
        """Keep the tokenizer beside the trajectories, so that `view` shows tokens without loading the model."""
        if self.trainer.is_global_zero and isinstance(self.model, Algorithm):
            assert self.model.policy.tokenizer is not None
            self.model.policy.tokenizer.save_pretrained(folder / "tokenizer")

    # validate, test, predict ----------------------------------------------------------------------------------------

    def before_validate(self) -> None:
        """Say what is evaluated."""
        if self.trainer.is_global_zero:
            self.model.configure_model()
            self.out_dir.mkdir(exist_ok=True)
            self._write_tokenizer(self.out_dir)
            print(f"{self.config.subcommand}: {self.settings.ckpt_path or 'the policy as it is, without a checkpoint'}")

    before_test = before_predict = before_validate

    def after_validate(self) -> None:
        """Print the result and keep it in `RUN/<command>/result.json`."""
        if self.trainer.is_global_zero:
            print_result(self.trainer.callback_metrics, folder=self.out_dir, checkpoint=self.settings.ckpt_path)

    after_test = after_validate

    def after_predict(self) -> None:
        """Say where the trajectories are."""
        if self.trainer.is_global_zero:
            print(f"trajectories: python -m lit_agentrl view {self.out_dir}")


def run(arguments: Sequence[str]) -> int:
    """Run one of Lightning's commands and return its exit status.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    _quieten()
    try:
        make_cli(arguments)
    except SystemExit as exit_:
        if isinstance(exit_.__context__, KeyboardInterrupt):  # Lightning turns it into exit status 1
            raise KeyboardInterrupt from None
        raise
    return 0


def make_cli(arguments: Sequence[str]) -> CLI:
    """Parse a command line and run its command."""
    set_parsing_settings(add_print_completion_argument=True)
    return CLI(
        Learner,
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
        parser_class=Parser,
        parser_kwargs={"prog": "lit_agentrl"},
    )


def _quieten() -> None:
    """Keep advertisements and remarks on things that are so on purpose out of the terminal."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    for message in (
        ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*",
        ".*Your `IterableDataset` has `__len__` defined.*",  # never read by several loader workers
        ".*You have overridden `transfer_batch_to_device`.*",  # in the module, on purpose
        ".*LightningCLI's args parameter is intended.*",
        ".*Checkpoint directory .* exists and is not empty.*",
    ):
        warnings.filterwarnings("ignore", message=message)
    unwanted = (
        "litlogger",
        "litmodels",
        "TPU available",
        "GPU available",
        "`weights_only` was not set",
        "Loading `train_dataloader`",
    )

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
