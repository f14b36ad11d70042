"""The command line as a user meets it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from process_watch import with_variable

ROOT = Path(__file__).resolve().parents[2]
ONE_EPOCH = ("--trainer.max_epochs", 1, "--trainer.check_val_every_n_epoch", 1, "--milestones", "false")


@pytest.fixture(scope="module")
def run(_command_line, game_config, tmp_path_factory):
    """A small run that is over."""
    folder = tmp_path_factory.mktemp("command_line")
    outcome = _command_line.run("fit", "--config", game_config, "--run_dir", folder / "run", log=folder / "log")
    assert outcome.code == 0, outcome.output
    return folder / "run"


def test_help_is_quick():
    started = time.monotonic()
    shown = subprocess.run(
        [sys.executable, "-m", "lit_agentrl", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert time.monotonic() - started < 3
    for command in ("fit", "validate", "test", "predict", "view", "compare", "ablate", "export", "init"):
        assert f"\n  {command} " in shown.stdout


@pytest.mark.parametrize("argv", [["--help"], ["init", "--help"], ["view", "--help"]])
def test_light_commands_import_no_torch(argv):
    program = (
        "import sys, lit_agentrl.__main__ as m\n"
        f"try: m.main({argv!r})\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'lightning' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, capture_output=True)


def test_what_a_run_folder_holds(run):
    names = {path.name for path in run.iterdir()}
    assert names >= {"config.yaml", "metrics.csv", "milestones.json", "tensorboard", "tokenizer", "trajectories"}
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    milestones = json.loads((run / "milestones.json").read_text())
    assert [entry["name"] for entry in milestones] == ["start", "warm start", "GRPO"]


def test_the_table_of_milestones(run):
    output = (run.parent / "log").read_text()
    assert "95 % interval (Wilson)" in output
    assert "\x1b" not in output, "control codes in what is no terminal"
    assert "left" in output.split("epoch 1/3")[-1] or "left" in output


@pytest.mark.parametrize(("command", "phase"), [("validate", "val"), ("test", "test")])
def test_evaluating_a_run(lit_agentrl, run, command, phase):
    """The best checkpoint, a table with an interval, and nothing of the training run is touched."""
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    outcome = lit_agentrl(command, "--config", run / "config.yaml", "--run_dir", run)
    assert outcome.code == 0, outcome.output
    assert "best.ckpt" in outcome.output
    assert "95 % interval (Wilson)" in outcome.output
    result = json.loads((run / command / "result.json").read_text())
    assert result["metrics"][f"{phase}/episodes"] == 12
    assert result["checkpoint"].endswith("best.ckpt")
    assert all(path.stat().st_mtime_ns == written for path, written in before.items())


def test_evaluating_a_run_on_held_out_pairs(lit_agentrl, tmp_path):
    """Without an environment there is no success to show, but what was measured is shown and kept."""
    config, folder = ROOT / "configs/experiment/preferences.yaml", tmp_path / "run"
    small = ("--data.init_args.batch_size", 32, "--trainer.max_epochs", 1, "--milestones", "true")
    outcome = lit_agentrl("fit", "--config", config, "--run_dir", folder, *small)
    assert outcome.code == 0, outcome.output
    assert "held-out accuracy" in outcome.output
    assert (folder / "checkpoints/best.ckpt").exists()
    outcome = lit_agentrl("validate", "--config", folder / "config.yaml", "--run_dir", folder)
    assert outcome.code == 0, outcome.output
    assert "val/reward_accuracy" in outcome.output
    result = json.loads((folder / "validate/result.json").read_text())
    # The reference of the run is the policy at its start, not the one that is evaluated.
    assert abs(result["metrics"]["val/reward_margin"]) > 1e-3


def test_predict_writes_trajectories(lit_agentrl, run):
    outcome = lit_agentrl("predict", "--config", run / "config.yaml", "--run_dir", run)
    assert outcome.code == 0, outcome.output
    (path,) = (run / "predict/trajectories").iterdir()
    assert len(path.read_text().splitlines()) == 12


def test_the_kept_configuration_gives_the_same_run(lit_agentrl, run, tmp_path):
    outcome = lit_agentrl("fit", "--config", run / "config.yaml", "--run_dir", tmp_path / "again")
    assert outcome.code == 0, outcome.output
    first, second = (
        torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for folder in (run, tmp_path / "again")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert (run / "config.yaml").read_text() == (tmp_path / "again/config.yaml").read_text()


def test_export_gives_a_transformers_folder(lit_agentrl, run, tmp_path):
    outcome = lit_agentrl("export", run, "--out", tmp_path / "exported")
    assert outcome.code == 0, outcome.output
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {p.name for p in (tmp_path / "exported").iterdir()}
    assert "it/s" not in outcome.output, "a progress bar"


def test_view_shows_a_run(lit_agentrl, run):
    outcome = lit_agentrl("view", run, "--limit", 1)
    assert outcome.code == 0, outcome.output


def test_parts_are_found_next_to_the_file_from_any_folder(lit_agentrl, tmp_path):
    outcome = lit_agentrl("fit", "--config", ROOT / "configs/experiment/tiny.yaml", "--print_config", cwd=tmp_path)
    assert outcome.code == 0, outcome.output
    assert yaml.safe_load(outcome.output)["policy"]["class_path"] == "lit_agentrl.policies.tiny.TinyPolicy"


def test_parts_on_the_command_line_are_found_from_the_current_folder(lit_agentrl, game_config, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "class_path: lit_agentrl.policies.tiny.TinyPolicy\ninit_args: {hidden_size: 48, num_heads: 2}\n"
    )
    outcome = lit_agentrl("fit", "--config", game_config, "--policy", "mine.yaml", "--print_config", cwd=tmp_path)
    assert outcome.code == 0, outcome.output
    assert yaml.safe_load(outcome.output)["policy"]["init_args"]["hidden_size"] == 48


def test_shell_completion(lit_agentrl):
    outcome = lit_agentrl("--print_completion=shtab-bash")
    assert outcome.code == 0, outcome.output[-500:]
    assert "warm_start.num_steps" in outcome.output


def test_ctrl_c(lit_agentrl, game_config, tmp_path):
    """Status 130, a hint, and no worker left."""
    init_args = {"marker": str(tmp_path / "marker"), "event": "episode", "count": 9, "sig": int(signal.SIGINT)}
    callbacks = json.dumps([{"class_path": "saboteurs.Saboteur", "init_args": init_args}])
    tag = {"LIT_AGENTRL_TEST_TAG": str(tmp_path)}
    command = ["fit", "--config", game_config, "--run_dir", tmp_path / "run", "--trainer.callbacks", callbacks]
    outcome = lit_agentrl(*command, env=tag)
    assert outcome.code == 130, outcome.output
    assert "--resume true" in outcome.output
    assert "Traceback" not in outcome.output
    assert with_variable(*tag.popitem()) == []


def test_init_copies_configs_that_work(lit_agentrl, tmp_path):
    outcome = lit_agentrl("init", tmp_path / "mine")
    assert outcome.code == 0, outcome.output
    config = tmp_path / "mine/configs/experiment/tiny.yaml"
    assert str(config) in outcome.output
    assert lit_agentrl("fit", "--config", config, "--print_config").code == 0
    assert lit_agentrl("init", tmp_path / "mine").code == 2  # not empty any more


@pytest.mark.slow
def test_the_wheel_carries_the_configs(tmp_path):
    import zipfile

    pytest.importorskip("build")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    shipped = [str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*.yaml")]
    assert {f"lit_agentrl/starter/{name}" for name in shipped} <= set(names)
    assert "lit_agentrl/py.typed" in names
    assert any(name.endswith("entry_points.txt") for name in names)
