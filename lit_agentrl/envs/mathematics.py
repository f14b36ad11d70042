"""Mathematical problems with a final answer: from files of the AIME kind and others, or made, on a ladder of levels."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, get_args

from lit_agentrl.envs.extras import check_installed
from lit_agentrl.envs.one_answer import OneAnswer
from lit_agentrl.envs.problem_files import Problem, read_problems
from lit_agentrl.envs.reasoning_families import calculator_expression, make_dataset, population
from lit_agentrl.envs.splits import choose, content_digest, draw_until, split_of
from lit_agentrl.rewards.answers import AnswerFormat
from lit_agentrl.rewards.maths import AIME_MAX, AnswerKind, MathGrader, aime_answer
from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import SPLITS, Split, Task

_KINDS = get_args(AnswerKind)
_INSTALL = "pip install 'lit_agentrl[math]'"
_MODULUS = AIME_MAX + 1
_MAX_DRAWS = 400


class _MathAnswer(OneAnswer):
    """One answer that a grader of mathematics says yes or no to."""

    def __init__(self, *, grader: MathGrader, **marking: Any) -> None:
        super().__init__(**marking)
        self._grader = grader

    def close(self) -> None:
        """Drop the running episode and end the grader's process."""
        super().close()
        self._grader.close()

    def score(self, answer: str, task: Task) -> float:
        """Return 1 for a right answer and 0 else.

        Raises:
            GraderError: The grader looped, crashed, or cannot read the gold answer.
        """
        return float(self._grader.is_right(answer, task.data["answer"]))


