"""A MiniWoB++ page in a browser tab: opened with a seed, read as numbered lines, acted on like by a person."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lit_agentrl.envs.browser import Browser, borrow, give_back
from lit_agentrl.envs.miniwob_script import SCRIPT

MAX_TYPED_CHARS = 500
_WINDOW, _AREA = (500, 320), (160, 210)
_FLIGHT_WINDOW, _FLIGHT_AREA = (600, 800), (375, 667)
_LOAD_TICK_S, _MAX_LOAD_TICKS = 0.01, 200
_SCAN = "([seeds, ms]) => seeds.map(seed => agent.says(seed, ms))"


class ActionError(ValueError):
    """The page has no such thing, or it cannot be done with it. The text is for the agent."""


class Item(NamedTuple):
    """Something on the page, in reading order."""

    id: int
    """Number to name it by; 0 for text that nothing can be done with."""
    kind: str
    """`button`, `link`, `field`, `checkbox`, `list`, ...; `text` for text; the tag for shapes; empty if `id` is 0."""
    name: str
    """Its text, label or value."""
    state: str
    """What else there is to know: `checked`, `focused`, options, colour and place of shapes."""
    x: float
    y: float
    on_top: int
    """Whether a click at (x, y) pixels meets it."""

    def line(self) -> str:
        """Return what the agent reads: `[3] button "Submit"`, `[1] Username`, or bare text."""
        if not self.id:
            return self.name
        if self.kind == "text":
            return " ".join(filter(None, (f"[{self.id}] {self.name}", self.state)))
        return " ".join(
            filter(
                None, (f"[{self.id}] {self.kind}", self.name and json.dumps(self.name, ensure_ascii=False), self.state)
            )
        )


class Reading(NamedTuple):
    """A look at the page."""

    query: str = ""
    """The task in words."""
    items: tuple[Item, ...] = ()
    raw_reward: float | None = None
    """Set when the page says that the episode is over: the benchmark's reward without its time penalty, -1 to 1."""
    left: bool = False
    """An action led away from the task's page."""

    def text(self, max_chars: int) -> tuple[str, bool]:
        """Return the page as lines, cut between lines if they are longer than allowed, and whether it was cut."""
        lines, used = [], 0
        for place, item in enumerate(self.items):
            lines.append(item.line())
            used += len(lines[-1]) + 1
            if used > max_chars:
                return "\n".join((*lines[:-1], f"[... cut, {len(self.items) - place} more elements]")), True
        return "\n".join(lines) or "(nothing)", False


def html_folder() -> Path:
    """Return where the installed package keeps its pages, without importing it."""
    spec = importlib.util.find_spec("miniwob")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "html"


def all_pages() -> dict[str, str]:
    """Return the URL of every task page by name: those of `miniwob/`, and `flight.<airline>`."""
    root = html_folder()
    pages = {path.stem: path.as_uri() for path in (root / "miniwob").glob("*.html")}
    pages |= {f"flight.{path.parent.name}": path.as_uri() for path in (root / "flight").glob("*/wrapper.html")}
    return dict(sorted(pages.items()))


