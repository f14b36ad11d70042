"""Preference files: JSON Lines, JSON and Parquet, in the forms that data sets come in."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from lit_agentrl.rollouts.comparisons import Answer, AnswerTurn, Comparison
from lit_agentrl.rollouts.preferences import Candidate, Preference, SearchNode
from lit_agentrl.types import Message, Role

PreferenceFormat: TypeAlias = Literal[
    "auto", "plain", "conversational", "unpaired", "webgpt", "search_nodes", "trajectories"
]
_KEY = "data.init_args.files"
_FIELDS = {
    "trajectories": ("schema", "turns", "task", "status", "success"),
    "search_nodes": ("messages", "candidates"),
    "webgpt": ("question", "answer_0", "answer_1", "score_0", "score_1"),
    "unpaired": ("prompt", "completion", "label"),
    "plain": ("prompt", "chosen", "rejected"),
    "conversational": ("chosen", "rejected"),
}


@dataclass(kw_only=True)
class Recorded:
    """An episode of a trajectory file."""

    task: str
    success: bool
    answer: Answer
    texts: list[tuple[tuple[int, ...], str]]
    """Ids and text of each reply, by which a wrong tokenizer is found out."""
    source: str


@dataclass(kw_only=True)
class Contents:
    """What files hold."""

    preferences: list[Preference] = field(default_factory=list)
    nodes: list[SearchNode] = field(default_factory=list)
    episodes: list[Recorded] = field(default_factory=list)
    ties: int = 0
    """Comparisons without a winner, which are left out."""


def read_preferences(files: Sequence[str], *, format: PreferenceFormat = "auto") -> Contents:
    """Read preference files.

    Args:
        files: Paths; `.jsonl`, `.json` (a list of records) or `.parquet`.
        format: Form of the records; `auto` decides for each file by the fields of its first record.

    Raises:
        ValueError: A file cannot be read, or a record is wrong; names file, line and `data.init_args.files`.
    """
    contents = Contents()
    for name in files:
        form: str = format
        for number, record in _records(Path(name)):
            place = f"{name}:{number}"
            if not isinstance(record, Mapping):
                raise _wrong(place, f"a record must be an object with fields, not {type(record).__name__}")
            if form == "auto":
                form = _detect(record, place)
            _READERS[form](_Record(record, place, form), contents)
    return contents


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the records of a file, each with its line; in JSON and Parquet records count as lines."""
    suffix = path.suffix.lower()
    if suffix not in (".jsonl", ".json", ".parquet"):
        raise _wrong(str(path), "its name must end in .jsonl, .json or .parquet")
    try:
        yield from {".jsonl": _json_lines, ".json": _json, ".parquet": _parquet}[suffix](path)
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(str(path), f"cannot be read ({error})") from None


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except json.JSONDecodeError as error:
                    raise _wrong(f"{path}:{number}", f"is not JSON ({error})") from None


