"""Published dialogue-memory sets, read from files: LoCoMo (arXiv:2402.17753) and LongMemEval (arXiv:2410.10813)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lit_agentrl.envs.dialogue_facts import UNKNOWN, QuestionType
from lit_agentrl.envs.dialogue_memory import Delivery, SessionsEnvironment
from lit_agentrl.envs.problem_files import read_records
from lit_agentrl.envs.splits import choose, content_digest
from lit_agentrl.rewards.answers import plain_words, word_f1
from lit_agentrl.types import SPLITS, Split, Task

_KEY = "env.init_args.files"
_HELD_OUT_SHARE = 0.15
_SESSION = re.compile(r"session_(\d+)")
_EVIDENCE = re.compile(r"D:?(\d+)")
_ABSTENTION = "_abs"
_LOCOMO_TYPES: dict[int, tuple[str, QuestionType]] = {
    1: ("multi_hop", "recall"),
    2: ("temporal", "temporal"),
    3: ("open_domain", "recall"),
    4: ("single_hop", "recall"),
    5: ("adversarial", "abstain"),
}
_LONGMEMEVAL_TYPES: dict[str, QuestionType] = {
    "single-session-user": "recall",
    "single-session-assistant": "recall",
    "multi-session": "recall",
    "temporal-reasoning": "temporal",
    "knowledge-update": "update",
}
_UNSCORED = "single-session-preference"
"""Its gold answers describe what a good reply is like; nothing but a judge can score that."""

Sessions = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One question over one dialogue."""

    id: str
    dialogue: str
    group: str
    """Questions of one group go to one split."""
    kind: str
    """As the set's authors name it."""
    type: QuestionType
    text: str
    answer: str
    delay: int | None
    several: bool = False
    """The answer is a list, of which each part counts."""


class DialogueFiles(SessionsEnvironment):
    """Questions over the dialogues of LoCoMo or LongMemEval, in the files that their authors published.

    Which of the two a file is, its fields say. An answer's score is the F1 of its words against the gold answer's, as
    LoCoMo scores (without its stemming); from `success_f1` on it counts as right. Questions without an answer in the
    dialogue (LoCoMo's category 5, LongMemEval's `_abs`) want "unknown". LongMemEval's own score is a language model's
    judgement, so figures of here and there do not compare; its preference questions are left out.

    Args:
        files: JSON files. A list is divided by dialogue, 70/15/15; a mapping says which files are which split.
        window: Sessions that stand in the prompt; earlier ones have to be looked up.
        delivery: `prompt`, or `turns`: every session is a turn, and nothing can be looked up.
        max_lookups: Replies with calls; one more ends the episode as wrong.
        success_f1: F1 from which an answer is right, in (0, 1].
        partial_credit: Whether the reward is the F1 rather than 1 for right and 0 else.

    Raises:
        ValueError: An argument is not accepted, or a file is missing or malformed (names file and record).
    """

    def __init__(
        self,
        files: dict[Split, list[str]] | list[str],
        *,
        window: int = 2,
        delivery: Delivery = "prompt",
        max_lookups: int = 6,
        success_f1: float = 0.8,
        partial_credit: bool = False,
    ) -> None:
        super().__init__(window=window, delivery=delivery, max_lookups=max_lookups)
        if not 0 < success_f1 <= 1:
            raise ValueError(f"env.init_args.success_f1 must be in (0, 1], got {success_f1}")
        self.success_score = success_f1
        self.pays_score = partial_credit
        self._dialogues: dict[str, Sessions] = {}
        self._questions: dict[Split, list[Question]] = {split: [] for split in SPLITS}
        self._read(files)

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the question of a seed.

        Raises:
            ValueError: The files have no question for the split.
        """
        questions = self._questions[split]
        if not questions:
            counts = ", ".join(f"{name} {len(found)}" for name, found in self._questions.items())
            raise ValueError(f"{_KEY}: there is no question for split {split!r} ({counts})")
        question = questions[choose(seed, len(questions), split=split, purpose="dialogue files")]
        return Task(
            id=question.id,
            family=f"dialogue_{question.kind}",
            split=split,
            seed=seed,
            data={
                "dialogue": question.dialogue,
                "question": question.text,
                "query": question.text,
                "answer": question.answer,
                "type": question.type,
                "delay": question.delay,
                "several": question.several,
            },
        )

    def score(self, answer: str, task: Task) -> float:
        """Return the F1 of the answer's words; exact for "unknown"."""
        if task.data["type"] == "abstain":
            return float(plain_words(answer) == [UNKNOWN])
        gold = task.data["answer"]
        if not task.data["several"]:
            return word_f1(answer, gold)
        parts = [part for part in gold.split(",") if plain_words(part)] or [gold]
        given = answer.split(",")
        found = sum(max(word_f1(piece, part) for piece in given) for part in parts) / len(parts)
        # Every part that is said beyond those asked for costs, or listing all there is would pay.
        return found * min(1.0, len(parts) / len(given))

    def _sessions_of(self, task: Task) -> Sessions:
        if task.data["dialogue"] not in self._dialogues:
            raise ValueError(f"task {task.id!r}: the files have no dialogue {task.data['dialogue']!r}")
        return self._dialogues[task.data["dialogue"]]

    def _read(self, files: Mapping[Split, list[str]] | list[str]) -> None:
        named: Mapping[Split, list[str]] = files if isinstance(files, Mapping) else {"train": files}
        if not any(named.values()):
            raise ValueError(f"{_KEY}: name at least one file")
        owners: dict[str, tuple[Split, str]] = {}
        for home, paths in named.items():
            if home not in SPLITS:
                raise ValueError(f"{_KEY} must be a list or name splits {', '.join(SPLITS)}, got {home!r}")
            found: list[Question] = []
            for path in paths:
                for place, record in read_records(path):
                    dialogue, sessions, questions = _read_record(record, place)
                    if dialogue in self._dialogues:
                        raise ValueError(f"{_KEY}: {place}: {dialogue!r} has been read before; name each file once")
                    for question in questions:
                        owner = owners.setdefault(question.group, (home, path))
                        if owner[0] != home:
                            raise ValueError(
                                f"{_KEY}: {place}: {question.id!r} belongs to a dialogue of {owner[1]} ({owner[0]})"
                            )
                    self._dialogues[dialogue] = sessions
                    found += questions
            splits = {} if isinstance(files, Mapping) else _divided({question.group for question in found})
            for question in found:
                self._questions[splits.get(question.group, home)].append(question)


