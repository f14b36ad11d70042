"""The runner against a stand-in for `fit` that takes the same arguments and needs no model."""

import argparse
import json
import os
import signal
import subprocess
import sys

import pytest
import yaml
from process_watch import happens, runs

from lit_agentrl.sweeping import ablate
from lit_agentrl.sweeping.ablate import last_error_line, run_ablation, threads_per_run
from lit_agentrl.sweeping.plan import read_plan

# Logs `--score` + seed / 100 as val/success; with --crash raises; with --hang waits after a checkpoint, unless resumed.
FAKE_FIT = """
import argparse, os, pathlib, time
parser = argparse.ArgumentParser()
for name in ("config", "run_dir", "ckpt_path", "score", "hang", "crash"):
    parser.add_argument(f"--{name}")
parser.add_argument("--seed_everything", type=int)
args = parser.parse_args()
run = pathlib.Path(args.run_dir)
print("threads", os.environ["OMP_NUM_THREADS"], flush=True)
if args.crash:
    raise ValueError("no such optimizer: " + args.crash)
(run / "checkpoints").mkdir(exist_ok=True)
(run / "checkpoints" / "last.ckpt").touch()
if args.hang and not args.ckpt_path:
    (run / "hanging").write_text(str(os.getpid()))
    time.sleep(600)
value = float(args.score or 0.5) + args.seed_everything / 100
(run / "config.yaml").write_text(f"seed_everything: {args.seed_everything}")
(run / "metrics.csv").write_text(f"step,val/success\\n10,{value}\\n")
"""


@pytest.fixture
def fit_command(tmp_path):
    script = tmp_path / "fake_fit.py"
    script.write_text(FAKE_FIT)
    return [sys.executable, str(script)]


def write_plan(folder, variants, **keys):
    (folder / "experiment.yaml").write_text("model: tiny\n")
    path = folder / "ablation.yaml"
    path.write_text(yaml.safe_dump({"base": "experiment.yaml", "variants": variants, **keys}))
    return path


def states(out):
    return {entry["folder"]: entry["state"] for entry in json.loads((out / "ablation.json").read_text())["runs"]}


def call(fit_command, *arguments):
    parser = argparse.ArgumentParser()
    ablate.add_arguments(parser)
    return ablate.main(parser.parse_args([str(argument) for argument in arguments]), fit_command=fit_command)


def test_every_variant_runs_with_every_seed_and_is_compared(tmp_path, fit_command, capsys):
    file = write_plan(tmp_path, {"better": {"score": 0.7}}, overrides=["--score=0.4"])
    assert call(fit_command, file, "--seeds", 2, "--workers", 2, "--out", tmp_path / "out") == 0
    assert states(tmp_path / "out") == dict.fromkeys(
        ["base/seed-0", "better/seed-0", "base/seed-1", "better/seed-1"], "done"
    )
    table = capsys.readouterr().out
    assert "| base | 2 | 0.405 |" in table  # (0.40 + 0.41) / 2
    assert "| better | 2 | 0.705 |" in table  # the variant's own override comes after the common one and wins


def test_a_run_gets_config_overrides_seed_and_folder(tmp_path, fit_command):
    file = write_plan(tmp_path, {"x": ["--score=0.1"]}, include_base=False)
    record = run_ablation(read_plan(file), out=tmp_path / "out", num_seeds=1, fit_command=fit_command)
    assert record.runs[0].command == [
        *fit_command,
        f"--config={tmp_path / 'experiment.yaml'}",
        "--score=0.1",
        "--seed_everything=0",
        f"--run_dir={tmp_path / 'out' / 'x' / 'seed-0'}",
    ]


def test_a_failing_run_is_recorded_and_the_others_go_on(tmp_path, fit_command, capsys):
    file = write_plan(tmp_path, {"bad": {"crash": "sgdd"}, "good": {"score": 0.6}})
    out = tmp_path / "out"
    assert call(fit_command, file, "--seeds", 1, "--out", out) == 1
    assert states(out) == {"base/seed-0": "done", "bad/seed-0": "failed", "good/seed-0": "done"}
    cause = "exit 1: ValueError: no such optimizer: sgdd"
    assert json.loads((out / "ablation.json").read_text())["runs"][1]["cause"] == cause
    assert f"- bad seed 0: left out, failed: {cause}" in capsys.readouterr().out
    assert "Traceback" in (out / "bad" / "seed-0" / "log.txt").read_text()


def test_finished_runs_are_skipped_and_more_seeds_added(tmp_path, fit_command):
    file = write_plan(tmp_path, {})
    out = tmp_path / "out"
    run_ablation(read_plan(file), out=out, num_seeds=1, fit_command=fit_command)
    log = (out / "base" / "seed-0" / "log.txt").read_text()
    run_ablation(read_plan(file), out=out, num_seeds=2, fit_command=fit_command)
    assert (out / "base" / "seed-0" / "log.txt").read_text() == log
    assert states(out) == {"base/seed-0": "done", "base/seed-1": "done"}


