"""One headless Chromium a process, shared by its environments, replaced when it dies or hangs, never left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lit_agentrl.processes import EXEC_DYING_WITH_PARENT

VARIABLE = "LIT_AGENTRL_BROWSER"
INSTALL = "apt-get install chromium-headless-shell (or: playwright install chromium-headless-shell)"

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Where distributions put the program itself; what lies on the path is a shell script that does not `exec`.
_FOLDERS = ("/usr/lib/chromium", "/usr/lib64/chromium-browser")
_CACHES = {"linux": "~/.cache/ms-playwright", "darwin": "~/Library/Caches/ms-playwright"}
_CACHED = (
    "chromium_headless_shell-*/*/headless_shell",
    "chromium_headless_shell-*/*/chrome-headless-shell",
    "chromium-*/*/chrome",
)
_ARGUMENTS = (
    "--allow-file-access-from-files",  # pages of the package hold other pages of the package in frames
    "--host-resolver-rules=MAP * ~NOTFOUND",  # nothing is fetched from anywhere
)
_FOLDER = "lit_agentrl_browser_"
_TICK_S = 0.25


class BrowserLostError(RuntimeError):
    """The browser was killed or hung. The episode that met it cannot go on; the next one gets a new browser."""


def find_browser() -> str | None:
    """Return the Chromium to run: the one that `LIT_AGENTRL_BROWSER` names, the system's, or playwright's own.

    Raises:
        ValueError: The variable names no program.
    """
    named = os.environ.get(VARIABLE)
    if named is not None:
        if not os.access(named, os.X_OK):
            raise ValueError(f"the environment variable {VARIABLE} is {named!r}, which is no program that can be run")
        return named
    folders = os.pathsep.join((*_FOLDERS, os.environ.get("PATH", os.defpath)))
    for name in _NAMES:
        found = shutil.which(name, path=folders)
        if found is not None:
            return found
    cache = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", _CACHES.get(sys.platform, ""))).expanduser()
    return next((str(path) for pattern in _CACHED for path in sorted(cache.glob(pattern), reverse=True)), None)


def check_browser(who: str) -> None:
    """Check that there is a browser.

    Raises:
        ValueError: There is none; the text begins with `who` and says what to type.
    """
    if find_browser() is None:
        raise ValueError(f"{who} needs Chromium; install it with: {INSTALL}; or name one in {VARIABLE}")


class Browser:
    """Chromium and playwright's driver, from the first tab that is asked for to `close`.

    Playwright waits for ever for a page whose script loops; a thread kills the browser when that takes too long, which
    ends the wait. Tabs are contexts of their own: they share neither history nor storage nor renderer process.
    """

    def __init__(self) -> None:
        self._driver: Any = None
        self._browser: Any = None
        self._pid = 0
        self._deadline = float("inf")
        self._timed_out = False
        self._stopped = threading.Event()
        self._folder = ""
        self.generation = 0
        """Browsers started so far. A tab belongs to the one that was current when it was made."""

    @property
    def pid(self) -> int:
        """Process id of the browser; 0 before the first tab."""
        return self._pid

    def new_tab(self, script: str, *, width: int, height: int, timeout_s: float) -> Any:
        """Return a playwright page in a new context, starting a browser if none runs.

        Args:
            script: Runs in every document, frames included, before anything of its own.
            width: Of the window in pixels.
            height: Of the window in pixels.
            timeout_s: Seconds for the tab; starting driver and browser may take three times as long on top.

        Raises:
            BrowserLostError: It could not be done in time.
        """
        if self._browser is None or not self._browser.is_connected():
            self._start(timeout_s=3 * timeout_s)
        with self.guard(timeout_s, self.generation):
            context = self._browser.new_context(
                viewport={"width": width, "height": height}, locale="en-US", timezone_id="UTC", offline=True
            )
            context.add_init_script(script)
            return context.new_page()

    @contextlib.contextmanager
    def guard(self, timeout_s: float, generation: int) -> Iterator[None]:
        """Kill the browser if the body takes longer than `timeout_s`, within a quarter of a second.

        Args:
            timeout_s: Seconds for the body.
            generation: Of the tab that the body uses.

        Raises:
            BrowserLostError: The browser was killed, by us or anybody, in the body or before it.
        """
        if generation != self.generation or self._browser is None:
            raise BrowserLostError("the browser was killed")
        self._timed_out = False
        self._deadline = time.monotonic() + timeout_s
        try:
            yield
        except Exception as error:
            self._deadline = float("inf")
            cause = str(error)
            driver_lost = "Connection closed" in cause
            if not (self._timed_out or driver_lost or "has been closed" in cause or not self._is_connected()):
                raise
            self._lose(driver_lost=driver_lost)
            reason = f"gave no answer within {timeout_s:g} s" if self._timed_out else "was killed"
            raise BrowserLostError(f"the browser {reason}") from None
        finally:
            self._deadline = float("inf")

    def close(self) -> None:
        """End browser and driver. Closing twice is fine."""
        if self._driver is not None:
            with contextlib.suppress(Exception), self.guard(8 * _TICK_S, self.generation):
                self._browser.close()
            self._kill()
            with contextlib.suppress(Exception):
                self._driver.stop()
        self._driver = self._browser = None
        self._stopped.set()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def _is_connected(self) -> bool:
        return self._browser is not None and bool(self._browser.is_connected())

    def _start(self, *, timeout_s: float) -> None:
        from playwright.sync_api import sync_playwright

        path = find_browser()
        if path is None:
            check_browser("env.class_path: the environment")
        if self._driver is None:
            self._folder = _own_folder()
            before = os.environ.get("TMPDIR")
            os.environ["TMPDIR"] = self._folder  # read by the driver only, when it starts
            try:
                self._driver = sync_playwright().start()
            finally:
                if before is None:
                    del os.environ["TMPDIR"]
                else:
                    os.environ["TMPDIR"] = before
            self._stopped = threading.Event()
            threading.Thread(target=self._watch, args=(self._stopped,), daemon=True, name="browser-watch").start()
        # The driver gives the browser a session of its own, out of reach of whoever ends the process group of a worker.
        launcher = Path(self._folder) / "launcher"
        launcher.write_text(f"#!/bin/sh\nexec '{sys.executable}' -ISc '{EXEC_DYING_WITH_PARENT}' '{path}' \"$@\"\n")
        launcher.chmod(0o700)
        self._browser = self._driver.chromium.launch(
            executable_path=str(launcher) if sys.platform == "linux" else path,
            args=list(_ARGUMENTS),
            timeout=timeout_s * 1000,
        )
        self.generation += 1
        self._pid = 0
        with self.guard(timeout_s, self.generation):
            session = self._browser.new_browser_cdp_session()
            processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
            self._pid = next(int(process["id"]) for process in processes if process["type"] == "browser")
            session.detach()

    def _watch(self, stopped: threading.Event) -> None:
        while not stopped.wait(_TICK_S):
            if time.monotonic() > self._deadline:
                self._deadline = float("inf")
                self._timed_out = True
                self._kill()

    def _kill(self) -> None:
        """Kill the browser with its renderers: it leads a process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._pid and os.getpgid(self._pid) != os.getpgid(0):
                os.killpg(os.getpgid(self._pid), signal.SIGKILL)
            elif self._pid:
                os.kill(self._pid, signal.SIGKILL)

    def _lose(self, *, driver_lost: bool) -> None:
        self._kill()
        self._browser = None
        if driver_lost:
            with contextlib.suppress(Exception):
                self._driver.stop()
            self._driver = None
            self._stopped.set()
            shutil.rmtree(self._folder, ignore_errors=True)


