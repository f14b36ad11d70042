"""MiniWoB++: small web tasks in headless Chromium, read as numbered elements and acted on by tool calls."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

from pydantic import ValidationError

from lit_agentrl.agents.tools.base import Tool
from lit_agentrl.agents.tools.signature import problems, validated
from lit_agentrl.envs.arguments import check_at_least, check_some
from lit_agentrl.envs.browser import check_browser
from lit_agentrl.envs.calls import call_message
from lit_agentrl.envs.extras import check_requirements
from lit_agentrl.envs.miniwob_page import ActionError, TaskPage, all_pages
from lit_agentrl.envs.miniwob_solvers import SOLVERS, solve
from lit_agentrl.envs.miniwob_splits import draw_seed
from lit_agentrl.envs.solutions import play_through
from lit_agentrl.envs.splits import choose
from lit_agentrl.envs.states import digest
from lit_agentrl.types import (
    Action,
    ContentPart,
    Demonstration,
    EnvTraits,
    ImagePart,
    Message,
    Observation,
    Split,
    StepResult,
    Task,
    TextPart,
    ToolCall,
    ToolSpec,
)

ACTIONS = ("click", "type", "select", "scroll", "press", "navigate", "done")
OPTIONAL_ACTIONS = ("click_at",)
_MAX_CALLS = 10
_FAILURE = -1.0
_INSTALL = "pip install 'lit_agentrl[web]'"


class MiniWoB:
    """One page, one task in words, up to `max_steps` replies of tool calls.

    An observation is the task and the page as lines, `[3] button "Submit"`; an element keeps its number for the
    episode. The calls of a reply are carried out in order, and the page is shown after the last one.

    The reward is the benchmark's raw reward, from -1 to 1, paid when the page ends the episode; 1 is success. Leaving
    the page, calling `done` before the page has ended the episode, and running out of steps earn -1, which is what the
    benchmark gives when its ten seconds are over. Those ten seconds and the decay of the reward are switched off: the
    page's clock stands still while nothing happens, and every action takes `step_ms` of it. So animations are over
    when the page is read, and the same seed and actions give the same page on any machine.

    A browser that was killed, or hangs for `timeout_s`, fails the episodes that use it; the next gets a new one.

    Args:
        tasks: Names of pages, for example `[click-button, login-user]`; default: all that the package has.
        actions: Those to offer, of `click`, `type`, `select`, `scroll`, `press`, `navigate`, `done` (the default) and
            `click_at`, which takes pixels.
        max_steps: Replies; calls that cannot be carried out count, too.
        screenshot: Also give the page as an image.
        max_page_chars: A longer page is cut between two elements, with a marker.
        step_ms: Milliseconds of the page's clock that an action takes.
        timeout_s: Seconds in which one step, or the start of an episode, has to be done.

    Raises:
        ValueError: An argument is not accepted, or package or browser are not installed.
    """

    traits = EnvTraits(deterministic=True, replay=True)
    requires = {"playwright": _INSTALL, "miniwob": _INSTALL}  # noqa: RUF012 - read like a constant
    preload = ("playwright.sync_api",)

    def __init__(
        self,
        *,
        tasks: tuple[str, ...] | None = None,
        actions: tuple[str, ...] = ACTIONS,
        max_steps: int = 10,
        screenshot: bool = False,
        max_page_chars: int = 6000,
        step_ms: int = 500,
        timeout_s: float = 30.0,
    ) -> None:
        check_requirements(type(self))
        self._urls = all_pages()
        self.tasks = tuple(self._urls) if tasks is None else tuple(tasks)
        check_some("tasks", self.tasks, self._urls, each_once=True)
        check_some("actions", actions, (*ACTIONS, *OPTIONAL_ACTIONS), each_once=True)
        check_at_least(1, max_steps=max_steps)
        check_at_least(100, max_page_chars=max_page_chars)
        check_at_least(0, step_ms=step_ms)
        if timeout_s <= 0:
            raise ValueError(f"env.init_args.timeout_s must be greater than 0, got {timeout_s}")
        self.actions = actions
        self.max_steps = max_steps
        self.screenshot = screenshot
        self.max_page_chars = max_page_chars
        self.step_ms = step_ms
        self.timeout_s = timeout_s
        self._page: TaskPage | None = None
        self._side_page: TaskPage | None = None
        self._episode: _Episode | None = None

    @staticmethod
    def check_machine() -> None:
        """Check that there is a browser.

        Raises:
            ValueError: There is none; says what to install.
        """
        check_browser("env.class_path: MiniWoB")

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the task of a seed. Which split a page's seed belongs to is decided by what the page then shows.

        Raises:
            ValueError: A page shows too few different things to fill the split.
        """
        name = self.tasks[choose(seed, len(self.tasks), split=split, purpose="miniwob")]
        page_seed = draw_seed(seed, split, name, self._urls[name], self._beside)
        return Task(
            id=f"{name}-{page_seed}", family=name, split=split, seed=seed, data={"page": name, "seed": page_seed}
        )

    def reset(self, task: Task) -> Observation:
        """Open the page.

        Raises:
            ValueError: The installed package has no such page.
            BrowserLostError: The browser was killed or hung.
        """
        self._episode = None
        self._page = self._usable(self._page)
        self._episode = _Episode(self, self._page, task, self._url_of(task))
        return self._episode.opening()

    def step(self, action: Action) -> StepResult:
        """Carry out the calls of a reply.

        Raises:
            RuntimeError: No episode is running.
            BrowserLostError: The browser was killed or hung.
        """
        if self._episode is None:
            raise RuntimeError("step was called without a running episode; call reset first")
        result = self._episode.step(action)
        if result.terminated:
            self._episode = None
        return result

    def close(self) -> None:
        """Close the tabs; the last environment of the process ends the browser."""
        self._episode = None
        for page in (self._page, self._side_page):
            if page is not None:
                page.close()
        self._page = self._side_page = None

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec] = ()) -> Demonstration:
        """Show how a script solves the task, one action a reply.

        Raises:
            ValueError: There is no script for the page, or it needs an action that is not offered.
            RuntimeError: The script failed.
        """
        name = task.data["page"]
        if name not in SOLVERS:
            raise ValueError(
                f"env.init_args.tasks: there is no demonstration of {name!r}; for a warm start choose from "
                f"{', '.join(SOLVERS)}"
            )
        episode = _Episode(self, self._beside(), task, self._url_of(task))
        replies = (self._scripted(name, episode, number) for number in itertools.count())
        unsolved = f"the script for {name!r} does not solve {task.id} within env.init_args.max_steps ({self.max_steps})"
        return play_through(task, episode.opening(), episode.step, replies, tools=tools, unsolved=unsolved)

    def _scripted(self, name: str, episode: _Episode, number: int) -> Message:
        call = solve(name, episode.reading)
        if call[0] not in self.actions:
            raise ValueError(f"env.init_args.actions must hold {call[0]!r} for a demonstration of {name!r}")
        return call_message([call], number=number)

    def _url_of(self, task: Task) -> str:
        if task.data["page"] not in self._urls:
            raise ValueError(f"task {task.id!r}: the installed miniwob has no page {task.data['page']!r}")
        return self._urls[task.data["page"]]

    def _usable(self, page: TaskPage | None) -> TaskPage:
        """Return the page, or another one if its browser was lost meanwhile: nobody has seen anything of it yet."""
        if page is not None:
            if page.answers():
                return page
            page.close()
        return TaskPage(step_ms=self.step_ms, timeout_s=self.timeout_s)

    def _beside(self) -> TaskPage:
        """Return a page for whatever must not disturb the running episode."""
        self._side_page = self._usable(self._side_page)
        return self._side_page


