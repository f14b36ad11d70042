"""The command line. Commands that do not train import neither torch nor lightning before they must."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

_HELP = """\
usage: python -m lit_agentrl COMMAND [options]     (or: lit-agentrl COMMAND [options])

train and evaluate (`COMMAND --help` lists every key):
  fit        train:     fit --config configs/experiment/quickstart.yaml [--data.init_args.group_size=16 ...]
  validate   held-out episodes of a run:  validate --config RUN/config.yaml --run_dir RUN
  test       test episodes
  predict    run episodes and write their trajectories

look and compare:
  view       print a run's trajectories turn by turn:   view RUN
  compare    a table over runs, with intervals:         compare RUN RUN ...
  ablate     variants x seeds from one file:            ablate FILE --seeds 5
  export     write a plain transformers folder:         export RUN --out DIR
  init       copy a starter set of configs:             init DIR

everything also takes:
  --config FILE          an experiment file; part files in it are relative to it
  --print_config         show the resolved configuration and stop
  --run_dir DIR          where the run goes (default: runs/<experiment>-<time>)
  --resume true          go on from RUN/checkpoints/last.ckpt
shell completion: python -m lit_agentrl --print_completion=shtab-bash  (needs: pip install shtab)
"""

_LIGHT_COMMANDS = {
    "view": ("lit_agentrl.reporting.view", "Print the trajectories of a run turn by turn."),
    "compare": ("lit_agentrl.reporting.compare", "Compare runs, with intervals over seeds."),
    "ablate": ("lit_agentrl.sweeping.ablate", "Run variants of an experiment over paired seeds."),
    "export": ("lit_agentrl.export", "Write a run's policy as a plain transformers folder."),
    "init": ("lit_agentrl.starter", "Copy a starter set of configs."),
}
_TRAINER_COMMANDS = ("fit", "validate", "test", "predict")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_HELP, end="")
        return 0
    if arguments[0] == "--version":
        from lit_agentrl import __version__

        print(f"lit_agentrl {__version__}")
        return 0
    command = arguments[0]
    if command in _LIGHT_COMMANDS:
        return _run_light(command, arguments[1:])
    if command not in _TRAINER_COMMANDS and not command.startswith("-"):
        known = ", ".join([*_TRAINER_COMMANDS, *_LIGHT_COMMANDS])
        print(f"error: unknown command {command!r}; accepted are {known}", file=sys.stderr)
        return 2
    from lit_agentrl.cli import run

    return _guarded(lambda: run(arguments))


def _run_light(command: str, arguments: list[str]) -> int:
    module_name, description = _LIGHT_COMMANDS[command]
    module = import_module(module_name)
    parser = argparse.ArgumentParser(prog=f"lit_agentrl {command}", description=description)
    module.add_arguments(parser)
    parsed = parser.parse_args(arguments)

    def action() -> int:
        try:
            return int(module.main(parsed))
        except ValueError as error:  # these commands raise it for nothing but the user's mistakes
            print(f"error: {error}", file=sys.stderr)
            return 2

    return _guarded(action)


def _guarded(action: Callable[[], int]) -> int:
    try:
        return action()
    except KeyboardInterrupt:
        print("interrupted; go on with --resume true", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError, FloatingPointError, RuntimeError) as error:
        from lit_agentrl.config_errors import names_a_key, readable_error

        # Errors that name a configuration key are the user's to mend; a traceback would only bury them.
        message = readable_error(str(error))
        if os.environ.get("LIT_AGENTRL_TRACEBACK") == "1" or not names_a_key(message):
            raise
        print(f"error: {message}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
