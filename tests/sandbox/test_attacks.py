"""One attack for each promise of docs/sandbox.md. The code below is what a model could have written."""

import os
import re
import signal
import textwrap
import threading
import time
from pathlib import Path

import pytest
from process_watch import descendants, happens, with_command

from lit_agentrl.agents.tools.sandbox.protocol import Limits
from lit_agentrl.agents.tools.sandbox.sandbox import Sandbox

LIMITS = Limits(wall_s=20, cpu_s=1, memory_mb=256, disk_mb=8, num_processes=8, output_kb=64)
SECRET = "do-not-tell-4711"


@pytest.fixture(scope="module", params=["control groups", "none"])
def sandbox(request):
    os.environ["LIT_AGENTRL_TEST_SECRET"] = SECRET
    try:
        with Sandbox(limits=LIMITS, use_control_group=request.param == "control groups", use_bwrap=False) as made:
            yield made
    finally:
        del os.environ["LIT_AGENTRL_TEST_SECRET"]


def attack(sandbox, source, **options):
    return sandbox.run(textwrap.dedent(source), **options)


def says(sandbox, source, **options):
    result = attack(sandbox, source, **options)
    assert result.exit_code == 0, result
    return result.stdout.decode().split()


def test_no_network(sandbox):
    refused = says(
        sandbox,
        """
        import socket
        for family, kind in ((socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET6, socket.SOCK_DGRAM),
                             (socket.AF_NETLINK, socket.SOCK_RAW), (socket.AF_PACKET, socket.SOCK_RAW)):
            try:
                socket.socket(family, kind)
            except PermissionError:
                print("refused")
        """,
    )
    assert refused == ["refused"] * 4


def test_sockets_of_its_own_work_and_abstract_ones_of_the_machine_do_not(sandbox):
    import socket

    name = f"\0lit_agentrl_{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        output = says(
            sandbox,
            f"""
            import asyncio, socket
            asyncio.run(asyncio.sleep(0))
            try:
                socket.socket(socket.AF_UNIX).connect({name!r})
            except OSError as error:
                print(type(error).__name__)
            """,
        )
    assert output in (["ConnectionRefusedError"], ["PermissionError"])


def test_no_files_of_the_machine(sandbox, tmp_path):
    (tmp_path / "secret").write_text(SECRET)
    here = str(Path(__file__).resolve())
    output = says(
        sandbox,
        f"""
        for path in ("/etc/passwd", "/etc/shadow", {str(tmp_path / "secret")!r}, {here!r}, "/proc/1/environ",
                     "/proc/self/environ", "/proc/self/root/etc/passwd", "/sys/kernel", "/root", "/home", "/dev/mem"):
            try:
                open(path).read()
            except (FileNotFoundError, PermissionError):
                print("refused")
        """,
    )
    assert output == ["refused"] * 11


def test_no_environment_variables_of_the_trainer(sandbox):
    output = attack(
        sandbox,
        """
        import gc, os
        print(dict(os.environ))
        import subprocess, sys
        print(subprocess.run([sys.executable, "-c", "import os; print(dict(os.environ))"], capture_output=True))
        print([thing for thing in gc.get_objects() if isinstance(thing, dict)])
        """,
    )
    assert output.stdout
    assert SECRET.encode() not in output.stdout + output.stderr


def test_nothing_is_written_outside_of_the_work_folder(sandbox, tmp_path):
    target = tmp_path / "x"
    output = says(
        sandbox,
        f"""
        import os, sys
        for path in ({str(target)!r}, "/x", "/etc/x", "/usr/lib/x", os.path.join(sys.prefix, "x"), os.__file__,
                     "/dev/x", "/sandbox/../x"):
            try:
                open(path, "w").write("x")
                print("written", path)
            except OSError:
                print("refused")
        open("/sandbox/x", "w").write("x")
        """,
    )
    assert output == ["refused"] * 8
    assert not target.exists()


def test_nothing_stays_for_the_next_call(sandbox):
    attack(sandbox, "import sys; open('left', 'w').write('x'); sys.left = 1; import os; os.environ['LEFT'] = '1'")
    assert says(sandbox, "import os, sys; print(os.listdir(), hasattr(sys, 'left'), 'LEFT' in os.environ)") == [
        "[]",
        "False",
        "False",
    ]


@pytest.mark.parametrize("path", ["../out", "/etc/out", "a/../../out", ""])
def test_files_that_are_given_cannot_leave_the_folder(sandbox, path):
    with pytest.raises(ValueError, match="outside of the work folder"):
        sandbox.run("", files={path: b"x"})


