"""One call in the sandbox: from a fork of the zygote through namespaces and limits to the model's code."""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lit_agentrl.agents.tools.sandbox import kernel, landlock, seccomp
from lit_agentrl.agents.tools.sandbox.protocol import Limits
from lit_agentrl.agents.tools.sandbox.root import DEVICES, WORK
from lit_agentrl.processes import die_with_parent

INNER_ID = 1000
SETUP_FAILED = 125
OWN_PROCESSES = 2  # the one that waits outside the namespace and its init
_MAX_INODES = 8192


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to run."""

    source: bytes
    files: dict[str, bytes]
    argv: list[str]
    echo: bool
    """Print the value of the last line if it is an expression, as an interactive session does."""


@dataclass(frozen=True, kw_only=True)
class Pipes:
    """The call's ends of its pipes."""

    stdout: int
    stderr: int
    report: int
    """Lines: `began` when the clock starts, `ended CODE CPU_SECONDS`, or `setup` and what went wrong."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the zygote has prepared for its calls."""

    limits: Limits
    readable: Sequence[str]
    join_group: Callable[[], None]
    proc: int
    """Descriptor of the machine's `/proc`, which calls do not have."""
    uid: int | None
    """User and group that the call becomes outside of its namespace; `None`: it stays what the zygote is."""
    unsafe: bool


def start(job: Job, pipes: Pipes, around: Surroundings) -> NoReturn:
    """Run a job in a fork of the zygote and end the process. Never returns, never raises."""
    code = SETUP_FAILED
    try:
        code = _outside(job, pipes, around)
    except BaseException as error:
        _report(pipes, f"setup {type(error).__name__}: {error}")
    finally:
        os._exit(code)


