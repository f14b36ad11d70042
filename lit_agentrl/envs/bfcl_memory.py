"""BFCL v4, memory: questions about what a user said in earlier sessions, answered out of a store that is searched."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lit_agentrl.envs.arguments import check_at_least
from lit_agentrl.envs.bfcl_api import REQUIRES, Dispatcher, as_tool, read_lines
from lit_agentrl.envs.calls import call_message
from lit_agentrl.envs.extras import check_requirements
from lit_agentrl.envs.splits import choose
from lit_agentrl.envs.states import History
from lit_agentrl.rewards.answers import answer_instruction, extract_answer, write_answer
from lit_agentrl.rewards.grading import GraderError
from lit_agentrl.types import Action, Demonstration, EnvTraits, Message, Observation, Split, StepResult, Task, ToolSpec

SCENARIOS: dict[str, Split] = {
    "customer": "train",
    "student": "train",
    "finance": "train",
    "healthcare": "val",
    "notetaker": "test",
}
"""A user's sessions hold the facts of all questions about that user, so whole users go to a split."""
_READING = ("archival_memory_key_search", "archival_memory_retrieve", "archival_memory_list_keys")
_INSTRUCTION = (
    "Your long-term memory holds what the user told you in earlier sessions. "
    "Look it up with the functions, then answer in a few words."
)
_MAX_ENTRY_CHARS = 2000  # the store's own limit
_WORDS_IN_KEY = 8  # with more, the list of keys would be longer than the 8,000 characters that workers hand on uncut
_WORD = re.compile(r"[a-z]{4,}")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Question:
    id: str
    scenario: str
    text: str
    answers: tuple[str, ...]
    source: str
    """What the user had said, as far as the benchmark's authors quote it."""