def test_a_fork_bomb_stops_at_the_limit(sandbox):
    output = says(
        sandbox,
        """
        import os, time
        children = 0
        try:
            while True:
                if not os.fork():
                    time.sleep(60)
                children += 1
        except OSError:
            print(children)
        """,
    )
    assert 1 <= int(output[0]) <= LIMITS.num_processes
    result = attack(
        sandbox, "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError: pass", wall_s=0.5
    )
    assert result.cause in ("wall time", "memory")


def test_threads_stop_at_the_limit_too(sandbox):
    output = says(
        sandbox,
        """
        import threading
        threading.stack_size(64 * 1024)  # so that memory is not what ends it
        held, started = threading.Event(), 0
        try:
            for _ in range(1000):
                threading.Thread(target=held.wait, daemon=True).start()
                started += 1
        except RuntimeError:
            print(started)
        held.set()
        """,
    )
    # The main thread is one of them.
    assert LIMITS.num_processes // 2 <= int(output[0]) < LIMITS.num_processes


def test_ten_gigabytes_are_refused(sandbox):
    output = says(sandbox, "try:\n    bytearray(10 * 2**30)\nexcept MemoryError:\n    print('refused')")
    assert output == ["refused"]


def test_memory_of_many_processes_counts_together(sandbox):
    result = attack(
        sandbox,
        """
        import os, time
        for _ in range(4):
            if not os.fork():
                data = bytearray(os.urandom(2**20) * 150)
                time.sleep(30)
                os._exit(0)
        while True:
            try:
                if os.wait()[1]:
                    raise SystemExit(3)  # the kernel killed one
            except ChildProcessError:
                break
        """,
    )
    assert result.cause == "memory"
    assert result.wall_s < 15


def test_memory_beside_the_address_space_is_refused(sandbox):
    output = says(
        sandbox,
        """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            os.memfd_create("x")
        except PermissionError:
            print("refused")
        if libc.shmget(0, 2**30, 0o1600) == -1:
            print("refused")
        """,
    )
    assert output == ["refused"] * 2


def test_the_folder_is_full_at_its_limit(sandbox):
    """Neither one large file, nor many, nor empty ones: the limits are what they say."""
    large, many, empty = says(
        sandbox,
        """
        import os
        written = 0
        try:
            with open("large", "wb", buffering=0) as file:
                while written < 100 * 2**20:
                    written += file.write(bytes(2**16))
        except OSError:
            print(written)
        os.truncate("large", 0)
        written = 0
        try:
            for number in range(100):
                with open(f"many{number}", "wb", buffering=0) as file:
                    written += file.write(bytes(2**20))
        except OSError:
            print(written)
        for name in os.listdir():
            os.remove(name)
        number = 0
        try:
            while number < 100_000:
                open(f"empty{number}", "wb").close()
                number += 1
        except OSError:
            print(number)
        """,
    )
    disk = LIMITS.disk_mb * 2**20
    assert disk - 2**17 <= int(large) <= disk
    assert disk - 2**20 - 2**17 <= int(many) <= disk
    assert 8000 < int(empty) <= 8192


def test_a_file_is_no_larger_than_the_folder_may_be(sandbox):
    output = says(
        sandbox,
        f"""
        import os, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        file = os.open("hole", os.O_RDWR | os.O_CREAT)
        for size in ({LIMITS.disk_mb * 2**20}, {LIMITS.disk_mb * 2**20 + 1}):
            try:
                os.ftruncate(file, size)  # holes take no room, so only the limit of a file stands against this
                print("made")
            except OSError as error:
                print(error.errno == 27)
        """,
    )
    assert output == ["made", "True"]


def test_a_gigabyte_of_output_ends_the_call(sandbox):
    begin = time.monotonic()
    for stream in ("stdout", "stderr"):
        result = attack(sandbox, f"import sys\nfor _ in range(1024):\n    sys.{stream}.write('x' * 2**20)")
        assert result.cause == "output"
        assert len(result.stdout) + len(result.stderr) == LIMITS.output_kb * 1024
    assert time.monotonic() - begin < 15


def test_an_endless_loop_ends_by_the_clock_or_by_cpu_time(sandbox):
    result = attack(sandbox, "while True: pass", wall_s=0.3)
    assert (result.cause, result.wall_s < 5) == ("wall time", True)
    result = attack(sandbox, "import time; time.sleep(100)", wall_s=0.3)
    assert result.cause == "wall time"
    # On a busy machine a second of CPU time takes long.
    result = attack(sandbox, "while True: pass", wall_s=120)
    assert (result.cause, result.exit_code) == ("CPU time", -signal.SIGXCPU)
    assert result.cpu_s < LIMITS.cpu_s + 1
    result = attack(sandbox, "import os, signal\nos.kill(os.getpid(), signal.SIGXCPU)")
    assert (result.cause, result.exit_code) == ("", -signal.SIGXCPU)
    ignoring = """
        import signal
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        while True:
            pass
    """
    result = attack(sandbox, ignoring, wall_s=120)
    assert (result.cause, result.cpu_s < LIMITS.cpu_s + 2) == ("CPU time", True)