class MathProblems(_MathAnswer):
    """Problems from files, graded as AIME does (integers from 0 to 999) or through math-verify.

    The grader of expressions runs in a process of its own. One that loops is killed after `grader_timeout_s` and the
    episode has failed, which is no wrong answer. Answers with words, several values, or towers of powers never reach it
    and are wrong; see `lit_agentrl.rewards.maths`.

    Held-out evaluations go through a file in order: with `num_test_episodes` = problems x `val_samples_per_task` each
    problem is tried equally often, which is what avg@k and pass@k are made from.

    Args:
        files: JSON, JSON lines or Parquet files. A list is divided by content, 80/10/10; a mapping says which files are
            which split: `{train: [olympiads.jsonl], test: [aime_2024.jsonl]}`.
        answers: `aime` or `expression`.
        problem_field: Field of the problem, if it is none of `problem`, `question`, `prompt`.
        answer_field: Field of the answer, if it is none of `answer`, `expected_answer`, `final_answer`.
        answer_format: How the final answer is marked.
        grader_timeout_s: CPU seconds that the check of one expression may take.
        answer_weight: Weight of the reward part `answer`.
        format_weight: Weight of the reward part `format`: 1 if there is one final answer in the right form.

    Raises:
        ValueError: An argument is not accepted, a file is missing or malformed (names the line), a problem is in two
            splits, or a package is missing.
    """

    preload = ("math_verify",)

    def __init__(
        self,
        files: dict[Split, list[str]] | list[str],
        *,
        answers: AnswerKind = "aime",
        problem_field: str | None = None,
        answer_field: str | None = None,
        answer_format: AnswerFormat = "boxed",
        grader_timeout_s: float = 5.0,
        answer_weight: float = 1.0,
        format_weight: float = 0.0,
    ) -> None:
        if answers not in _KINDS:
            raise ValueError(f"env.init_args.answers must be one of {', '.join(_KINDS)}, got {answers!r}")
        if not grader_timeout_s > 0:
            raise ValueError(f"env.init_args.grader_timeout_s must be above 0, got {grader_timeout_s}")
        if answers == "expression":
            check_installed("env.init_args.answers: expression", {"math_verify": _INSTALL, "antlr4": _INSTALL})
        super().__init__(
            answer_format=answer_format,
            answer_weight=answer_weight,
            format_weight=format_weight,
            grader=MathGrader(answers, timeout_s=grader_timeout_s),
        )
        self._problems = _divided(files, answers, problem_field, answer_field)

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the problem of a seed.

        Raises:
            ValueError: The files have no problem for the split.
        """
        problems = self._problems[split]
        if not problems:
            counts = ", ".join(f"{name} {len(found)}" for name, found in self._problems.items())
            raise ValueError(f"env.init_args.files: there is no problem for split {split!r} ({counts})")
        problem = problems[choose(seed, len(problems), split=split, purpose="mathematics")]
        return Task(
            id=f"{problem.source}-{content_digest(problem.text)}",
            family=problem.source,
            split=split,
            seed=seed,
            data={"question": problem.text, "answer": problem.answer, "place": problem.place},
        )


def _divided(
    files: Mapping[Split, list[str]] | list[str], kind: AnswerKind, problem_field: str | None, answer_field: str | None
) -> dict[Split, list[Problem]]:
    """Return the problems of each split, each once."""
    named: Mapping[Split, list[str]] = files if isinstance(files, Mapping) else {"train": files}
    if not any(named.values()):
        raise ValueError("env.init_args.files: name at least one file")
    divided: dict[Split, list[Problem]] = {split: [] for split in SPLITS}
    seen: dict[str, tuple[Split, Problem]] = {}
    for home, paths in named.items():
        if home not in SPLITS:
            raise ValueError(f"env.init_args.files must be a list or name splits {', '.join(SPLITS)}, got {home!r}")
        for path in paths:
            for problem in read_problems(path, problem_field=problem_field, answer_field=answer_field):
                if kind == "aime" and aime_answer(problem.answer) is None:
                    raise ValueError(
                        f"env.init_args.files: {problem.place}: the answer {problem.answer!r} is no integer from 0 to "
                        f"{AIME_MAX}; env.init_args.answers: expression takes others"
                    )
                split = home if isinstance(files, Mapping) else split_of(problem.text)
                owner, other = seen.setdefault(content_digest(problem.text), (split, problem))
                if other is problem:
                    divided[split].append(problem)
                elif owner != split:
                    raise ValueError(
                        f"env.init_args.files: the problem of {problem.place} ({split}) is in {other.place} ({owner})"
                    )
                elif other.answer != problem.answer:
                    raise ValueError(
                        f"env.init_args.files: {other.place} and {problem.place} give the same problem the answers "
                        f"{other.answer!r} and {problem.answer!r}"
                    )
    return divided


LEVELS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}},
    2: {
        "chain_sum": {"min_terms": 3, "max_terms": 4, "min_digits": 2, "max_digits": 3},
        "products": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    },
    3: {
        "products": {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 3},
        "basic_arithmetic": {"min_terms": 3, "max_terms": 4, "min_digits": 2, "max_digits": 2},
        "gcd": {},
        "lcm": {},
    },
    4: {
        "count_primes": {"min_n": 50, "max_n": 400},
        "number_sequence": {"min_terms": 5, "max_terms": 8},
        "simple_equations": {},
        "lcm": {"min_numbers": 3, "max_numbers": 4},
    },
}
"""Families of reasoning-gym by level. Level 5 puts two problems of levels 3 and 4 together."""
MAX_LEVEL = 5


class AimeLadder(_MathAnswer):
    """Made problems of five levels whose answer is an integer from 0 to 999, as at the AIME.

    A stand-in where no AIME files are at hand, and a ladder where those are too hard: level 1 is a sum of two numbers,
    level 5 two number-theory problems whose results are combined. Where a result is not within 0 to 999, the remainder
    on division by 1000 is asked for, as AIME does. It says nothing about a model's figure on the real contest.

    Args:
        levels: Levels to draw from, evenly.
        answer_format: How the final answer is marked.
        answer_weight: Weight of the reward part `answer`.
        format_weight: Weight of the reward part `format`: 1 if there is one final answer in the right form.

    Raises:
        ValueError: An argument is not accepted.
    """

    preload = ("reasoning_gym",)

    def __init__(
        self,
        levels: tuple[int, ...] = (1, 2, 3, 4, 5),
        *,
        answer_format: AnswerFormat = "boxed",
        answer_weight: float = 1.0,
        format_weight: float = 0.0,
    ) -> None:
        super().__init__(
            answer_format=answer_format,
            answer_weight=answer_weight,
            format_weight=format_weight,
            grader=MathGrader("aime"),
        )
        if not levels or not set(levels) <= set(range(1, MAX_LEVEL + 1)):
            raise ValueError(f"env.init_args.levels must be some of 1 to {MAX_LEVEL}, got {list(levels)}")
        self.levels = tuple(levels)
        self._datasets: dict[tuple[int, str], Any] = {}

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the problem of a seed; its text decides the split."""
        level = self.levels[derive_seed(seed, f"aime ladder/level/{split}") % len(self.levels)]

        def draw(attempt: int) -> dict[str, Any]:
            return self._problem(level, derive_seed(seed, f"aime ladder/{level}/{split}", attempt))

        data = draw_until(
            draw, lambda item: item["question"], split=split, max_draws=_MAX_DRAWS, key="env.init_args.levels"
        )
        return Task(
            id=f"aime_level_{level}-{content_digest(data['question'])}",
            family=f"aime_level_{level}",
            split=split,
            seed=seed,
            data=data,
        )

    def close(self) -> None:
        """Drop the running episode and everything cached."""
        super().close()
        self._datasets.clear()

    def _problem(self, level: int, seed: int) -> dict[str, Any]:
        if level < MAX_LEVEL:
            question, value, expression = self._item(level, seed)
            if 0 <= value < _MODULUS:
                return {"question": question, "answer": str(value), "expression": expression}
            return {
                "question": f"{question}\nGive the remainder when the result is divided by {_MODULUS}.",
                "answer": str(value % _MODULUS),
                "expression": None if expression is None else f"({expression}) % {_MODULUS}",
            }
        rng = random.Random(seed)
        parts = [self._item(rng.choice((3, 4)), derive_seed(seed, "aime ladder/part", part)) for part in range(2)]
        (first, a, _), (second, b, _) = parts
        return {
            "question": (
                f"Let a be the result of the first problem and b that of the second.\n1. {first}\n2. {second}\n"
                f"Give the remainder when ab + a + b is divided by {_MODULUS}."
            ),
            "answer": str((a * b + a + b) % _MODULUS),
            "expression": None,
        }

    def _item(self, level: int, seed: int) -> tuple[str, int, str | None]:
        """Return question, integer result and calculator expression of a draw; draws without an integer are passed."""
        rng = random.Random(seed)
        for _ in range(_MAX_DRAWS):
            family = rng.choice(list(LEVELS[level]))
            if (level, family) not in self._datasets:
                self._datasets[level, family] = make_dataset(family, LEVELS[level][family])
            entry = self._datasets[level, family][rng.randrange(population(family))]
            answer = str(entry["answer"]).strip()
            if answer.removeprefix("-").isdigit():
                return entry["question"].strip(), int(answer), calculator_expression(family, entry)
        raise ValueError(f"env.init_args.levels: level {level} made no integer in {_MAX_DRAWS} draws")