class _Episode:
    """One task, from opening to reward."""

    def __init__(self, env: MiniWoB, page: TaskPage, task: Task, url: str) -> None:
        self._env = env
        self._page = page
        self._tools = {name: Tool.of(getattr(page, name)) for name in env.actions if name != "done"}
        if "done" in env.actions:
            self._tools["done"] = Tool.of(_done)
        self.specs = tuple(self._tools[name].spec for name in env.actions)
        self._task_id = task.id
        self._steps = 0
        self._invalid = 0
        self._cut = 0
        self.reading = page.open(url, int(task.data["seed"]))
        self._query = self.reading.query

    def opening(self) -> Observation:
        return self._observe((), f"{self._query}\n\n")

    def step(self, action: Action) -> StepResult:
        self._steps += 1
        answers: list[tuple[str, str]] = []
        calls = action.message.tool_calls
        if not calls:
            self._invalid += 1
        for place, call in enumerate(calls):
            try:
                if place >= _MAX_CALLS:
                    raise ActionError(f"a reply may hold {_MAX_CALLS} actions")
                if call.name == "done" and call.name in self._tools and call.error is None:
                    return self._end(_FAILURE)
                self._carry_out(call)
                answers.append((call.id, ""))
            except ActionError as error:
                self._invalid += 1
                answers.append((call.id, f"Error: {error}"))
            if self.reading.left:
                return self._end(_FAILURE)
            if self.reading.raw_reward is not None:
                return self._end(self.reading.raw_reward)
        if self._steps >= self._env.max_steps:
            return self._end(_FAILURE)
        said = "" if calls else f"Error: the reply holds no action. Call one of: {', '.join(self._env.actions)}.\n\n"
        return StepResult(observation=self._observe(answers, said))

    def _carry_out(self, call: ToolCall) -> None:
        """Check and run a call.

        Raises:
            ActionError: It cannot be done.
        """
        if call.error is not None:
            raise ActionError(call.error)
        if call.name not in self._tools:
            raise ActionError(f"there is no action {call.name!r}; there are: {', '.join(self._env.actions)}")
        tool = self._tools[call.name]
        try:
            arguments = validated(tool.arguments, call.arguments)
        except ValidationError as error:
            wrong = "; ".join(f"argument {name!r} {text}" for name, text in problems(tool.arguments, error))
            raise ActionError(f"{call.name}: {wrong}") from None
        self.reading = self._page.act(tool.function, arguments)

    def _end(self, reward: float) -> StepResult:
        success = reward >= 1.0
        return StepResult(
            observation=None,
            reward=reward,
            reward_parts={
                "solved": float(success),
                "invalid_actions": float(self._invalid),
                "pages_cut": float(self._cut),
            },
            terminated=True,
            success=success,
        )

    def _observe(self, answers: Sequence[tuple[str, str]], said: str) -> Observation:
        page, cut = self.reading.text(self._env.max_page_chars)
        self._cut += cut
        if self.reading.query != self._query:  # some pages go on with another task
            self._query = self.reading.query
            said += f"{self._query}\n\n"
        if answers and answers[-1][1]:
            said = f"{answers[-1][1]}\n\n{said}"
        parts: list[ContentPart] = [TextPart(text=said)] if said else []
        # The page is the last text: what a value function takes for the state.
        parts.append(TextPart(text=page))
        if self._env.screenshot:
            parts.append(ImagePart(data=self._page.screenshot()))
        earlier = tuple(Message.of("tool", text or "ok", tool_call_id=call_id) for call_id, text in answers[:-1])
        last = Message(
            role="tool" if answers else "user",
            content=tuple(parts),
            tool_call_id=answers[-1][0] if answers else None,
        )
        key = digest(self._task_id, json.dumps([self._query, self.reading.items]))
        return Observation(messages=(*earlier, last), tools=self.specs, state_key=key)


def _done() -> None:
    """End the episode; to be called when nothing is left to do."""


_done.__name__ = "done"
