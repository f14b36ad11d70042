"""Does an environment keep its contract? For authors of environments: one call, one precise complaint.

from lit_agentrl.testing import check_environment
check_environment(EnvSpec(class_path="my_package.MyEnvironment"))
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from lit_agentrl.agents.tools.base import ToolBox, ToolFunction
from lit_agentrl.agents.tools.calculator import calculator
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.protocols import Demonstrator, Environment
from lit_agentrl.types import (
    SPLITS,
    Action,
    Demonstration,
    EnvTraits,
    Message,
    Observation,
    Split,
    StepResult,
    Task,
    ToolSpec,
)

EnvFactory: TypeAlias = EnvSpec | Callable[[], Environment]

_PROBES = ("", "I do not know.")
_PLAIN = (str, int, float, bool, type(None))


class ContractError(AssertionError):
    """An environment breaks `lit_agentrl.protocols.Environment`; the text says where and how."""


def check_environment(
    env: EnvFactory,
    *,
    seeds: Sequence[int] = tuple(range(20)),
    max_steps: int = 50,
    tools: Sequence[ToolFunction | str] = (calculator,),
) -> None:
    """Check an environment against its contract, with several instances.

    Checked are: the methods and traits; that tasks are plain JSON, depend on seed and split alone and are shared by no
    two splits; the types of all that `reset` and `step` return; that `success` is set on the last step and only there;
    that an empty or clueless reply does not solve a task; that `step` raises before `reset`, after the last step and
    after `close`; that a `reset` in mid-episode starts afresh; that declared determinism is true; and that
    demonstrations, if there are any, begin as the episode does and solve their task.

    Args:
        env: A spec, a class, or a function that makes a new environment at each call.
        seeds: Seeds of the tasks that are tried in each split.
        max_steps: An episode of probing replies that is longer is left unfinished.
        tools: The agent's tools that demonstrations may use.

    Raises:
        ContractError: The contract is broken.
    """
    make = env.build if isinstance(env, EnvSpec) else env
    first, second = make(), make()
    try:
        _check_shape(first)
        tasks = _check_tasks(first, second, seeds)
        _check_opening(first, tasks)
        probed = [task for split in SPLITS for task in tasks[split][:3]]
        _check_fresh_reset(first, probed[0])
        for task, probe in itertools.product(probed, _PROBES):
            _check_episode(first, second, task, probe, max_steps)
        if isinstance(first, Demonstrator):
            box = ToolBox(tools)
            for task, offered in itertools.product(probed, [(), box.specs] if box.specs else [()]):
                _check_demonstration(first, task, offered)
    finally:
        first.close()
        second.close()
    first.close()  # twice must do no harm
    _must_raise(first, "after close")
    unused = make()
    try:
        _must_raise(unused, "before reset")
    finally:
        unused.close()


def _check_shape(env: Environment) -> None:
    if not isinstance(env, Environment):
        lacking = [name for name in ("sample_task", "reset", "step", "close", "traits") if not hasattr(env, name)]
        _fail(f"{type(env).__name__} lacks {', '.join(lacking)}")
    _expect(env.traits, EnvTraits, "traits")
    if env.traits.snapshot and not callable(getattr(env, "snapshot", None)):
        _fail("traits.snapshot is declared, but there is no method snapshot")


def _check_tasks(first: Environment, second: Environment, seeds: Sequence[int]) -> dict[Split, list[Task]]:
    tasks: dict[Split, list[Task]] = {split: [] for split in SPLITS}
    owners: dict[str, Split] = {}
    for split, seed in itertools.product(SPLITS, seeds):
        where = f"sample_task({seed}, {split!r})"
        task = _expect(first.sample_task(seed, split), Task, where)
        if task.split != split or task.seed != seed:
            _fail(f"{where} gave a task of seed {task.seed} and split {task.split!r}")
        for name in ("id", "family"):
            if not isinstance(getattr(task, name), str) or not getattr(task, name):
                _fail(f"{where}: {name} must be a non-empty string, got {getattr(task, name)!r}")
        _check_plain(_expect(task.data, Mapping, f"{where}.data"), f"{where}.data")
        if first.sample_task(seed, split) != task or second.sample_task(seed, split) != task:
            _fail(f"{where} gives different tasks when called again or by another instance")
        if owners.setdefault(task.id, split) != split:
            _fail(f"task {task.id!r} is in split {owners[task.id]!r} and in split {split!r}")
        tasks[split].append(task)
    return tasks


def _check_opening(env: Environment, tasks: Mapping[Split, Sequence[Task]]) -> None:
    """Check that reset asks something, and that equal ids mean equal questions."""
    openings: dict[str, tuple[Message, ...]] = {}
    for task in itertools.chain.from_iterable(tasks.values()):
        observation = _check_observation(env.reset(task), f"reset(task {task.id!r})")
        if openings.setdefault(task.id, observation.messages) != observation.messages:
            _fail(f"two tasks of id {task.id!r} are reset to different messages")


def _check_episode(first: Environment, second: Environment, task: Task, probe: str, max_steps: int) -> None:
    where = f"task {task.id!r}, reply {probe!r}"
    action = Action(message=Message.of("assistant", probe))
    seen = first.reset(task)
    mirrored = second.reset(task)
    _compare(first.traits, seen, mirrored, f"{where}: reset")
    for number in range(1, max_steps + 1):
        here = f"{where}: step {number}"
        result = _check_result(first.step(action), here)
        again = second.step(action)
        _compare(first.traits, result, again, here)
        if result.terminated or result.truncated:
            if result.success:
                _fail(f"{here} solves the task")
            _must_raise(first, "after the last step")
            return


def _check_fresh_reset(env: Environment, task: Task) -> None:
    opening = env.reset(task)
    env.step(Action(message=Message.of("assistant", _PROBES[1])))
    again = env.reset(task)
    if env.traits.deterministic and again != opening:
        _fail(f"task {task.id!r}: reset after a step differs from the first reset")


def _check_demonstration(env: Any, task: Task, tools: tuple[ToolSpec, ...]) -> None:
    where = f"demonstrate(task {task.id!r}, tools {[tool.name for tool in tools]})"
    shown = _expect(env.demonstrate(task, tools), Demonstration, where)
    if shown.task != task or not all(isinstance(message, Message) for message in shown.messages):
        _fail(f"{where} must hold the task itself and a tuple of messages")
    expected: tuple[Message, ...] = env.reset(task).messages
    result: StepResult | None = None
    pending = list(shown.messages)
    offered = {tool.name for tool in tools}
    while pending:
        opening, pending = tuple(pending[: len(expected)]), pending[len(expected) :]
        if opening != expected:
            _fail(f"{where} has {_texts(opening)} where an episode has {_texts(expected)}")
        if not pending or pending[0].role != "assistant":
            _fail(f"{where} needs a message of role assistant after {_texts(opening)}")
        reply = pending.pop(0)
        if reply.tool_calls and {call.name for call in reply.tool_calls} <= offered:
            # The agent answers calls of its own tools; the environment never sees them.
            expected = tuple(pending[: len(reply.tool_calls)])
            for call, answer in itertools.zip_longest(reply.tool_calls, expected):
                if answer is None or answer.role != "tool" or answer.tool_call_id != call.id:
                    _fail(f"{where}: call {call.id!r} is not followed by a tool message with its id")
            continue
        result = _check_result(env.step(Action(message=reply)), where)
        if result.terminated or result.truncated:
            if pending:
                _fail(f"{where} goes on after the last step, with {_texts(pending)}")
            break
        expected = _expect(result.observation, Observation, where).messages
    if result is None or not result.success:
        _fail(f"{where} does not solve the task")


def _check_observation(observation: Any, where: str) -> Observation:
    checked = _expect(observation, Observation, where)
    if not isinstance(checked.messages, tuple) or not checked.messages:
        _fail(f"{where}: messages must be a non-empty tuple, or the agent has nothing to answer")
    for message in checked.messages:
        if _expect(message, Message, f"{where}: a message").role == "assistant":
            _fail(f"{where}: an environment must not speak as the assistant")
    for tool in _expect(checked.tools, tuple, f"{where}: tools"):
        if _expect(tool, ToolSpec, f"{where}: a tool").parameters.get("type") != "object":
            _fail(f"{where}: parameters of tool {tool.name!r} must be a JSON schema of type object")
    if checked.state_key is not None:
        _expect(checked.state_key, str, f"{where}: state_key")
    for action in _expect(checked.actions, tuple, f"{where}: actions"):
        if not _expect(action, str, f"{where}: an action") or checked.actions.count(action) > 1:
            _fail(f"{where}: actions must be non-empty texts, each once, got {checked.actions!r}")
    for number in () if checked.array is None else _expect(checked.array, tuple, f"{where}: array"):
        if not isinstance(number, float) or not math.isfinite(number):
            _fail(f"{where}: array must hold finite floats, got {number!r}")
    return checked


def _check_result(result: Any, where: str) -> StepResult:
    checked = _expect(result, StepResult, where)
    for name, value in {"reward": checked.reward, **checked.reward_parts}.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            _fail(f"{where}: {name} must be a finite number, got {value!r}")
    _expect(checked.terminated, bool, f"{where}: terminated")
    _expect(checked.truncated, bool, f"{where}: truncated")
    if checked.terminated or checked.truncated:
        if not isinstance(checked.success, bool):
            _fail(f"{where}: success must be True or False on the last step, got {checked.success!r}")
    else:
        if checked.success is not None:
            _fail(f"{where}: success must be None before the last step, got {checked.success!r}")
        _check_observation(checked.observation, where)
    try:
        pickle.dumps(checked)
    except Exception as error:  # pickle raises whatever the objects in it raise
        _fail(f"{where}: the result cannot cross a process border: {error}")
    return checked


def _compare(traits: EnvTraits, one: Any, other: Any, where: str) -> None:
    if traits.deterministic and one != other:
        _fail(f"{where}: traits.deterministic is declared, but two instances differ: {one!r} and {other!r}")
    if traits.replay and _state_key(one) != _state_key(other):
        _fail(f"{where}: traits.replay is declared, but state_key differs: {_state_key(one)} and {_state_key(other)}")


def _state_key(seen: Observation | StepResult) -> str | None:
    observation = seen.observation if isinstance(seen, StepResult) else seen
    return None if observation is None else observation.state_key


def _must_raise(env: Environment, when: str) -> None:
    try:
        env.step(Action(message=Message.of("assistant", _PROBES[1])))
    except Exception:  # which one is the author's choice: any fails the episode
        return
    _fail(f"step {when} must raise, or a reward is paid twice")


def _check_plain(value: Any, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        _fail(f"{where} is {value}, which JSON cannot hold")
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if not isinstance(key, str):
                _fail(f"{where} has the key {key!r}; JSON keys are strings")
            _check_plain(entry, f"{where}[{key!r}]")
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            _check_plain(entry, f"{where}[{index}]")
    elif type(value) not in _PLAIN:
        _fail(f"{where} is a {type(value).__name__}; only plain JSON values (lists, not tuples) survive a log")


def _expect(value: Any, kind: Any, where: str) -> Any:
    if not isinstance(value, kind):
        _fail(f"{where} must be a {kind.__name__}, got {type(value).__name__}")
    return value


def _texts(messages: Sequence[Message]) -> str:
    return json.dumps([f"{message.role}: {message.text}" for message in messages], ensure_ascii=False)


def _fail(text: str) -> NoReturn:
    raise ContractError(text)
