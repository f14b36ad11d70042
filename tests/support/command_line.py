"""Runs the command line many times without importing torch each time."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parent.parent


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    """Exit status; minus the signal if one ended it."""
    output: str
    """Standard output and error together."""


class CommandLine:
    """Runs `python -m lit_agentrl …` in forked children of a process that has the imports behind it."""

    def __init__(self):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        self._process = subprocess.Popen(
            [sys.executable, str(SUPPORT / "zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"HF_HUB_OFFLINE": "1", "COLUMNS": "160"},
        )

    def run(self, *argv, log, cwd=ROOT, env=None):
        env = dict(env or {})
        paths = [str(SUPPORT), *filter(None, env.pop("PYTHONPATH", "").split(os.pathsep))]
        job = {
            "argv": [str(a) for a in argv],
            "cwd": str(cwd),
            # Environment workers are fresh processes and import the test's classes too.
            "env": {"PYTHONPATH": os.pathsep.join([str(ROOT), *paths]), **env},
            "path": paths,
            "log": str(log),
        }
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        assert reply, "the process that forks the commands is gone"
        return Outcome(json.loads(reply)["code"], Path(log).read_text(errors="replace"))

    def close(self):
        self._process.stdin.close()
        self._process.wait(30)
