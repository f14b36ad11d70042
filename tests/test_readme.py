"""The README's examples are complete and short, and they train."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def examples() -> dict[str, str]:
    """Return the README's Python files by name."""
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", README, flags=re.DOTALL)
    return dict(blocks)


def test_there_is_an_example_of_each_kind_and_each_is_short():
    assert set(examples()) == {"my_environment.py", "my_tool.py", "my_reward.py", "my_algorithm.py"}
    for name, text in examples().items():
        assert len(text.strip().splitlines()) < 25, name


def test_the_examples_train_together(tmp_path):
    for name, text in examples().items():
        (tmp_path / name).write_text(text)
    run = tmp_path / "run"
    command = [
        *(sys.executable, "-m", "lit_agentrl", "fit"),
        *("--config", str(ROOT / "configs/experiment/tiny.yaml"), "--run_dir", str(run)),
        *("--env", "my_environment.Reverse", "--model", "my_algorithm.RLOO"),
        *("--agent.init_args.tools", "[my_tool.days_in]"),
        *("--data.init_args.rewards", "{my_reward.answered_in_one_turn: 0.5}"),
        *("--data.init_args.num_groups", "2", "--data.init_args.group_size", "2"),
        *("--data.init_args.num_val_episodes", "4", "--data.init_args.max_concurrent_episodes", "4"),
        *("--data.init_args.max_context", "128", "--warm_start.num_steps", "0", "--milestones", "false"),
        *("--trainer.max_epochs", "2", "--trainer.check_val_every_n_epoch", "2"),
    ]
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    metrics = (run / "metrics.csv").read_text()
    assert "rollout/reward_answered_in_one_turn" in metrics


def test_the_environment_example_keeps_the_contract(tmp_path, monkeypatch):
    from lit_agentrl.testing import ContractError, check_environment

    (tmp_path / "my_environment.py").write_text(examples()["my_environment.py"])
    monkeypatch.syspath_prepend(tmp_path)
    import my_environment

    try:
        check_environment(my_environment.Reverse, seeds=range(5))
    except ContractError as error:
        pytest.fail(str(error))


def test_the_tree_lists_every_module_and_nothing_else():
    tree = README.split("## The tree")[1].split("## ")[0]
    listed = set(re.findall(r"^([\w./-]+\.(?:py|md|yaml|txt)) ", tree, flags=re.MULTILINE))
    packages = ("lit_agentrl", "callbacks", "datamodules", "benchmarks")
    modules = {str(path.relative_to(ROOT)) for package in packages for path in (ROOT / package).rglob("*.py")}
    assert {name for name in modules if not name.endswith("__init__.py")} == {n for n in listed if n.endswith(".py")}
    assert all((ROOT / name).exists() for name in listed)
