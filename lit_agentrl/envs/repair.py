"""Repair of real packages: a bug that a package's own tests find; read, search, edit and test until they pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lit_agentrl.agents.tools.base import ToolBox
from lit_agentrl.envs.arguments import check_at_least, check_some
from lit_agentrl.envs.calls import call_message
from lit_agentrl.envs.extras import check_requirements
from lit_agentrl.envs.repair_build import DEFAULT_FOLDER, Bug, load, main
from lit_agentrl.envs.repair_guard import objection
from lit_agentrl.envs.repair_tests import PackageTests
from lit_agentrl.envs.splits import choose
from lit_agentrl.envs.states import digest
from lit_agentrl.types import (
    Action,
    Demonstration,
    EnvTraits,
    Message,
    Observation,
    Split,
    StepResult,
    Task,
    ToolCall,
    ToolSpec,
)

_MAX_OUTPUT_CHARS = 6000
_MAX_LINES = 200
_MAX_HITS = 40
_MAX_SHOWN_FAILURES = 5
_DONE = "Done."
_EPISODE = ("_bug", "_files", "_given", "_steps", "_refused")
"""The state of a running episode."""


class PackageRepair:
    """A published package with one bug (see `lit_agentrl.envs.repair_build`).

    The observation offers tools to list, read, search and edit the package's files and to run its tests. A reply
    without calls ends the episode; the tests then decide. Files are texts in this process, and only tests run code, in
    the sandbox. Tests are not among the files: they can be run but neither read nor changed. `success` and a reward of
    1 need every test of the broken file and of edited ones that passes on the published package.

    Args:
        folder: What `python -m lit_agentrl.envs.repair build` wrote.
        packages: Only these; all by default.
        max_steps: Replies with calls; one more ends the episode, which is then graded as it stands.
        allow_unsafe: Run tests even on a machine that cannot protect itself.

    Raises:
        ValueError: An argument is not accepted, the folder has no tasks, pytest is missing, or the machine cannot
            protect itself.
    """

    traits = EnvTraits(deterministic=True, replay=True)
    requires = {"pytest": "pip install 'lit_agentrl[repair]'"}  # noqa: RUF012

    def __init__(
        self,
        *,
        folder: str = DEFAULT_FOLDER,
        packages: tuple[str, ...] | None = None,
        max_steps: int = 12,
        allow_unsafe: bool = False,
    ) -> None:
        check_requirements(type(self))
        check_at_least(1, max_steps=max_steps)
        self._texts, bugs = load(Path(folder).expanduser(), key="env.init_args.folder")
        check_some("packages", self._texts if packages is None else packages, self._texts)
        self._bugs = {bug.id: bug for bug in bugs if packages is None or bug.package in packages}
        self.max_steps = max_steps
        self._tests = PackageTests(allow_unsafe=allow_unsafe)
        self._box = ToolBox([self.list_files, self.read_file, self.search, self.edit, self.run_tests])
        self._bug: Bug | None = None
        self._files: dict[str, str] = {}
        self._given: dict[str, str] = {}
        self._steps = 0
        self._refused = 0

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the bug of a seed. Bugs of one function are in one split; test bugs are in packages of their own.

        Raises:
            ValueError: There is no bug in the split.
        """
        names = [name for name, bug in self._bugs.items() if bug.split == split]
        if not names:
            raise ValueError(f"env.init_args.packages: none has a bug of split {split!r}; allow more, or build more")
        name = names[choose(seed, len(names), split=split, purpose="repair")]
        return Task(id=name, family=f"repair_{self._bugs[name].package}", split=split, seed=seed, data={"bug": name})

    def reset(self, task: Task) -> Observation:
        """Put the bug into the package and say which tests fail.

        Raises:
            ValueError: The folder has no such bug.
        """
        bug = self._bugs.get(task.data["bug"])
        if bug is None:
            raise ValueError(
                f"env.init_args.folder: there is no bug {task.data['bug']!r}; it was made by another build"
            )
        self._bug = bug
        self._files = dict(self._texts[bug.package]["sources"])
        self._files[bug.path] = bug.put_into(self._files[bug.path])
        self._given = dict(self._files)
        self._steps = self._refused = 0
        shown = ", ".join(name.partition("::")[2] for name in bug.failing[:_MAX_SHOWN_FAILURES])
        text = (
            f"A change to the Python package {bug.package} broke {len(bug.failing)} of its tests: {shown}"
            f"{', ...' if len(bug.failing) > _MAX_SHOWN_FAILURES else ''}. One line of {bug.path} is wrong. Find and "
            f"repair it with the tools; all tests have to pass. When you are done, reply without calling a tool."
        )
        return self._observation((Message.of("user", text),))

    def step(self, action: Action) -> StepResult:
        """Run the calls, or grade the files.

        Raises:
            RuntimeError: No episode is running.
            SandboxError: The sandbox failed; that is no wrong repair.
        """
        if self._bug is None:
            raise RuntimeError("step was called without a running episode; call reset first")
        calls = action.message.tool_calls
        self._steps += bool(calls)
        if calls and self._steps <= self.max_steps:
            return StepResult(observation=self._observation(self._answers(calls)))
        bug, self._bug = self._bug, None
        fixed, kept = self._grade(bug)
        success = fixed == kept == 1.0
        return StepResult(
            observation=None,
            reward=float(success),
            reward_parts={
                "solved": float(success),
                "fixed": fixed,
                "kept": kept,
                "refused_edits": float(self._refused),
            },
            terminated=True,
            success=success,
        )

    def close(self) -> None:
        """Drop the running episode and end the sandbox."""
        self._bug = None
        self._tests.close()

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec] = ()) -> Demonstration:
        """Show the tests, the place, the published line put back, the tests again, and the end."""
        running = {name: getattr(self, name, None) for name in _EPISODE}
        opening = self.reset(task)
        bug = self._bug
        assert bug is not None
        last = bug.first_line + max(len(bug.wrong), 1)
        messages = list(opening.messages)
        old, new = _unique_patch(bug, self._files[bug.path])
        for name, arguments in (
            ("run_tests", {}),
            ("read_file", {"path": bug.path, "first_line": max(1, bug.first_line - 5), "last_line": last + 5}),
            ("edit", {"path": bug.path, "old": old, "new": new}),
            ("run_tests", {}),
        ):
            shown = call_message([(name, arguments)], number=len(messages))
            messages += [shown, *self._answers(shown.tool_calls)]
        messages.append(Message.of("assistant", _DONE))
        vars(self).update(running)
        return Demonstration(task=task, messages=tuple(messages), tools=(*tools, *opening.tools))

    def list_files(self) -> str:
        """List the package's files with their numbers of lines."""
        return "\n".join(f"{path} ({text.count(chr(10))} lines)" for path, text in sorted(self._files.items()))

    def read_file(self, path: str, first_line: int = 1, last_line: int | None = None) -> str:
        """Read lines of a file, at most 200 at a time; each begins with its number.

        Args:
            path: A file of the package.
            first_line: Number of the first line.
            last_line: Number of the last line.
        """
        lines = self._text(path).splitlines()
        first = max(first_line, 1)
        last = min(len(lines) if last_line is None else last_line, first + _MAX_LINES - 1, len(lines))
        if first > last:
            raise ValueError(f"{path} has {len(lines)} lines, none from {first_line} to {last_line}")
        return "\n".join(f"{number}: {lines[number - 1]}" for number in range(first, last + 1))

    def search(self, text: str) -> str:
        """Find lines that contain a text.

        Args:
            text: What to look for, word for word.
        """
        if not text:
            raise ValueError("the text is empty")
        hits = [
            f"{path}:{number}: {line}"
            for path, content in sorted(self._files.items())
            for number, line in enumerate(content.splitlines(), 1)
            if text in line
        ]
        more = [f"... and {len(hits) - _MAX_HITS} more"] if len(hits) > _MAX_HITS else []
        return "\n".join([*hits[:_MAX_HITS], *more]) or "no line contains it"

    def edit(self, path: str, old: str, new: str) -> str:
        """Replace a piece of a file by another one.

        Args:
            path: A file of the package.
            old: Text that is in the file exactly once, without line numbers.
            new: What stands there afterwards.
        """
        content = self._text(path)
        count = content.count(old) if old else 0
        if count != 1:
            raise ValueError(f"the old text is in {path} {count} times; it must be there exactly once")
        changed = content.replace(old, new)
        reason = objection(self._given[path], changed)
        if reason is not None:
            self._refused += 1
            raise ValueError(reason)
        self._files[path] = changed
        return "edited"

    def run_tests(self) -> str:
        """Run the tests of the file that is broken, and of those that were edited."""
        assert self._bug is not None
        expected, suite = self._suite(self._bug)
        outcome = self._tests.run(self._files, suite)
        if outcome.problem:
            return outcome.problem
        wrong = [name for name in expected if outcome.passed.get(name) != expected[name]]
        texts = [f"{name}\n{text}" for name, text in outcome.failures.items() if name.partition("[")[0] in wrong]
        head = f"{len(expected) - len(wrong)} of {len(expected)} tests pass"
        return "\n\n".join([head, *texts[:_MAX_SHOWN_FAILURES]])

    def _text(self, path: str) -> str:
        if path not in self._files:
            raise ValueError(f"there is no file {path!r}; list_files shows what there is")
        return self._files[path]

    def _answers(self, calls: Sequence[ToolCall]) -> tuple[Message, ...]:
        answers = []
        for call in calls:
            if call.error is not None:
                text = f"Error: {call.error}"
            else:
                text = self._box.call(call.name, call.arguments, max_chars=_MAX_OUTPUT_CHARS).text
            answers.append(Message.of("tool", text, tool_call_id=call.id))
        return tuple(answers)

    def _suite(self, bug: Bug) -> tuple[dict[str, int], dict[str, str]]:
        """Return the tests that have to pass, and their files."""
        texts = self._texts[bug.package]
        touched = [
            path for path in texts["expected"] if path == bug.path or self._files[path] != texts["sources"][path]
        ]
        expected = {name: count for path in touched for name, count in texts["expected"][path].items()}
        return expected, {name.partition("::")[0]: texts["tests"][name.partition("::")[0]] for name in expected}

    def _grade(self, bug: Bug) -> tuple[float, float]:
        """Return the share of broken tests that pass, and that of all others."""
        if self._files == self._given:
            return 0.0, 1.0
        expected, suite = self._suite(bug)
        outcome = self._tests.run(self._files, suite)
        passing = {name for name, count in expected.items() if outcome.passed.get(name) == count}
        others = set(expected) - set(bug.failing)
        fixed = len(passing & set(bug.failing)) / len(bug.failing)
        return fixed, len(passing & others) / len(others) if others else 1.0

    def _observation(self, messages: tuple[Message, ...]) -> Observation:
        files = (text for path in sorted(self._files) for text in (path, self._files[path]))
        key = digest(*files, *(message.text for message in messages))
        return Observation(messages=messages, tools=self._box.specs, state_key=key)


def _unique_patch(bug: Bug, source: str) -> tuple[str, str]:
    """Return the edit that repairs a bug: its lines, and as many before them as make the text unique."""
    lines = source.splitlines(keepends=True)
    begin, end = bug.first_line - 1, bug.first_line - 1 + len(bug.wrong)
    for first in range(begin, -1, -1):
        old = "".join(lines[first:end])
        if source.count(old) == 1:
            return old, "".join([*lines[first:begin], *bug.right])
    return source, source.replace("".join(bug.wrong), "".join(bug.right), 1)


if __name__ == "__main__":
    main()
