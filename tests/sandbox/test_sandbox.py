"""The sandbox as configuration and process: results, errors, endings, machines that cannot protect."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from process_watch import descendants, gone_within, happens

from lit_agentrl.agents.tools.sandbox import sandbox as module
from lit_agentrl.agents.tools.sandbox.cgroups import ControlGroup
from lit_agentrl.agents.tools.sandbox.landlock import landlock_version
from lit_agentrl.agents.tools.sandbox.protocol import Limits
from lit_agentrl.agents.tools.sandbox.sandbox import Sandbox, SandboxError
from lit_agentrl.agents.tools.sandbox.seccomp import filter_program
from lit_agentrl.agents.tools.sandbox.support import Support, detect

ROOT = Path(__file__).parents[2]
ENDLESS = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
os.setsid() if os.getsid(0) != os.getpid() else None
while True:
    pass
"""


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(limits=Limits(wall_s=20, memory_mb=256)) as made:
        yield made


def test_output_exit_code_and_traceback(sandbox):
    result = sandbox.run("import sys\nprint('ä')\nsys.exit(3)")
    assert (result.exit_code, result.cause, result.stdout.decode()) == (3, "", "ä\n")
    result = sandbox.run("def half(x):\n    return x / 0\n\nhalf(1)")
    assert result.exit_code == 1
    lines = result.stderr.decode().splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line for line in lines if "File" in line] == [
        '  File "main.py", line 4, in <module>',
        '  File "main.py", line 2, in half',
    ]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert sandbox.run("import os; os.kill(os.getpid(), 11)").exit_code == -signal.SIGSEGV
    assert sandbox.run("1 +").stderr.decode().splitlines()[-1].startswith("SyntaxError")


def test_files_arguments_and_the_last_value(sandbox):
    result = sandbox.run(
        "import helper, sys\nprint(sys.argv[1:])\nhelper.x",
        files={"helper.py": b"x = 5"},
        argv=("p.py", "a"),
        echo=True,
    )
    assert result.stdout.decode() == "['a']\n5\n"


def test_threads_and_exit_functions_end_before_the_call(sandbox):
    code = (
        "import atexit, threading, time\natexit.register(print, 'exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\nprint('main')"
    )
    assert sandbox.run(code).stdout.decode().split() == ["main", "thread", "exit"]


def test_the_same_call_gives_the_same_output(sandbox):
    code = "import random\nprint(set('abcdefgh'), hash('x'))"
    with Sandbox() as other:
        assert sandbox.run(code).stdout == sandbox.run(code).stdout == other.run(code).stdout


def test_calls_of_several_threads_wait_for_each_other(sandbox):
    found = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: sandbox.run(f"print({n})").stdout})) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: f"{n}\n".encode() for n in range(4)}


def test_a_dead_zygote_is_an_error_once_and_then_replaced(sandbox):
    sandbox.run("")
    os.kill(sandbox.pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match="the zygote died or hangs"):
        sandbox.run("")
    assert sandbox.run("print(1)").stdout == b"1\n"


def test_preloaded_modules_come_from_the_paths_given(tmp_path):
    (tmp_path / "own_module.py").write_text("value = 7")
    options = {"read_only": [str(tmp_path)], "path": [str(tmp_path)]}
    with Sandbox(**options, preload=["own_module"]) as made:
        assert made.run("import sys; print('own_module' in sys.modules, sys.modules['own_module'].value)").stdout == (
            b"True 7\n"
        )
    with pytest.raises(SandboxError, match=r"ModuleNotFoundError.*missing_module"):
        Sandbox(**options, preload=["missing_module"]).run("")


@pytest.mark.parametrize(
    ("limits", "words"),
    [({"wall_s": 0}, "wall_s must be"), ({"memory_mb": 1}, "memory_mb must be"), ({"cpu_s": 1.5}, "whole number")],
)
def test_limits_that_make_no_sense_name_their_key(limits, words):
    with pytest.raises(ValueError, match=rf"tools\.{words}|tools\..*{words}"):
        Sandbox(limits=Limits(**limits), key="tools")


def test_a_machine_without_protection_is_refused_by_a_message_that_names_the_key(monkeypatch):
    nothing = Support(namespaces=False, landlock=True, seccomp=True, bwrap=None)
    monkeypatch.setattr(module, "detect", lambda: nothing)
    with pytest.raises(
        ValueError, match=r"tools: this machine cannot protect .* lacks user, mount.*allow_unsafe: true"
    ):
        Sandbox(key="tools")
    monkeypatch.setattr(module, "detect", lambda: Support(namespaces=True, landlock=False, seccomp=True, bwrap=None))
    with pytest.raises(ValueError, match=r"lacks Landlock .*tools.allow_unsafe: true"):
        Sandbox(key="tools")
    with Sandbox(key="tools", allow_unsafe=True) as made:
        assert made.run("print(1)").stdout == b"1\n"


