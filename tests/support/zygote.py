"""Runs command lines in forked children: the imports, which take most of a small run's time, are paid once.

One JSON object a line comes in (argv, cwd, env, log), one goes out (code: exit status, or minus the signal).
"""

import json
import os
import sys
import traceback

import lit_agentrl.cli  # noqa: F401 (this is the import that takes long)
from lit_agentrl.__main__ import main


def run(job):
    os.chdir(job["cwd"])
    os.environ.update(job["env"])
    sys.path[:0] = job["path"]
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        return main(job["argv"])
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1


for line in sys.stdin:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        sys.exit(run(json.loads(line)))
    _, status = os.waitpid(pid, 0)
    print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)
