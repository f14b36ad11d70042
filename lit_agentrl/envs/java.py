"""Simulators on the Java virtual machine: bounded in memory and time, and never left behind."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

_OPTIONS = ("-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError")
"""One thread collects garbage, since workers share the cores; out of memory, the machine ends rather than limps on."""

_DYING_S = 0.5
"""A connection breaks before the process that held it is gone."""


class JavaLostError(RuntimeError):
    """The Java process is gone or gave no answer in time. It has been ended; the next episode needs another one."""


class JavaServer:
    """A Java process with one library's jar, spoken to through py4j.

    It ends with `close`, when it is no longer referred to, when Python exits, and, because it notices the end of its
    standard input, when this process is killed. Strangers on the same machine cannot use it: calls carry a token.

    Args:
        jar: The library's jar. Its folder is the process's working directory.
        heap_mb: Limit of the heap; the process takes some 100 MB more.
        options: Further options of `java`.
        first: A class that is loaded at once, without a limit of time: on a busy machine that takes longer than any
            call later on.
    """

    def __init__(self, jar: Path, *, heap_mb: int, options: Sequence[str] = (), first: str | None = None) -> None:
        from py4j.java_gateway import launch_gateway

        self.name = jar.stem
        command = [f"-Xmx{heap_mb}m", *_OPTIONS, *options]
        try:
            self._port, self._token, self.process = launch_gateway(
                classpath=str(jar),
                javaopts=command,
                java_path=find_java() or "java",
                die_on_exit=True,
                enable_auth=True,
                cwd=str(jar.parent),
                return_proc=True,
            )
        except (OSError, ValueError) as error:  # py4j reads a port from what never came
            raise JavaLostError(f"java does not start: try java {' '.join(command)} -version") from error
        self._finalizer = weakref.finalize(self, _end, self.process, os.getpid())
        if first is not None:
            self.make(first, timeout_s=None).close()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._finalizer.alive and self.process.poll() is None

    def make(self, class_name: str, *, timeout_s: float | None) -> JavaObject:
        """Make an object of a Java class.

        Args:
            class_name: Full name of the class.
            timeout_s: Seconds that a call of one of its methods may take.

        Raises:
            JavaLostError: The process is gone.
        """
        from py4j.java_gateway import GatewayParameters, JavaGateway

        # A connection of its own: the time limit is the connection's. Objects are given up by hand: py4j would do it
        # whenever Python collects garbage, also in the middle of a call.
        parameters = GatewayParameters(
            port=self._port, auth_token=self._token, read_timeout=timeout_s, enable_memory_management=False
        )
        gateway = JavaGateway(gateway_parameters=parameters)
        made = JavaObject(self, gateway)
        made.target = made.guarded(lambda: _class(gateway.jvm, class_name)())
        return made

    def end_of_lost(self) -> str:
        """End a process that did not answer, and say what had become of it."""
        try:
            how = f"ended with code {self.process.wait(timeout=_DYING_S)}"
        except subprocess.TimeoutExpired:
            how = "gave no answer in time"
        self.close()
        return how

    def close(self) -> None:
        """End the process. Closing twice is fine."""
        self._finalizer()


class JavaObject:
    """An object inside a Java process. Not for threads."""

    target: Any

    def __init__(self, server: JavaServer, gateway: Any) -> None:
        self.server = server
        self._gateway = gateway

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method.

        Raises:
            JavaLostError: The process is gone or gave no answer in time; it has been ended.
            RuntimeError: The method raised; the text is Java's.
        """
        return self.guarded(getattr(self.target, method), *arguments)

    def texts(self, method: str) -> list[str]:
        """Call a method that returns a list of texts; raises as `call` does."""

        def read() -> list[str]:
            found = getattr(self.target, method)()
            texts = [str(text) for text in found]
            self._gateway.detach(found)
            return texts

        return self.guarded(read)

    def guarded(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function of py4j; see `call` for what is raised."""
        from py4j.protocol import Py4JError, Py4JJavaError

        try:
            return function(*arguments)
        except Py4JJavaError as error:
            raise RuntimeError(f"{self.server.name} raised {error.java_exception}") from None
        except (Py4JError, OSError) as error:
            if "Trace:" in str(error):  # Java answered: there is no such method, for example
                raise RuntimeError(f"{self.server.name}: {error}") from None
            how = self.server.end_of_lost()
            raise JavaLostError(f"the Java process of {self.server.name} {how}") from None

    def close(self) -> None:
        """Have the process forget the object, and close the connection. The process itself goes on."""
        if self.server.alive:
            self.guarded(self._gateway.detach, self.target)
            self._gateway.close()


_SHARED: weakref.WeakValueDictionary[tuple[Path, int], JavaServer] = weakref.WeakValueDictionary()


def shared_server(jar: Path, *, heap_mb: int, first: str | None = None) -> JavaServer:
    """Return this process's server for a jar, started if need be. It ends when nobody refers to it any more."""
    key = (jar, os.getpid())
    server = _SHARED.get(key)
    if server is None or not server.alive:
        server = _SHARED[key] = JavaServer(jar, heap_mb=heap_mb, first=first)
    return server


def find_java() -> str | None:
    """Return the path of `java`: in the folder that JAVA_HOME names, or in the search path."""
    home = os.environ.get("JAVA_HOME")
    return (shutil.which("java", path=os.path.join(home, "bin")) if home else None) or shutil.which("java")


def check_java(who: str) -> None:
    """Check that there is a Java.

    Raises:
        ValueError: There is none; names `env.class_path` and what to type.
    """
    if find_java() is None:
        raise ValueError(
            f"env.class_path: {who} needs the program 'java' (8 or newer); install it with: "
            "apt-get install openjdk-17-jre-headless"
        )


def jar_of(module: str, name: str) -> Path:
    """Return the path of a jar that a package ships, without importing the package."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    return Path(spec.origin).parent / name


def _class(jvm: Any, name: str) -> Any:
    found = jvm
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _end(process: subprocess.Popen[bytes], owner_pid: int) -> None:
    if os.getpid() != owner_pid:  # a forked copy of whoever started it
        return
    process.kill()
    process.wait()