class TaskPage:
    """A tab of the shared browser in which one task is open at a time.

    Args:
        step_ms: Milliseconds that pass on the page with every action; it stands still in between.
        timeout_s: Seconds that loading or acting may take before the browser counts as hung and is killed.
    """

    def __init__(self, *, step_ms: int, timeout_s: float) -> None:
        self.browser: Browser = borrow()
        self._step_ms = step_ms
        self._timeout_s = timeout_s
        self._closed = False
        self._context: Any = None
        self._generation = 0
        self._window = _WINDOW
        self._episode = 0
        self._url = ""
        self._seed = 0
        self._area = _AREA
        self.reading = Reading()
        try:
            self._page: Any = self.browser.new_tab(SCRIPT, width=_WINDOW[0], height=_WINDOW[1], timeout_s=timeout_s)
        except BaseException:
            self.close()
            raise
        self._generation = self.browser.generation
        self._context = self._page.context
        self._context.on("page", lambda page: page.close())  # pop-ups

    def answers(self) -> bool:
        """Whether the tab still works. One that hangs costs its browser."""
        try:
            with self._guard():
                return bool(self._page.evaluate("1 === 1"))
        except Exception:  # lost, crashed or closed: whatever it is, another tab is needed
            return False

    def open(self, url: str, seed: int) -> Reading:
        """Load a page and begin the task of a seed; nothing of an earlier task is left.

        Raises:
            BrowserLostError: The browser was killed or gave no answer in time.
        """
        self._url, self._seed = url, seed
        window, self._area = (_FLIGHT_WINDOW, _FLIGHT_AREA) if "/flight/" in url else (_WINDOW, _AREA)
        with self._guard():
            if window != self._window:
                self._page.set_viewport_size({"width": window[0], "height": window[1]})
                self._window = window
            self._page.mouse.move(window[0] - 1, window[1] - 1)
            self._begin()
            return self._read()

    def _guard(self) -> AbstractContextManager[None]:
        return self.browser.guard(self._timeout_s, self._generation)

    def _begin(self) -> None:
        # A reset on the same page would keep scroll positions, open menus and widgets of the episode before.
        self._page.goto(self._url, wait_until="load")
        self._episode += 1
        self._page.evaluate("([seed, episode]) => agent.begin(seed, episode)", [self._seed, self._episode])
        while "/flight/" in self._url and not self._page.evaluate("agent.ready()"):
            time.sleep(_LOAD_TICK_S)

    def scan(self, url: str, seeds: Sequence[int]) -> list[Reading]:
        """Return what the page says for several seeds, without loading it anew for each."""
        with self._guard():
            self._page.goto(url, wait_until="load")
            texts = self._page.evaluate(_SCAN, [list(seeds), self._step_ms])
        return [_reading(json.loads(text)) for text in texts]

    def screenshot(self) -> bytes:
        """Return the task's area as PNG."""
        width, height = self._area
        with self._guard():
            data: bytes = self._page.screenshot(clip={"x": 0, "y": 0, "width": width, "height": height})
        return data

    def close(self) -> None:
        """Close the tab; the last one ends the browser. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Exception), self._guard():  # a lost browser has no tabs left
            if self._context is not None:
                self._context.close()
        give_back(self.browser)

    def _read(self) -> Reading:
        left_ms = self._step_ms
        for _ in range(_MAX_LOAD_TICKS):
            told = json.loads(self._ask(left_ms))
            if "loading" not in told:
                break
            left_ms = told["loading"]
            time.sleep(_LOAD_TICK_S)
        self.reading = _reading(told)
        return self.reading

    def _ask(self, ms: int) -> str:
        text: str
        try:
            text = self._page.evaluate(f"agent.read({ms}, {self._episode})")
        except Exception as error:
            if "context was destroyed" not in str(error):
                raise
            self._page.wait_for_load_state("load")  # the action led to another page
            text = self._page.evaluate(f"agent.read({ms}, {self._episode})")
        return text

    def act(self, action: Any, arguments: dict[str, Any]) -> Reading:
        """Carry out one of this object's actions, let time pass and look.

        Raises:
            ActionError: It cannot be done.
            BrowserLostError: The browser was killed or gave no answer in time.
        """
        with self._guard():
            action(**arguments)
            return self._read()

    # ---------------------------------------------------------- actions; their docstrings are what the agent is told

    def click(self, id: int) -> None:
        """Click an element.

        Args:
            id: Its number.
        """
        item = next((item for item in self.reading.items if item.id == id), None)
        if item is None:
            raise ActionError(f"there is no element {id}")
        point: Sequence[float] | None = (item.x, item.y, item.on_top)
        if not item.on_top:
            point = self._page.evaluate("id => agent.point(id)", id)
            if point is None:
                raise ActionError(f"element {id} is gone")
        assert point is not None
        if point[2]:
            self._page.mouse.click(point[0], point[1])
        else:
            self._page.evaluate("id => agent.click(id)", id)  # something lies over it

    def click_at(self, x: int, y: int) -> None:
        """Click at a place.

        Args:
            x: Pixels from the left.
            y: Pixels from the top.
        """
        width, height = self._area
        if not (0 <= x < width and 0 <= y < height):
            raise ActionError(f"the page is {width} x {height} pixels, so ({x}, {y}) is outside")
        self._page.mouse.click(x, y)

    def type(self, id: int, text: str) -> None:
        """Replace what a field holds.

        Args:
            id: Its number.
            text: What to write.
        """
        if len(text) > MAX_TYPED_CHARS:
            raise ActionError(f"at most {MAX_TYPED_CHARS} characters can be typed at once")
        _check(id, self._page.evaluate("id => agent.edit(id)", id))
        if text:
            self._page.keyboard.type(text)
        else:
            self._page.keyboard.press("Delete")

    def select(self, id: int, option: str) -> None:
        """Select an option of a list; in a list that takes several, select it or take it back.

        Args:
            id: Number of the list.
            option: Text of the option.
        """
        _check(id, self._page.evaluate("([id, option]) => agent.select(id, option)", [id, option]))

    def scroll(self, direction: Literal["up", "down"], id: int = 0) -> None:
        """Scroll the page, or an element.

        Args:
            direction: up or down.
            id: Number of the element; 0 for the page.
        """
        sign = 1 if direction == "down" else -1
        _check(id, self._page.evaluate("([id, sign]) => agent.scroll(id, sign)", [id, sign]))

    def press(self, key: str) -> None:
        """Press a key, for example Enter, Tab, ArrowDown or Control+A.

        Args:
            key: Name of the key.
        """
        try:
            self._page.keyboard.press(key)
        except Exception as error:
            if "Unknown key" not in str(error):
                raise
            raise ActionError(f"there is no key {key[:40]!r}") from None

    def navigate(self, to: Literal["back", "forward", "reload"]) -> None:
        """Go through the history of the page; reload begins the task anew.

        Args:
            to: back, forward or reload.
        """
        if to == "reload":
            self._begin()
        elif to == "back":
            self._page.go_back(wait_until="load")
        else:
            self._page.go_forward(wait_until="load")


def _check(id: int, problem: str) -> None:
    if problem == "gone":
        raise ActionError(f"there is no element {id}")
    if problem == "end":
        raise ActionError("it does not scroll any further")
    if problem:
        raise ActionError(f"element {id} {problem}")


def _reading(told: dict[str, Any]) -> Reading:
    if told.get("left") or "loading" in told:
        return Reading(left=True)
    if told.get("done"):
        return Reading(raw_reward=float(told["raw"]))
    return Reading(query=told["query"], items=tuple(Item(*entry) for entry in told["items"]))
