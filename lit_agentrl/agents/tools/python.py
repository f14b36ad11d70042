"""A Python tool: what a model writes runs in the sandbox, and what it prints, or went wrong, is the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lit_agentrl.agents.tools.sandbox.protocol import Limits
from lit_agentrl.agents.tools.sandbox.sandbox import Sandbox, SandboxResult

_KEY = "agent.init_args.tools: make_python: init_args"


def make_python(
    *,
    wall_s: float = 10.0,
    cpu_s: int = 10,
    memory_mb: int = 512,
    disk_mb: int = 64,
    num_processes: int = 16,
    output_kb: int = 64,
    read_only: Sequence[str] = (),
    path: Sequence[str] = (),
    preload: Sequence[str] = (),
    allow_unsafe: bool = False,
) -> Callable[[str], str]:
    """Make a tool `python` that runs code in a sandbox of its own. The standard library is there, nothing else.

    Args:
        wall_s: Seconds by the clock that a call may take.
        cpu_s: CPU seconds of each process.
        memory_mb: Address space of each process, resident memory of all together.
        disk_mb: Size of the work folder, which is empty at the start of each call.
        num_processes: Processes and threads at a time.
        output_kb: Output beyond this ends the call.
        read_only: Further paths that the code may read.
        path: Further folders for `sys.path`.
        preload: Modules that are imported once for all calls.
        allow_unsafe: Run even on a machine that cannot protect itself.

    Raises:
        ValueError: A limit is not accepted, or protection is missing and `allow_unsafe` is not set.
    """
    limits = Limits(
        wall_s=wall_s,
        cpu_s=cpu_s,
        memory_mb=memory_mb,
        disk_mb=disk_mb,
        num_processes=num_processes,
        output_kb=output_kb,
    )
    sandbox = Sandbox(
        limits=limits, read_only=read_only, path=path, preload=preload, allow_unsafe=allow_unsafe, key=_KEY
    )

    def python(code: str) -> str:
        """Run a Python program and return what it prints; nothing is kept between calls.

        Args:
            code: The program. The value of its last line is printed, too.
        """
        return describe(sandbox.run(code, echo=True), limits)

    return python


def describe(result: SandboxResult, limits: Limits) -> str:
    """Return the output of a call as a model reads it.

    Raises:
        ValueError: The code failed or a limit ended it; the text is the traceback or the limit, after the output.
    """
    stdout, stderr = (text.decode(errors="replace").strip() for text in (result.stdout, result.stderr))
    said = "\n".join(text for text in (stdout, stderr) if text)
    if result.cause:
        allowed = {
            "wall time": f"{limits.wall_s:g} s by the clock",
            "CPU time": f"{limits.cpu_s} s of CPU time",
            "memory": f"{limits.memory_mb} MB of memory",
            "output": f"{limits.output_kb} kB of output",
        }[result.cause]
        # A model that printed without end reads the beginning elsewhere: the limit is what it has to know.
        raise ValueError(f"the program took more than {allowed} and was ended")
    if result.exit_code:
        ended = f"signal {-result.exit_code}" if result.exit_code < 0 else f"exit code {result.exit_code}"
        raise ValueError(said or f"the program ended with {ended}")
    return said or "(no output)"