def _json(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise _wrong(f"{path}:{error.lineno}", f"is not JSON ({error.msg})") from None
    if not isinstance(records, list):
        raise _wrong(f"{path}:1", "must hold a list of records")
    yield from enumerate(records, start=1)


def _parquet(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise _wrong(str(path), "reading Parquet needs pyarrow: pip install 'lit_agentrl[parquet]'") from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for part in file.iter_batches():
                for record in part.to_pylist():
                    number += 1
                    yield number, record
    except importlib.import_module("pyarrow").ArrowException as error:
        raise _wrong(str(path), f"cannot be read as Parquet ({error})") from None


def _wrong(place: str, what: str) -> ValueError:
    return ValueError(f"{_KEY}: {place}: {what}")


def _detect(record: Mapping[str, Any], place: str) -> str:
    for form, fields in _FIELDS.items():
        if all(name in record for name in fields) and not (form == "plain" and isinstance(record["chosen"], list)):
            return form
    forms = "; ".join(f"{form} has {', '.join(fields)}" for form, fields in _FIELDS.items())
    raise _wrong(place, f"fields {', '.join(map(str, record)) or 'none'} are of no known form: {forms}")


class _Record:
    """One record, whose fields are checked as they are read."""

    def __init__(self, fields: Mapping[str, Any], place: str, form: str) -> None:
        self._fields, self.place, self._form = fields, place, form

    def wrong(self, what: str) -> ValueError:
        return _wrong(self.place, what)

    def get(self, name: str, *kinds: type) -> Any:
        """Return a field that has to be of one of some types."""
        if name not in self._fields:
            raise self.wrong(f"field {name!r} is missing (format {self._form})")
        value = self._fields[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise self.wrong(f"field {name!r} must be {names}, not {type(value).__name__} (format {self._form})")
        return value

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def number(self, name: str) -> float:
        """Return a finite number."""
        value = float(self.get(name, int, float))
        if value != value or abs(value) == float("inf"):
            raise self.wrong(f"field {name!r} must be a finite number, not {value}")
        return value

    def prompt(self, name: str = "prompt") -> tuple[Message, ...]:
        """Return a prompt, given as text or as messages."""
        value = self.get(name, str, list)
        if isinstance(value, str):
            if not value.strip():
                raise self.wrong(f"field {name!r} is empty")
            return (Message.of("user", value),)
        messages = self.messages(name, value)
        if not messages:
            raise self.wrong(f"field {name!r} is empty")
        return messages

    def reply(self, name: str, value: Any) -> tuple[Message, ...]:
        """Return an answer, given as text or as messages."""
        messages = (Message.of("assistant", value),) if isinstance(value, str) else self.messages(name, value)
        self.check_reply(name, messages)
        return messages

    def check_reply(self, name: str, messages: Sequence[Message]) -> None:
        if not messages or messages[-1].role != "assistant":
            raise self.wrong(f"{name!r} must end with a message of role assistant after the prompt")
        if not all(message.text.strip() for message in messages if message.role == "assistant"):
            raise self.wrong(f"{name!r} is empty")

    def messages(self, name: str, values: Any) -> tuple[Message, ...]:
        """Return messages, given as a list of {role, content}."""
        if not isinstance(values, list):
            raise self.wrong(f"field {name!r} must be str or list, not {type(values).__name__} (format {self._form})")
        result = []
        for value in values:
            fields = value if isinstance(value, Mapping) else {}
            role: Any = fields.get("role")
            content = fields.get("content")
            if role not in get_args(Role) or not isinstance(content, str):
                raise self.wrong(
                    f"field {name!r} must be a list of {{role, content}}, content a str and role one of "
                    f"{', '.join(get_args(Role))}"
                )
            result.append(Message.of(role, content))
        return tuple(result)

    def add_pair(
        self,
        contents: Contents,
        prompt: tuple[Message, ...],
        chosen: tuple[Message, ...],
        rejected: tuple[Message, ...],
    ) -> None:
        if chosen == rejected:
            raise self.wrong("chosen and rejected answers are identical")
        contents.preferences.append(Preference(prompt=prompt, chosen=chosen, rejected=rejected, source=self.place))


def _plain(record: _Record, contents: Contents) -> None:
    chosen, rejected = (record.reply(name, record.get(name, str)) for name in ("chosen", "rejected"))
    record.add_pair(contents, record.prompt(), chosen, rejected)


def _conversational(record: _Record, contents: Contents) -> None:
    chosen, rejected = (record.messages(name, record.get(name, list)) for name in ("chosen", "rejected"))
    if chosen == rejected:
        raise record.wrong("chosen and rejected answers are identical")
    if record.has("prompt"):
        prompt = record.prompt()
    else:
        pairs = zip(chosen, rejected, strict=False)
        shared = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(chosen), len(rejected)))
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
        if not prompt:
            raise record.wrong("there is no field 'prompt', and chosen and rejected do not begin alike")
    for name, reply in (("chosen", chosen), ("rejected", rejected)):
        record.check_reply(name, reply)
    record.add_pair(contents, prompt, chosen, rejected)


def _unpaired(record: _Record, contents: Contents) -> None:
    reply = record.reply("completion", record.get("completion", str, list))
    desirable = record.get("label", bool, int)
    if desirable not in (0, 1):
        raise record.wrong(f"field 'label' must be true or false, not {desirable}")
    contents.preferences.append(
        Preference(
            prompt=record.prompt(),
            chosen=reply if desirable else None,
            rejected=None if desirable else reply,
            source=record.place,
        )
    )


def _webgpt(record: _Record, contents: Contents) -> None:
    question = _Record(record.get("question", dict), record.place, "webgpt, in 'question'")
    prompt = question.prompt("full_text")
    scores = record.number("score_0"), record.number("score_1")
    if scores[0] == scores[1]:
        contents.ties += 1
        return
    answers = [record.reply(name, record.get(name, str)) for name in ("answer_0", "answer_1")]
    better = int(scores[1] > scores[0])
    record.add_pair(contents, prompt, answers[better], answers[1 - better])


def _search_node(record: _Record, contents: Contents) -> None:
    candidates = []
    for number, given in enumerate(record.get("candidates", list)):
        if not isinstance(given, Mapping):
            raise record.wrong(f"candidate {number} must be an object with reply and q")
        candidate = _Record(given, record.place, f"search_nodes, in candidate {number}")
        reply = candidate.reply("reply", candidate.get("reply", str, list))
        candidates.append(Candidate(reply=reply, q=candidate.number("q")))
    contents.nodes.append(
        SearchNode(messages=record.prompt("messages"), candidates=tuple(candidates), source=record.place)
    )


def _trajectory(record: _Record, contents: Contents) -> None:
    task = _Record(record.get("task", dict), record.place, "trajectories, in 'task'")
    turns: list[AnswerTurn] = []
    texts = []
    for given in record.get("turns", list):
        turn = _Record(given, record.place, "trajectories, in a turn")
        reply, parent = turn.get("completion_ids", list), turn.get("parent", int, type(None))
        if parent is not None and not 0 <= parent < len(turns):
            raise turn.wrong(f"parent of turn {len(turns)} is {parent}: it must be an earlier turn, or null")
        turns.append(AnswerTurn(parent=parent, context=turn.get("prompt_ids", list), reply=reply))
        texts.append((tuple(reply), _Record(turn.get("reply", dict), record.place, "trajectories").get("text", str)))
    answer = Answer(turns=tuple(turns))
    if record.get("status", str) == "failed" or not answer.num_tokens:
        return  # says nothing about the policy
    contents.episodes.append(
        Recorded(
            task="/".join(task.get(name, str) for name in ("family", "split", "id")),
            success=record.get("success", bool),
            answer=answer,
            texts=texts,
            source=record.place,
        )
    )


_READERS: dict[str, Callable[[_Record, Contents], None]] = {
    "plain": _plain,
    "conversational": _conversational,
    "unpaired": _unpaired,
    "webgpt": _webgpt,
    "search_nodes": _search_node,
    "trajectories": _trajectory,
}


def recorded_pairs(episodes: Sequence[Recorded]) -> list[tuple[str, Comparison]]:
    """Return pairs of a success and a failure at one task, one to one in order, each with its task."""
    by_task: dict[str, tuple[list[Recorded], list[Recorded]]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task, ([], []))[not episode.success].append(episode)
    return [
        (task, Comparison(chosen=better.answer, rejected=worse.answer))
        for task, (won, lost) in by_task.items()
        for better, worse in zip(won, lost, strict=False)
    ]
