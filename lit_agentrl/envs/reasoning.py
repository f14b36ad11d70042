"""Verifiable reasoning: one question an episode, from over a hundred procedural families (arXiv:2505.24760)."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from typing import Any

from lit_agentrl.envs.one_answer import OneAnswer
from lit_agentrl.envs.reasoning_families import (
    DEFAULT_FAMILIES,
    MALFORMED_ANSWER_ERRORS,
    SLOW,
    calculator_expression,
    check_families,
    make_dataset,
    population,
)
from lit_agentrl.envs.reasoning_guards import is_gradable
from lit_agentrl.envs.splits import content_digest, draw_until
from lit_agentrl.rewards.answers import AnswerFormat
from lit_agentrl.rewards.grading import GraderError
from lit_agentrl.seeding import derive_seed, uniforms
from lit_agentrl.types import SPLITS, Split, Task

_MAX_DRAWS = 200
_KEPT_ENTRIES = 256


class ReasoningGym(OneAnswer):
    """One question, one final answer, graded by the family's own grader.

    Splits share no question: a keyed hash of its text decides where it belongs. Grading is strict: several different
    answers, an answer that repeats the question, and the right answer among other words get nothing, whatever the
    family's grader would say; see `lit_agentrl.envs.reasoning_guards`.

    Args:
        families: Names, or names with options (`{chain_sum: {min_terms: 2, max_terms: 3}}`). `None`: a mix of sums,
            products and small expressions that a small model solves with a calculator and not without.
        weights: How often families are drawn, by name; those not named have weight 1.
        answer_format: How the final answer is marked. `line` (`Answer: 42`) costs the fewest tokens.
        success_threshold: The grader's score, in (0, 1], from which a task counts as solved.
        partial_credit: Whether the answer's reward is the grader's score rather than 1 for solved and 0 else. Graders
            of many families give partial marks to text around the right answer; those are never paid.
        answer_weight: Weight of the reward part `answer`.
        format_weight: Weight of the reward part `format`: 1 if there is one final answer in the right form. Paid for
            wrong answers as well, hence 0 unless asked for.

    Raises:
        ValueError: An argument is not accepted; the text names it.
    """

    preload = ("reasoning_gym",)  # imported once, before workers are forked: it takes seconds

    def __init__(
        self,
        families: list[str] | dict[str, dict[str, Any]] | None = None,
        *,
        weights: dict[str, float] | None = None,
        answer_format: AnswerFormat = "line",
        success_threshold: float = 1.0,
        partial_credit: bool = False,
        answer_weight: float = 1.0,
        format_weight: float = 0.0,
    ) -> None:
        super().__init__(
            answer_format=answer_format,
            answer_weight=answer_weight,
            format_weight=format_weight,
            success_threshold=success_threshold,
            partial_credit=partial_credit,
        )
        self.families = _as_options(families)
        if families is not None:  # the default mix is known to be good, and checking it takes seconds
            check_families(self.families)
        self.weights = _as_weights(weights, self.families)
        self._datasets: dict[str, Any] = {}
        self._entries: dict[tuple[str, int], dict[str, Any]] = {}
        if slow := sorted(SLOW & set(self.families)):
            warnings.warn(
                f"env.init_args.families: {', '.join(slow)} take 30 ms to 1 s to make one item; expect slow rollouts",
                stacklevel=2,
            )

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the task of a seed: the family is drawn first, then an item whose question belongs to the split.

        Raises:
            ValueError: The drawn family has too few different questions; names it and `env.init_args.families`.
        """
        family = self._draw_family(seed, split)
        options = self.families[family]
        third = population(family) // len(SPLITS)
        first = SPLITS.index(split) * third

        def draw(attempt: int) -> tuple[int, dict[str, Any]]:
            item = first + derive_seed(seed, f"reasoning_gym/{family}/{split}", attempt) % third
            return item, self._entry(family, options, item)

        item, entry = draw_until(
            draw,
            lambda drawn: drawn[1]["question"],
            split=split,
            max_draws=_MAX_DRAWS,
            key=f"env.init_args.families.{family}",
        )
        answer = entry["answer"]
        return Task(
            id=f"{family}-{content_digest(entry['question'])}",
            family=family,
            split=split,
            seed=seed,
            data={
                "question": entry["question"],
                "answer": answer if isinstance(answer, str) else None,
                "expression": calculator_expression(family, entry),
                "item": item,
                "options": options,
            },
        )

    def close(self) -> None:
        """Drop the running episode and everything cached."""
        super().close()
        self._datasets.clear()
        self._entries.clear()

    def _draw_family(self, seed: int, split: Split) -> str:
        names = list(self.families)
        target = float(uniforms(derive_seed(seed, f"reasoning_gym/family/{split}"), 1)[0]) * sum(self.weights.values())
        for name in names:
            target -= self.weights[name]
            if target < 0:
                return name
        return next(name for name in reversed(names) if self.weights[name] > 0)

    def _entry(self, family: str, options: Mapping[str, Any], item: int) -> dict[str, Any]:
        key = f"{family} {json.dumps(options, sort_keys=True)}"
        if (key, item) not in self._entries:
            if key not in self._datasets:
                self._datasets[key] = make_dataset(family, options)
            if len(self._entries) >= _KEPT_ENTRIES:
                self._entries.pop(next(iter(self._entries)))
            self._entries[key, item] = self._datasets[key][item]
        return self._entries[key, item]

    def score(self, answer: str, task: Task) -> float:
        """Return the grader's score in [0, 1], or 0 for answers that no grader should see.

        Raises:
            GraderError: The family's grader crashed.
        """
        data = task.data
        if not is_gradable(answer, family=task.family, question=data["question"], gold=data["answer"]):
            return 0.0
        entry = self._entry(task.family, data["options"], data["item"])
        if entry["question"] != data["question"]:
            raise GraderError(f"{task.family}: item {data['item']} differs from the task; was it made elsewhere?")
        key = f"{task.family} {json.dumps(data['options'], sort_keys=True)}"
        try:
            score = float(self._datasets[key].score_answer(answer, entry))
        except MALFORMED_ANSWER_ERRORS.get(task.family, ()):
            return 0.0
        except Exception as error:
            raise GraderError(f"the grader of {task.family} raised {type(error).__name__}: {error}") from error
        if not math.isfinite(score):
            raise GraderError(f"the grader of {task.family} gave {score}")
        if score < 1.0 and data["answer"] is not None and data["answer"] in answer:
            return 0.0  # the right answer with text around it: partial marks would pay for listing guesses
        return min(max(score, 0.0), 1.0)


def _as_options(families: list[str] | dict[str, dict[str, Any]] | None) -> dict[str, dict[str, Any]]:
    if families is None:
        families = DEFAULT_FAMILIES
    named = dict(families) if isinstance(families, Mapping) else {name: {} for name in families}
    try:
        return {name: json.loads(json.dumps(options)) for name, options in named.items()}  # tasks carry their options
    except TypeError as error:
        raise ValueError(f"env.init_args.families: options must be plain values: {error}") from None


def _as_weights(weights: dict[str, float] | None, families: Mapping[str, Any]) -> dict[str, float]:
    given = weights or {}
    for name, weight in given.items():
        if name not in families:
            raise ValueError(f"env.init_args.weights.{name}: not among the families {', '.join(families)}")
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"env.init_args.weights.{name} must be a number of at least 0, got {weight}")
    complete = {name: float(given.get(name, 1.0)) for name in families}
    if not sum(complete.values()) > 0:
        raise ValueError("env.init_args.weights: at least one family needs a weight above 0")
    return complete
