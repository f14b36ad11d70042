"""Problem sets in files: JSON, JSON lines or Parquet, one record a problem, with the place of every fault."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_KEY = "env.init_args.files"
PROBLEM_FIELDS = ("problem", "question", "prompt", "Problem", "Question")
ANSWER_FIELDS = ("answer", "expected_answer", "final_answer", "Answer")
_WRAPPERS = ("data", "problems", "rows", "train", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One problem with its answer."""

    text: str
    answer: str
    source: str
    """Stem of the file's name: the family under which metrics are grouped."""
    place: str
    """File and line, or file and record."""


def read_records(path: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the records of a file, each with its place in words.

    Raises:
        ValueError: The file is missing, of another kind, or not what its name says; names file and line.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"{_KEY}: there is no file {path!r} (looked in {Path.cwd()})")
    readers = {".jsonl": _json_lines, ".json": _json, ".parquet": _parquet}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise ValueError(f"{_KEY}: {path!r} must end in {', '.join(readers)}")
    records = reader(file)
    if not records:
        raise ValueError(f"{_KEY}: {path!r} holds no record")
    for place, record in records:
        if not isinstance(record, dict):
            raise ValueError(f"{_KEY}: {place}: a record must be an object, got {type(record).__name__}")
    return records


def read_problems(path: str, *, problem_field: str | None = None, answer_field: str | None = None) -> list[Problem]:
    """Return the problems of a file.

    Args:
        path: The file.
        problem_field: Name of the field with the problem; by default the first there is of `PROBLEM_FIELDS`.
        answer_field: Name of the field with the answer; by default the first there is of `ANSWER_FIELDS`.

    Raises:
        ValueError: As `read_records`, or a record lacks problem or answer; names the line and the fields there are.
    """
    problems = []
    for place, record in read_records(path):
        text = _field(record, PROBLEM_FIELDS if problem_field is None else (problem_field,), "problem", place)
        answer = _field(record, ANSWER_FIELDS if answer_field is None else (answer_field,), "answer", place)
        if isinstance(answer, float) and answer.is_integer():  # a column of numbers with gaps is read as floats
            answer = int(answer)
        if not isinstance(text, str) or isinstance(answer, bool) or not isinstance(answer, str | int | float):
            raise ValueError(
                f"{_KEY}: {place}: problem must be text and answer text or a number, "
                f"got {type(text).__name__} and {type(answer).__name__}"
            )
        if not text.strip() or not str(answer).strip():
            raise ValueError(f"{_KEY}: {place}: the {'answer' if text.strip() else 'problem'} is empty")
        problems.append(Problem(text=text.strip(), answer=str(answer).strip(), source=Path(path).stem, place=place))
    return problems


def _field(record: Mapping[str, Any], names: Sequence[str], what: str, place: str) -> Any:
    for name in names:
        if record.get(name) is not None:
            return record[name]
    raise ValueError(
        f"{_KEY}: {place}: no {what} (looked for {', '.join(names)}; there are {', '.join(record) or 'no fields'}); "
        f"env.init_args.{what}_field names another field"
    )


def _json_lines(file: Path) -> list[tuple[str, Any]]:
    records = []
    for number, line in enumerate(_text(file).split("\n"), start=1):
        if line.strip():
            place = f"{file}, line {number}"
            records.append((place, _load(line, place)))
    return records


def _json(file: Path) -> list[tuple[str, Any]]:
    loaded = _load(_text(file), str(file))
    if isinstance(loaded, dict):
        loaded = next((loaded[name] for name in _WRAPPERS if isinstance(loaded.get(name), list)), loaded)
    if not isinstance(loaded, list):
        raise ValueError(f"{_KEY}: {file}: expected a list of objects, or an object with one under {_WRAPPERS[0]!r}")
    return [(f"{file}, record {number}", record) for number, record in enumerate(loaded, start=1)]


def _parquet(file: Path) -> list[tuple[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ModuleNotFoundError:
        raise ValueError(
            f"{_KEY}: {file} needs the package 'pyarrow'; install it with: pip install 'lit_agentrl[math]'"
        ) from None
    try:
        rows = parquet.read_table(file).to_pylist()
    except (ArrowException, OSError) as error:
        raise ValueError(f"{_KEY}: {file} is no readable Parquet file: {' '.join(str(error).split())[:200]}") from None
    return [(f"{file}, row {number}", row) for number, row in enumerate(rows, start=1)]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{_KEY}: {file} is not UTF-8 text (byte {error.start})") from None


def _load(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{_KEY}: {place}: no valid JSON: {error}") from None