def _own_folder() -> str:
    """Make a folder for the browser's files; those of processes that were killed are removed."""
    root = Path(tempfile.gettempdir())
    for left in root.glob(f"{_FOLDER}*"):
        pid = left.name.removeprefix(_FOLDER).partition("_")[0]
        if pid.isdigit() and not _exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}_", dir=root)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class _Shared:
    """The browser of this process and how many environments use it."""

    owner_pid = 0
    users = 0
    browser: Browser | None = None


def borrow() -> Browser:
    """Return the browser of this process; every call needs a `give_back`."""
    if _Shared.owner_pid != os.getpid():  # a forked copy: what it inherited belongs to the original
        _Shared.owner_pid, _Shared.users, _Shared.browser = os.getpid(), 0, None
    if _Shared.browser is None:
        _Shared.browser = Browser()
    _Shared.users += 1
    return _Shared.browser


def give_back(browser: Browser) -> None:
    """Return a borrowed browser; the last one ends it."""
    if _Shared.browser is not browser or _Shared.owner_pid != os.getpid():
        return
    _Shared.users -= 1
    if _Shared.users == 0:
        _Shared.browser = None
        browser.close()


if __name__ == "__main__":
    found = find_browser()
    print(found or f"no Chromium; install it with: {INSTALL}")
    sys.exit(found is None)