class BFCLMemory:
    """Recall over sessions through the benchmark's key-value store (Berkeley Function Calling Leaderboard v4).

    The store holds, word for word, what the user said in all earlier sessions, in entries of up to 2,000 characters
    whose keys are the session's topic and the entry's most telling words. The policy searches keys, retrieves entries
    and answers; the benchmark's check looks for a right answer, in whole words, in the final answer.

    Where this differs from the benchmark: there the policy first fills the store itself, through 37 sessions, and its
    whole reply is searched for the answer. Here the store is filled by rule, so that an episode is one question; and
    an answer of more words than the longest right one plus `extra_words` is wrong, or listing guesses would pay. Only
    the `kv` store is offered: `vector` wants a model of sentence embeddings, `rec_sum` is shorter than the sessions.

    Args:
        extra_words: How many words longer than the longest right answer an answer may be.
        max_steps: Replies with calls; one more ends the episode as wrong.
        writing: Whether the functions that change the store are offered, too, as in the benchmark. They cost a
            thousand tokens of prompt, and what they change is forgotten with the episode.

    Raises:
        ValueError: An argument is not accepted, or the package is not installed.
    """

    traits = EnvTraits(deterministic=True, replay=True)
    requires = REQUIRES

    def __init__(self, *, extra_words: int = 3, max_steps: int = 8, writing: bool = False) -> None:
        check_requirements(type(self))
        check_at_least(0, extra_words=extra_words)
        check_at_least(1, max_steps=max_steps)
        self.extra_words = extra_words
        self.max_steps = max_steps
        self.tools = tuple(spec for name, spec in _tool_specs().items() if writing or name in _READING)
        self._names = {tool.name for tool in self.tools}
        self._question: _Question | None = None
        self._steps = 0

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the question of a seed; users are not shared between splits."""
        questions = [question for question in _questions().values() if SCENARIOS[question.scenario] == split]
        question = questions[choose(seed, len(questions), split=split, purpose="bfcl memory")]
        return Task(
            id=question.id,
            family=f"bfcl_memory_{question.scenario}",
            split=split,
            seed=seed,
            data={"question": question.text, "answers": list(question.answers)},
        )

    def reset(self, task: Task) -> Observation:
        """Fill the store and ask.

        Raises:
            ValueError: The installed package has no such question.
        """
        if task.id not in _questions():
            raise ValueError(f"task {task.id!r}: the installed bfcl-eval has no such question")
        self._question = _questions()[task.id]
        self._steps = 0
        self._history = History(task.id)
        store = _store_class()()
        store.archival_memory = dict(_entries(self._question.scenario))
        self._dispatcher = Dispatcher({"store": store})
        text = f"{_INSTRUCTION}\n{self._question.text}\n{answer_instruction('line')}"
        return Observation(messages=(Message.of("user", text),), tools=self.tools, state_key=self._history.key)

    def step(self, action: Action) -> StepResult:
        """Run the calls, or grade the answer.

        Raises:
            RuntimeError: No episode is running.
            GraderError: The benchmark's check crashed.
        """
        question = self._question
        if question is None:
            raise RuntimeError("step was called without a running episode; call reset first")
        calls = action.message.tool_calls
        self._steps += 1
        if calls and self._steps <= self.max_steps:
            outputs = [(call, self._run(call.name, call.arguments, call.error)) for call in calls]
            key = self._history.add_calls(outputs)
            messages = tuple(Message.of("tool", text, tool_call_id=call.id) for call, text in outputs)
            return StepResult(observation=Observation(messages=messages, tools=self.tools, state_key=key))
        self._question = None
        answer = None if calls else extract_answer(action.message.text, "line")
        success = answer is not None and self._is_right(answer, question)
        return StepResult(
            observation=None,
            reward=float(success),
            reward_parts={"answer": float(success), "answered": float(answer is not None)},
            terminated=True,
            success=success,
            info={"answer": answer},
        )

    def close(self) -> None:
        """Drop the running episode."""
        self._question = None

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec] = ()) -> Demonstration:
        """Show a search for the question, the entry that holds the answer, and the answer."""
        own = type(self)(extra_words=self.extra_words, max_steps=max(self.max_steps, 4))  # it needs up to three calls
        messages = list(own.reset(task).messages)
        question = _questions()[task.id]
        key = _key_of(question)
        plan: list[tuple[str, dict[str, Any]]] = [("archival_memory_key_search", {"query": question.text})]
        found = own._run(*plan[0], None)
        if json.dumps(key) not in found:
            plan.append(("archival_memory_list_keys", {}))
        plan.append(("archival_memory_retrieve", {"key": key}))
        for number, call in enumerate(plan):
            shown = call_message([call], number=number)
            result = own.step(Action(message=shown))
            assert result.observation is not None
            messages += [shown, *result.observation.messages]
        messages.append(Message.of("assistant", write_answer(question.answers[0], "line")))
        return Demonstration(task=task, messages=tuple(messages), tools=(*tools, *self.tools))

    def _run(self, name: str, arguments: Any, error: str | None) -> str:
        if error is not None or name not in self._names:
            return f"Error: {error or f'there is no function {name!r}'}"
        return self._dispatcher.call(name, arguments)

    def _is_right(self, answer: str, question: _Question) -> bool:
        if len(answer.split()) > max(len(right.split()) for right in question.answers) + self.extra_words:
            return False
        try:
            return _checks(answer, question.answers)
        except Exception as error:
            raise GraderError(f"the check of {question.id} raised {type(error).__name__}: {error}") from error


@functools.cache
def _questions() -> dict[str, _Question]:
    gold = {record["id"]: record for record in read_lines("possible_answer/BFCL_v4_memory.json")}
    return {
        record["id"]: _Question(
            id=record["id"],
            scenario=record["scenario"],
            text=record["question"][0][0]["content"],
            answers=tuple(gold[record["id"]]["ground_truth"]),
            source=str(gold[record["id"]].get("source", "")),
        )
        for record in read_lines("BFCL_v4_memory.json")
    }


@functools.cache
def _entries(scenario: str) -> dict[str, str]:
    """Return the store's entries by key: what a user said, cut into pieces of whole messages."""
    pieces: list[tuple[str, str]] = []
    for session in read_lines(f"memory_prereq_conversation/memory_{scenario}.json"):
        piece = ""
        for turn in session["question"]:
            said = turn[0]["content"]
            if piece and len(piece) + 1 + len(said) > _MAX_ENTRY_CHARS:
                pieces.append((session["topic"], piece))
                piece = ""
            piece = f"{piece}\n{said}".strip()
        pieces.append((session["topic"], piece))
    spread = Counter(word for _, text in pieces for word in set(_WORD.findall(text.lower())))
    entries: dict[str, str] = {}
    for number, (topic, text) in enumerate(pieces):
        counts = Counter(_WORD.findall(text.lower()))
        telling = sorted(counts, key=lambda word: (spread[word] / counts[word], -len(word)))  # a stable sort
        name = "_".join([*_WORD.findall(topic.lower()), *telling[:_WORDS_IN_KEY]])
        entries[f"{name}_{number}"] = text[:_MAX_ENTRY_CHARS]
    return entries


def _key_of(question: _Question) -> str:
    """Return the entry that the benchmark's authors quote, or one that holds the answer, or the first."""
    entries = _entries(question.scenario)
    quote = question.source.strip(". ")[:40]
    quoted = [key for key, text in entries.items() if quote and quote in text]
    holding = [key for key, text in entries.items() if _checks(text, question.answers)]
    both = [key for key in quoted if key in holding]
    return (both or holding or quoted or list(entries))[0]


def _checks(text: str, answers: Sequence[str]) -> bool:
    checker = importlib.import_module("bfcl_eval.eval_checker.agentic_eval.agentic_checker")
    return bool(checker.agentic_checker(text, list(answers))["valid"])


@functools.cache
def _tool_specs() -> dict[str, ToolSpec]:
    return {record["name"]: as_tool(record) for record in read_lines("multi_turn_func_doc/memory_kv.json")}


@functools.cache
def _store_class() -> type[Any]:
    # The package makes folders for results when it is imported, by default next to itself.
    os.environ.setdefault("BFCL_PROJECT_ROOT", str(Path(tempfile.gettempdir()) / f"bfcl-{os.getuid()}"))
    name = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code.memory_kv"
    cls: type[Any] = importlib.import_module(name).MemoryAPI_kv
    return cls