def _outside(job: Job, pipes: Pipes, around: Surroundings) -> int:
    """Make the namespaces and wait for the init in them."""
    zygote = os.getppid()
    around.join_group()
    with _tolerating(around.unsafe):
        _enter_namespaces(around)
    if not die_with_parent(zygote):
        return SETUP_FAILED
    _report(pipes, "began")
    work = WORK if os.path.ismount(WORK) else tempfile.mkdtemp(dir=os.getcwd())
    os.chdir(work)
    for name, data in job.files.items():
        path = Path(work, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    lifeline, held = os.pipe()
    init = os.fork()
    if not init:
        os.close(held)
        code = SETUP_FAILED
        try:
            code = _init(job, pipes, around, lifeline)
        except BaseException as error:
            _report(pipes, f"setup {type(error).__name__}: {error}")
        finally:
            os._exit(code)
    for descriptor in (pipes.stdout, pipes.stderr, pipes.report):
        os.close(descriptor)
    os.waitpid(init, 0)
    return 0


def _enter_namespaces(around: Surroundings) -> None:
    """Become another user, and process 1 of nothing yet, with an empty work folder."""
    if around.uid is not None:
        os.setgroups([])
        os.setresgid(around.uid, around.uid, around.uid)
        os.setresuid(around.uid, around.uid, around.uid)
        kernel.set_dumpable(True)  # or the files that are written below are not ours
    user, group = os.getuid(), os.getgid()
    kernel.unshare(
        kernel.CLONE_NEWUSER
        | kernel.CLONE_NEWNS
        | kernel.CLONE_NEWPID
        | kernel.CLONE_NEWIPC
        | kernel.CLONE_NEWUTS
        | kernel.CLONE_NEWCGROUP
    )
    map_user(around.proc, user, group, inner=INNER_ID)
    limits = around.limits
    options = f"size={limits.disk_mb}m,nr_inodes={_MAX_INODES},mode=755,uid={INNER_ID},gid={INNER_ID}"
    kernel.mount("work", WORK, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)


def map_user(proc: int, user: int, group: int, *, inner: int) -> None:
    """Say who the only user of this process's own new user namespace is outside of it."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{inner} {user} 1"), ("gid_map", f"{inner} {group} 1")):
        descriptor = os.open(f"self/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def _init(job: Job, pipes: Pipes, around: Surroundings, lifeline: int) -> int:
    """Be process 1 of the namespace: start the code, reap what it leaves, report, and take all the rest along."""
    die_with_parent()
    if select.select([lifeline], [], [], 0)[0]:
        return SETUP_FAILED  # the parent died before that
    kernel.drop_capabilities()
    kernel.forbid_new_privileges()
    with contextlib.suppress(ValueError, OSError):
        tasks = around.limits.num_processes + OWN_PROCESSES
        resource.setrlimit(resource.RLIMIT_NPROC, (tasks, tasks))
    child = os.fork()
    if not child:
        _become_code(job, pipes, around)
    kernel.set_dumpable(False)
    for descriptor in (pipes.stdout, pipes.stderr):
        os.close(descriptor)
    while True:
        try:
            pid, status = os.wait()
        except InterruptedError:
            continue
        if pid == child:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    _report(pipes, f"ended {os.waitstatus_to_exitcode(status)} {used.ru_utime + used.ru_stime:.4f}")
    return 0


def _become_code(job: Job, pipes: Pipes, around: Surroundings) -> NoReturn:
    """Take the limits on and run the code."""
    code = SETUP_FAILED
    try:
        die_with_parent()
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (pipes.stdout, 1), (pipes.stderr, 2)):
            os.dup2(source, target)
        report = os.dup2(pipes.report, 3, inheritable=False)
        os.closerange(4, 1024)
        _limit(around.limits)
        with _tolerating(around.unsafe):
            landlock.restrict(read=[*around.readable, "/dev"], write=[os.getcwd(), *DEVICES])
            seccomp.install()
        os.close(report)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(3, f"setup {type(error).__name__}: {error}\n".encode())
        os._exit(code)
    os._exit(_run(job))


def _limit(limits: Limits) -> None:
    megabyte = 2**20
    wanted = {
        resource.RLIMIT_CPU: (limits.cpu_s, limits.cpu_s + 1),
        resource.RLIMIT_AS: (limits.memory_mb * megabyte,) * 2,
        resource.RLIMIT_FSIZE: (limits.disk_mb * megabyte,) * 2,
        resource.RLIMIT_NOFILE: (256, 256),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_MEMLOCK: (0, 0),
        resource.RLIMIT_MSGQUEUE: (0, 0),
    }
    for which, pair in wanted.items():
        hard = resource.getrlimit(which)[1]
        resource.setrlimit(which, pair if hard == resource.RLIM_INFINITY else (min(pair[0], hard), min(pair[1], hard)))


def _run(job: Job) -> int:
    """Run the code as the main module and return its exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the zygote ignores it
    # Streams of the whole process: nobody closes them before it ends.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = list(job.argv)
    sys.path.insert(0, os.getcwd())
    for name in [name for name in sys.modules if name.partition(".")[0] == "lit_agentrl"]:
        del sys.modules[name]
    code = 0
    try:
        _execute(job)
    except SystemExit as stop:
        code = _exit_code(stop)
    except BaseException as error:
        code = 1
        with contextlib.suppress(BaseException):
            _show(error)
    for last in ("threads", "exit functions", "output"):
        try:
            if last == "threads" and (threading := sys.modules.get("threading")) is not None:
                threading._shutdown()  # waits for them, as the end of a program does
            elif last == "exit functions":
                atexit._run_exitfuncs()
            elif last == "output":
                sys.stdout.flush()
                sys.stderr.flush()
        except BaseException:
            code = code or 1
    return code


def _execute(job: Job) -> None:
    import ast
    import linecache
    import types

    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    name = job.argv[0]
    text = job.source.decode()
    # Tracebacks then show the line.
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    tree = ast.parse(text, name)
    last: ast.Expr | None = None
    if job.echo and tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        del tree.body[-1]
    exec(compile(tree, name, "exec", dont_inherit=True), module.__dict__)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), module.__dict__)
        if value is not None:
            print(repr(value))


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    with contextlib.suppress(BaseException):
        print(stop.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """Print the traceback without the frames of this file."""
    frames: Any = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    if isinstance(error, SyntaxError):
        frames = None
    sys.stdout.flush()
    traceback.print_exception(type(error), error.with_traceback(frames), frames)


@contextlib.contextmanager
def _tolerating(unsafe: bool) -> Any:
    """Pass over what the kernel refuses, if that was asked for."""
    try:
        yield
    except (OSError, KeyError):
        if not unsafe:
            raise


def _report(pipes: Pipes, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(pipes.report, f"{text}\n".encode())
