"""`lit-agentrl ablate FILE --seeds N`: an experiment, its variants and paired seeds, each run a process of its own."""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lit_agentrl.processes import die_with_parent
from lit_agentrl.reporting.compare import compare_runs, markdown_table
from lit_agentrl.reporting.runs import read_ablation
from lit_agentrl.sweeping.plan import AblationPlan, read_plan
from lit_agentrl.sweeping.record import AblationRecord, RunEntry

FIT_COMMAND = (sys.executable, "-m", "lit_agentrl", "fit")
_POLL_S = 0.1
_STOP_TIMEOUT_S = 30.0
_LOCK_TIMEOUT_S = 15.0
_LOG_TAIL_BYTES = 65536
_SIGNALS = {number.value: number.name for number in signal.Signals}
_ERROR_LINE = re.compile(r"^[\w.]*(Error|Exception|Exit|Interrupt)\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Child:
    """A run that is going on."""

    run: RunEntry
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int
    """Where this process's output starts in the log: a resumed run appends."""
    started: float


def run_ablation(
    plan: AblationPlan,
    *,
    out: Path,
    num_seeds: int,
    num_workers: int = 1,
    retry_failed: bool = False,
    fit_command: Sequence[str] = FIT_COMMAND,
    report: Callable[[str], None] = print,
) -> AblationRecord:
    """Run what is not done yet, and return the record.

    May be killed at any moment and called again: finished runs are skipped, interrupted ones start again from
    `checkpoints/last.ckpt` where they have one. A run that fails is recorded, and the others go on.

    Args:
        plan: What to run.
        out: Folder for runs and record; one ablation works in it at a time.
        num_seeds: Seeds 0 to `num_seeds - 1`, the same for every variant.
        num_workers: Runs at a time; the cores are shared out among them.
        retry_failed: Whether runs that failed in an earlier call start again.
        fit_command: Command that the arguments of a run are appended to.
        report: Takes one line per event.

    Raises:
        ValueError: If a count is not positive, the folder is in use, or it holds another ablation.
    """
    if num_seeds < 1 or num_workers < 1:
        raise ValueError(f"--seeds and --workers must be at least 1, not {num_seeds} and {num_workers}")
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out) as lock:
        record = AblationRecord(out, plan=plan, num_seeds=num_seeds, fit_command=fit_command)
        again = ("pending", "running", "failed") if retry_failed else ("pending", "running")
        waiting = [run for run in record.asked if run.state in again]
        report(f"{len(record.asked)} runs, {len(waiting)} to do, in {out}")
        children: list[_Child] = []
        try:
            while waiting or children:
                while waiting and len(children) < num_workers:
                    children.append(_start(waiting.pop(0), record, out=out, num_workers=num_workers, lock=lock))
                    report(f"{children[-1].run.label}: started, log in {children[-1].log}")
                ended = [child for child in children if child.process.poll() is not None]
                for child in ended:
                    children.remove(child)
                    _finish(child, record, report)
                if not ended:
                    time.sleep(_POLL_S)
        finally:
            # Only after an error or Ctrl-C is anything left here. It stays `running` in the record: to be resumed.
            _stop(children)
    return record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ablate` to a parser."""
    parser.add_argument("file", type=Path, metavar="FILE", help="ablation file: base, variants, overrides, metric")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds per variant (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, metavar="K", help="runs at a time (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the runs (default: runs/FILE's name)")
    parser.add_argument("--retry-failed", action="store_true", help="start runs again that failed earlier")


def main(args: argparse.Namespace, *, fit_command: Sequence[str] = FIT_COMMAND) -> int:
    """Run and compare; 0 when all runs are done, 1 when some failed, 2 when the request cannot be served."""
    try:
        plan = read_plan(args.file)
        out = (args.out or Path("runs") / args.file.stem).absolute()
        record = run_ablation(
            plan,
            out=out,
            num_seeds=args.seeds,
            num_workers=args.workers,
            retry_failed=args.retry_failed,
            fit_command=fit_command,
            report=lambda line: print(line, file=sys.stderr, flush=True),
        )
    except ValueError as error:
        print(f"ablate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ablate: interrupted; the same command goes on where it stopped", file=sys.stderr)
        return 130
    failed = [run for run in record.asked if run.state == "failed"]
    try:
        print(markdown_table(compare_runs(read_ablation(out), metric=plan.metric)))
    except ValueError as error:
        print(f"ablate: {error}", file=sys.stderr)
        return 1
    return 1 if failed else 0


def threads_per_run(num_workers: int) -> int:
    """Return the threads for each of several runs, so that together they do not exceed the cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // num_workers)


def last_error_line(log: bytes) -> str:
    """Return the last line that names an exception, or else the last line that says anything."""
    lines = [line.strip() for line in log.decode("utf-8", errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if _ERROR_LINE.match(line)]
    return (named or lines or ["no output"])[-1]


def _start(run: RunEntry, record: AblationRecord, *, out: Path, num_workers: int, lock: IO[str]) -> _Child:
    folder = out / run.folder
    folder.mkdir(parents=True, exist_ok=True)
    command = list(run.command)
    checkpoint = folder / "checkpoints" / "last.ckpt"
    if run.state != "pending" and checkpoint.is_file():
        command.append(f"--ckpt_path={checkpoint}")
    record.mark(run, "running")
    log = folder / "log.txt"
    threads = min(threads_per_run(num_workers), int(os.environ.get("OMP_NUM_THREADS") or sys.maxsize))
    with log.open("ab") as output:
        output.write(f"$ {shlex.join(command)}\n".encode())
        output.flush()
        start = output.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            # The runs hold the lock too: as long as one of them lives, nobody else may work in the folder.
            pass_fds=[lock.fileno()],
            preexec_fn=_die_with_parent(os.getpid()) if sys.platform == "linux" else None,
        )
    return _Child(run=run, process=process, log=log, log_start=start, started=time.monotonic())


def _finish(child: _Child, record: AblationRecord, report: Callable[[str], None]) -> None:
    code = child.process.returncode
    took = f"{time.monotonic() - child.started:.0f} s"
    if code == 0:
        record.mark(child.run, "done")
        report(f"{child.run.label}: done in {took}")
        return
    with child.log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(child.log_start, size - _LOG_TAIL_BYTES))
        line = last_error_line(file.read())
    ending = f"killed by {_SIGNALS.get(-code, f'signal {-code}')}" if code < 0 else f"exit {code}"
    record.mark(child.run, "failed", f"{ending}: {line}")
    report(f"{child.run.label}: failed after {took}, {ending}: {line}")


def _stop(children: Sequence[_Child]) -> None:
    for child in children:
        child.process.terminate()
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    for child in children:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()


@contextmanager
def _locked(out: Path) -> Iterator[IO[str]]:
    """Hold the folder; the system frees it when this process and its runs have ended, however they end."""
    with (out / ".lock").open("w") as lock:
        # Runs of an ablation that was killed may need a moment to follow it.
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ValueError(
                        f"{out} is in use: an ablation, or a run that it left, still works in it"
                    ) from None
                time.sleep(_POLL_S)
        yield lock


def _die_with_parent(parent: int) -> Callable[[], None]:
    """Return what a child does before it starts: ask Linux to be killed when the ablation is, kill -9 included."""

    def ask() -> None:
        if not die_with_parent(parent):  # it died before we could ask
            os._exit(1)

    return ask
