"""Every algorithm raises held-out success by at least 30 points over its start. `make test-learn` runs all of it."""

import json
from pathlib import Path

import pytest

from lit_agentrl.sweeping.plan import read_plan

CONFIGS = Path(__file__).parents[2] / "configs"
RISE = 0.3
SEEDS = (0, 1, 2)
QUICK = ("grpo", "ppo", "dpo", "eto", "dqn")
"""Run with one seed in the ordinary tests."""


def cases():
    for name in ("algorithms", "algorithms_offline"):
        plan = read_plan(CONFIGS / f"ablation/{name}.yaml")
        for variant, overrides in plan.variants.items():
            yield variant, plan.base, overrides, "warm start"
    yield "sft", CONFIGS / "experiment/tiny_sft.yaml", (), "start"
    yield "dqn", CONFIGS / "experiment/dqn_frozen_lake.yaml", (), "start"
    yield "drrn", CONFIGS / "experiment/drrn_frozen_lake.yaml", (), "start"


ALL = [
    pytest.param(*case, seed, id=f"{case[0]}-{seed}", marks=[pytest.mark.slow] * (case[0] not in QUICK or seed > 0))
    for case in cases()
    for seed in SEEDS
]


@pytest.fixture(scope="module")
def teacher(_command_line, tmp_path_factory):
    """A policy that another seed has learnt, for distillation."""
    folder = tmp_path_factory.mktemp("teacher")
    run = ("--config", CONFIGS / "experiment/tiny.yaml", "--seed_everything", 100, "--run_dir", folder / "run")
    for command in (("fit", *run, "--milestones", "[end]"), ("export", folder / "run", "--out", folder / "exported")):
        outcome = _command_line.run(*command, log=folder / "output.log")
        assert outcome.code == 0, outcome.output
    return folder / "exported"


@pytest.mark.parametrize(("name", "experiment", "overrides", "start", "seed"), ALL)
def test_success_rises(request, lit_agentrl, tmp_path, name, experiment, overrides, start, seed):
    if name == "distillation":
        overrides = (*overrides, "--model.teacher", request.getfixturevalue("teacher"))
    outcome = lit_agentrl(
        *("fit", "--config", experiment, *overrides, "--seed_everything", seed, "--run_dir", tmp_path / "run"),
        *("--milestones", f"[{start}, end]", "--trainer.check_val_every_n_epoch", 1000, "--loggers", "[csv]"),
    )
    assert outcome.code == 0, outcome.output
    before, after = (entry["success"] for entry in json.loads((tmp_path / "run/milestones.json").read_text()))
    assert after - before >= RISE, outcome.output