def test_allow_unsafe_runs_where_the_kernel_refuses_everything():
    # Inside of a user namespace that may have no further ones, nothing of the protection can be set up.
    program = (
        "from lit_agentrl.agents.tools.sandbox.sandbox import Sandbox\n"
        "from lit_agentrl.agents.tools.sandbox.support import detect\n"
        "from lit_agentrl.agents.tools.sandbox.protocol import Limits\n"
        "assert not detect().namespaces\n"
        "made = Sandbox(allow_unsafe=True, limits=Limits(cpu_s=1, wall_s=60))\n"
        'code = \'import helper; open("y", "w").write("2"); print(helper.value * int(open("y").read()))\'\n'
        "told = made.run(code, files={'helper.py': b'value = 21'}).stdout\n"
        "print(told, made.run('while True: pass', wall_s=0.3).cause)\n"
        "shouted = made.run('while True: print(9 * 10**1000)')\n"
        "print(shouted.cause, len(shouted.stdout) + len(shouted.stderr) == made.limits.output_kb * 1024)\n"
        "code = 'try:\\n    bytearray(10 * 2**30)\\nexcept MemoryError:\\n    print(7)'\n"
        "print(made.run(code).stdout, made.run('while True: pass').cause)\n"
        "made.close()\n"
    )
    path = "/proc/sys/user/max_user_namespaces"
    command = ["unshare", "-Ur", "sh", "-c", f'echo 0 > {path} && exec setpriv --bounding-set=-all "$@"', "sh"]
    done = subprocess.run(
        [*command, sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=_environment(),
        timeout=60,
    )
    assert done.stdout.splitlines() == ["b'42\\n' wall time", "output True", "b'7\\n' CPU time"], done.stderr


def _environment():
    return dict(os.environ) | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.parametrize("ending", ["normal", "Ctrl-C", "kill -9", "zygote killed"])
def test_no_process_outlives_the_trainer(ending):
    program = (
        "import sys, threading, time\n"
        "from lit_agentrl.agents.tools.sandbox.sandbox import Sandbox\n"
        "made = Sandbox()\n"
        "made.run('')\n"
        "print(made.pid, flush=True)\n"
        f"work = threading.Thread(target=made.run, args=({ENDLESS!r},), daemon=True)\n"
        "work.start()\n"
        "input()\n"
    )
    if ending == "Ctrl-C":  # in the middle of a call
        program = program.replace("work.start()\ninput()", f"made.run({ENDLESS!r})")
    trainer = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=_environment(),
    )
    zygote = int(trainer.stdout.readline())
    # the process that waits, the init of the namespace, the code and its fork
    assert happens(lambda: len(descendants(zygote)) == 4, within_s=20)
    pids = [zygote, *descendants(zygote)]
    if ending == "normal":
        trainer.stdin.write(b"\n")
        trainer.stdin.flush()
    else:
        victim, number = {
            "Ctrl-C": (trainer.pid, signal.SIGINT),
            "kill -9": (trainer.pid, signal.SIGKILL),
            "zygote killed": (zygote, signal.SIGKILL),
        }[ending]
        os.kill(victim, number)
    try:
        assert gone_within(10, pids)
    finally:
        trainer.kill()
        trainer.wait()
        trainer.stdin.close()
        trainer.stdout.close()
    left = [folder for folder in Path("/sys/fs/cgroup").glob(f"**/lit_agentrl_{trainer.pid}_*")]
    assert ending == "zygote killed" or not left
    for folder in left:
        folder.rmdir()


def test_it_protects_an_ordinary_user_too():
    program = (
        "import os\nassert os.getuid() == 4711\n"
        "from lit_agentrl.agents.tools.sandbox.sandbox import Sandbox\n"
        "made = Sandbox()\n"
        "print(made.run('import os; print(os.getuid(), os.getpid(), os.listdir())').stdout)\n"
        "made.close()\n"
    )
    command = ["unshare", "-U", "--map-user=4711", "--map-group=4711", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=_environment(), timeout=60)
    assert done.stdout == "b'1000 2 []\\n'\n", done.stderr


def test_a_control_group_of_version_2(tmp_path):
    # No machine at hand has one that may be used; these are the files that such a group has.
    own = tmp_path / "user" / "session"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("cpu memory pids")
    real_mkdir = Path.mkdir

    def mkdir(path, *arguments, **options):
        real_mkdir(path, *arguments, **options)
        for name in ("cgroup.procs", "memory.max", "memory.swap.max", "pids.max"):
            (path / name).touch()
        (path / "memory.events").write_text("low 0\noom_kill 0\n")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", mkdir)
        group = ControlGroup("x", memory_bytes=100, num_tasks=5, root=tmp_path, own="0::/user/session\n")
    assert group.controllers == {"memory", "pids"}
    assert [(own / "x" / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")] == [
        "100",
        "0",
        "5",
    ]
    group.join()
    assert (own / "x" / "cgroup.procs").read_text() == "0"
    assert group.killed_for_memory() is False
    (own / "x" / "memory.events").write_text("low 0\noom_kill 1\n")
    assert [group.killed_for_memory(), group.killed_for_memory()] == [True, False]


def test_a_group_that_may_not_be_made_is_done_without(tmp_path):
    group = ControlGroup("x", memory_bytes=1, num_tasks=1, root=tmp_path, own="4:memory:/gone\n0::/gone\n")
    assert group.controllers == set()
    group.join()
    group.remove()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_jump_of_the_filter_stays_inside(machine):
    import struct

    program = list(struct.iter_unpack("HBBI", filter_program(machine)))
    for place, (code, if_true, if_false, _) in enumerate(program):
        if code in (0x15, 0x35, 0x45):
            assert place + 1 + max(if_true, if_false) < len(program)
    assert program[-1][0] == 0x06
    with pytest.raises(KeyError):
        filter_program("sparc")


def test_this_machine_is_described():
    support = detect()
    assert support.missing == ()
    assert landlock_version() >= 1