def test_no_signal_reaches_anything_outside(sandbox):
    output = says(
        sandbox,
        f"""
        import os, signal
        for process in ({os.getpid()}, {sandbox.pid}):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                print("refused")
        for number in (signal.SIGKILL, signal.SIGTERM):
            try:
                os.kill(1, number)  # newer kernels refuse; for older ones, the init of a namespace takes no signals
            except PermissionError:
                pass
        print("alive")
        """,
    )
    assert output == ["refused", "refused", "alive"]
    result = attack(sandbox, "import os, signal; os.kill(-1, signal.SIGKILL)")
    assert result.exit_code in (1, -9)  # there is nobody, or itself
    os.kill(sandbox.pid, 0)
    assert says(sandbox, "print('well')") == ["well"]


def test_links_lead_nowhere(sandbox):
    output = says(
        sandbox,
        """
        import os
        os.symlink("/etc/passwd", "a")
        os.symlink("/proc/self/root/etc/passwd", "b")
        os.symlink("../../../../../../etc", "c")
        for path in ("a", "b", "c/passwd", "c/../etc/shadow", "/proc/self/fd/0", "/proc/1/root/etc/passwd"):
            try:
                open(path).read()
                print("read", path)
            except OSError:
                print("refused")
        try:
            os.link(os.__file__, "hard")
        except OSError:
            print("refused")
        """,
    )
    assert output == ["refused"] * 7


def test_no_way_out_through_mounts_namespaces_and_other_processes(sandbox):
    output = says(
        sandbox,
        """
        import ctypes, errno, os
        libc = ctypes.CDLL(None, use_errno=True)
        tries = {
            "mount": lambda: libc.mount(b"none", b"/sandbox", b"tmpfs", 0, None),
            "umount": lambda: libc.umount2(b"/sandbox", 2),
            "user namespace": lambda: libc.unshare(0x10000000),
            "chroot": lambda: libc.chroot(b"/sandbox"),
            "ptrace": lambda: libc.ptrace(16, 1, None, None),
            "clone": lambda: libc.syscall(56 if os.uname().machine == "x86_64" else 220, 0x10000000 | 17, 0, 0, 0, 0),
            "bpf": lambda: libc.syscall(321 if os.uname().machine == "x86_64" else 280, 0, 0, 0),
            "io_uring": lambda: libc.syscall(425, 1, 0),
            "root": lambda: libc.setuid(0),
            "memory": lambda: libc.process_vm_readv(1, None, 0, None, 0, 0),
        }
        for name, attempt in tries.items():
            if attempt() == -1 and ctypes.get_errno() in (errno.EPERM, errno.EINVAL):
                print("refused")
            else:
                print("did", name)
        """,
    )
    assert output == ["refused"] * 10


def test_descriptors_of_the_zygote_are_closed(sandbox):
    assert says(
        sandbox,
        """
        import os
        for number in range(1024):
            try:
                os.fstat(number)
                print(number)
            except OSError:
                pass
        """,
    ) == ["0", "1", "2"]


def test_each_call_has_its_own_user_and_processes(sandbox):
    first, second = (says(sandbox, "import os; print(os.getuid(), os.getpid(), os.getppid())") for _ in range(2))
    assert first == second == ["1000", "2", "1"]


@pytest.mark.skipif(os.getuid() != 0, reason="an ordinary user's calls have that user's id outside")
def test_outside_each_call_is_a_user_of_its_own(sandbox):
    def users():
        sandbox.run("")
        call = threading.Thread(target=sandbox.run, args=("import time; time.sleep(60)",), kwargs={"wall_s": 1.5})
        call.start()
        # the process that waits, the init and the code
        assert happens(lambda: len(own := descendants(sandbox.pid)) == 3 and all(map(user_of, own)), within_s=20)
        found = {user_of(pid) for pid in descendants(sandbox.pid)}
        call.join()
        return found

    (first,), (second,) = users(), users()
    assert min(first, second) >= 2**30
    assert first != second


def user_of(pid):
    """Return the real user id of a process, as the machine sees it."""
    return int(re.search(r"^Uid:\t(\d+)", Path(f"/proc/{pid}/status").read_text(), flags=re.MULTILINE)[1])


def test_what_a_call_leaves_behind_is_gone_when_it_returns(sandbox):
    marker = f"marker_{os.getpid()}"
    result = attack(
        sandbox,
        f"""
        import os, subprocess, sys
        # a daemon: own session, orphaned, output closed
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)  # {marker}"], start_new_session=True,
                         stdin=-3, stdout=-3, stderr=-3)
        """,
    )
    assert result.exit_code == 0, result.stderr
    assert not with_command(marker)
