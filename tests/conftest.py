"""Makes `tests/support` importable, also for worker processes, and offers the command line as a fixture."""

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

from command_line import CommandLine

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background so, and children inherit it: no test of Ctrl-C could pass.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def _command_line():
    line = CommandLine()
    yield line
    line.close()


@pytest.fixture
def lit_agentrl(_command_line, tmp_path):
    """Run a command: `lit_agentrl("fit", "--config", path, cwd=..., env=...)` gives exit status and output."""
    return lambda *argv, **options: _command_line.run(*argv, log=tmp_path / "output.log", **options)


@pytest.fixture(scope="session")
def game_config(tmp_path_factory):
    """An experiment of two seconds with a learning signal: half of all digits are right answers."""
    path = tmp_path_factory.mktemp("config") / "game.yaml"
    path.write_text(
        """
seed_everything: 3
milestones: true
trainer: {max_epochs: 3, check_val_every_n_epoch: 2}
policy:
  class_path: lit_agentrl.policies.tiny.TinyPolicy
  init_args: {hidden_size: 32, num_layers: 1, num_heads: 2, max_context: 64}
env: {class_path: digit_game.DigitGame}
agent:
  class_path: lit_agentrl.agents.tool_agent.ToolAgent
  init_args: {max_turns: 1}
model:
  class_path: lit_agentrl.algorithms.grpo.GRPO
  init_args: {num_minibatches: 2, optimizer: {lr: 3.0e-3}}
data:
  class_path: datamodules.RolloutDataModule
  init_args: {num_groups: 6, group_size: 4, num_workers: 1, max_concurrent_episodes: 24, max_new_tokens: 4,
              num_val_episodes: 12, num_test_episodes: 12}
warm_start: {num_steps: 24, batch_size: 8, optimizer: {lr: 1.0e-2, warmup_steps: 0}}
"""
    )
    return path