def test_failed_runs_start_again_only_when_asked(tmp_path, fit_command):
    plan = read_plan(write_plan(tmp_path, {"bad": {"crash": "x"}}, include_base=False))
    log = tmp_path / "out" / "bad" / "seed-0" / "log.txt"
    attempts = []
    for retry_failed in (False, False, True):
        run_ablation(plan, out=tmp_path / "out", num_seeds=1, retry_failed=retry_failed, fit_command=fit_command)
        attempts.append(log.read_text().count("Traceback"))
    assert attempts == [1, 1, 2]


KILLED = """
import sys
from pathlib import Path
from lit_agentrl.sweeping.ablate import run_ablation
from lit_agentrl.sweeping.plan import read_plan
run_ablation(read_plan(sys.argv[1]), out=Path(sys.argv[2]), num_seeds=1, fit_command=sys.argv[3:])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills the runs with their ablation")
def test_kill_9_in_the_middle_and_start_again(tmp_path, fit_command):
    file = write_plan(tmp_path, {"hanging": {"hang": 1}, "later": {}})
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(file), str(out), *fit_command])
    marker = out / "hanging" / "seed-0" / "hanging"
    assert happens(lambda: marker.is_file() and marker.read_text(), within_s=30)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert states(out) == {"base/seed-0": "done", "hanging/seed-0": "running", "later/seed-0": "pending"}

    assert call(fit_command, file, "--seeds", 1, "--out", out) == 0
    assert states(out) == dict.fromkeys(["base/seed-0", "hanging/seed-0", "later/seed-0"], "done")
    log = (out / "hanging" / "seed-0" / "log.txt").read_text()
    assert f"--ckpt_path={out / 'hanging' / 'seed-0' / 'checkpoints' / 'last.ckpt'}" in log
    assert "--ckpt_path" not in (out / "later" / "seed-0" / "log.txt").read_text()
    assert (out / "base" / "seed-0" / "log.txt").read_text().count("$ ") == 1  # done before: not run again
    assert not runs(int(marker.read_text()))  # the run that the killed ablation had started died with it


def test_an_interrupted_ablation_stops_its_runs_and_keeps_them_for_later(tmp_path, fit_command):
    file = write_plan(tmp_path, {"hanging": {"hang": 1}}, include_base=False)
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(file), str(out), *fit_command], stderr=subprocess.PIPE
    )
    marker = out / "hanging" / "seed-0" / "hanging"
    assert happens(lambda: marker.is_file() and marker.read_text(), within_s=30)
    process.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in process.communicate(timeout=30)[1]
    assert states(out) == {"hanging/seed-0": "running"}
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


def test_a_run_gets_its_share_of_the_cores(tmp_path, fit_command, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    run_ablation(
        read_plan(write_plan(tmp_path, {})), out=tmp_path / "out", num_seeds=1, num_workers=1, fit_command=fit_command
    )
    log = (tmp_path / "out" / "base" / "seed-0" / "log.txt").read_text()
    assert f"threads {threads_per_run(1)}\n" in log


def test_a_folder_in_use_is_refused(tmp_path, fit_command, monkeypatch):
    monkeypatch.setattr(ablate, "_LOCK_TIMEOUT_S", 0.2)
    plan = read_plan(write_plan(tmp_path, {"x": {"score": 0.1}}))
    out = tmp_path / "out"

    def nested(line):
        if "started" in line:
            run_ablation(plan, out=out, num_seeds=1, fit_command=fit_command)

    with pytest.raises(ValueError, match="is in use"):
        run_ablation(plan, out=out, num_seeds=1, fit_command=fit_command, report=nested)


def test_other_settings_need_another_folder(tmp_path, fit_command, capsys):
    out = tmp_path / "out"
    run_ablation(read_plan(write_plan(tmp_path, {"x": {"score": 0.1}})), out=out, num_seeds=1, fit_command=fit_command)
    assert call(fit_command, write_plan(tmp_path, {"x": {"score": 0.2}}), "--out", out) == 2
    assert "variant 'x' was run with ['--score=0.1'], not with ['--score=0.2']" in capsys.readouterr().err


def test_a_changed_experiment_needs_another_folder(tmp_path, fit_command):
    file = write_plan(tmp_path, {})
    run_ablation(read_plan(file), out=tmp_path / "out", num_seeds=1, fit_command=fit_command)
    (tmp_path / "experiment.yaml").write_text("model: big\n")
    with pytest.raises(ValueError, match="experiment file has changed"):
        run_ablation(read_plan(file), out=tmp_path / "out", num_seeds=1, fit_command=fit_command)


@pytest.mark.parametrize(("num_workers", "threads"), [(1, 8), (2, 4), (3, 2), (16, 1)])
def test_workers_share_the_cores(monkeypatch, num_workers, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert threads_per_run(num_workers) == threads


def test_the_last_exception_is_the_cause():
    log = (
        b"Traceback (most recent call last):\n  ...\ntorch.OutOfMemoryError: no room\n[W] process group not destroyed\n"
    )
    assert last_error_line(log) == "torch.OutOfMemoryError: no room"
    assert last_error_line(b"usage: fit\nfit: error: unknown key\n\n") == "fit: error: unknown key"
    assert last_error_line(b"") == "no output"