def _divided(groups: set[str]) -> dict[str, Split]:
    ordered = sorted(groups, key=content_digest)
    held_out = max(round(_HELD_OUT_SHARE * len(ordered)), int(len(ordered) > 2))
    return {
        group: "test" if place < held_out else "val" if place < 2 * held_out else "train"
        for place, group in enumerate(ordered)
    }


def _read_record(record: Mapping[str, Any], place: str) -> tuple[str, Sessions, list[Question]]:
    try:
        if "conversation" in record and "qa" in record:
            return _locomo(record)
        if "haystack_sessions" in record:
            return _longmemeval(record)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        what = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{_KEY}: {place}: {what}") from None
    raise ValueError(
        f"{_KEY}: {place}: neither LoCoMo (fields conversation, qa) nor LongMemEval (field haystack_sessions); "
        f"there are {', '.join(record) or 'no fields'}"
    )


def _locomo(record: Mapping[str, Any]) -> tuple[str, Sessions, list[Question]]:
    name = f"locomo-{record['sample_id']}"
    conversation = record["conversation"]
    matches = [_SESSION.fullmatch(key) for key in conversation]
    numbers = sorted(int(match[1]) for match in matches if match)
    if not numbers:
        raise ValueError("the conversation has no session_1, session_2, ...")
    sessions = [
        {
            "title": f"Session {number} ({conversation.get(f'session_{number}_date_time', 'no date')})",
            "lines": [_locomo_line(turn) for turn in conversation[f"session_{number}"]],
        }
        for number in numbers
    ]
    questions = []
    for index, entry in enumerate(record["qa"]):
        if entry["category"] not in _LOCOMO_TYPES:
            raise ValueError(f"qa {index}: the category must be 1 to 5, got {entry['category']!r}")
        kind, question_type = _LOCOMO_TYPES[entry["category"]]
        cited = [int(number) for text in entry.get("evidence") or () for number in _EVIDENCE.findall(str(text))]
        known = [numbers.index(number) for number in cited if number in numbers]
        abstains = question_type == "abstain"
        questions.append(
            Question(
                id=f"{name}-{index}",
                dialogue=name,
                group=name,
                kind=f"locomo_{kind}",
                type=question_type,
                text=str(entry["question"]),
                answer=UNKNOWN if abstains else _gold(entry["answer"]),
                delay=None if abstains or not known else len(sessions) - 1 - max(known),
                several=kind == "multi_hop",
            )
        )
    return name, sessions, questions


def _locomo_line(turn: Mapping[str, Any]) -> str:
    photo = f" [shares a photo: {turn['blip_caption']}]" if turn.get("blip_caption") else ""
    return f"{turn['speaker']}: {turn['text']}{photo}"


def _longmemeval(record: Mapping[str, Any]) -> tuple[str, Sessions, list[Question]]:
    question_id = str(record["question_id"])
    name = f"longmemeval-{question_id}"
    told, dates = record["haystack_sessions"], record["haystack_dates"]
    if not told or len(told) != len(dates):
        raise ValueError(f"{question_id}: {len(told)} haystack_sessions and {len(dates)} haystack_dates")
    sessions = [
        {
            "title": f"Session {number} ({date})",
            "lines": [f"{turn['role']}: {turn['content']}" for turn in session],
        }
        for number, (date, session) in enumerate(zip(dates, told, strict=True), start=1)
    ]
    kind = record["question_type"]
    if kind == _UNSCORED:
        return name, sessions, []
    if kind not in _LONGMEMEVAL_TYPES:
        raise ValueError(f"{question_id}: unknown question_type {kind!r}")
    abstains = question_id.endswith(_ABSTENTION)
    ids = list(record.get("haystack_session_ids") or ())
    known = [ids.index(session) for session in record.get("answer_session_ids") or () if session in ids]
    question = Question(
        id=name,
        dialogue=name,
        group=name.removesuffix(_ABSTENTION),
        kind=f"longmemeval_{kind.replace('-', '_')}",
        type="abstain" if abstains else _LONGMEMEVAL_TYPES[kind],
        text=f"(It is {record['question_date']}.) {record['question']}",
        answer=UNKNOWN if abstains else _gold(record["answer"]),
        delay=None if abstains or not known else len(sessions) - 1 - max(known),
    )
    return name, sessions, [question]


def _gold(answer: Any) -> str:
    text = " ".join(str(answer).split())
    if not plain_words(text):
        raise ValueError(f"the answer {answer!r} has no word in it")
    return text
