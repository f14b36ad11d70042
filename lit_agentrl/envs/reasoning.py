"""Verifiable reasoning: one question an episode, from over a hundred procedural families (arXiv:2505.24760)."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from lit_agentrl.agents.tools.calculator import calculator
from lit_agentrl.envs.arithmetic import calculator_turn
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
from lit_agentrl.rewards.answers import (
    AnswerFormat,
    answer_instruction,
    extract_answer,
    write_answer,
)
from lit_agentrl.rewards.grading import GraderError
from lit_agentrl.seeding import derive_seed, uniforms
from lit_agentrl.types import (
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

_SPLITS: tuple[Split, ...] = ("train", "val", "test")
_FORMATS: tuple[AnswerFormat, ...] = ("line", "tag", "boxed")
_MAX_DRAWS = 200
_KEPT_ENTRIES = 256


class ReasoningGym:
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

    traits = EnvTraits(deterministic=True, replay=True)
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
        if answer_format not in _FORMATS:
            raise ValueError(f"env.init_args.answer_format must be one of {', '.join(_FORMATS)}, got {answer_format!r}")
        if not 0.0 < success_threshold <= 1.0:
            raise ValueError(f"env.init_args.success_threshold must be in (0, 1], got {success_threshold}")
        self.families = _as_options(families)
        if families is not None:  # the default mix is known to be good, and checking it takes seconds
            check_families(self.families)
        self.weights = _as_weights(weights, self.families)
        self.answer_format = answer_format
        self.success_threshold = success_threshold
        self.partial_credit = partial_credit
        self.answer_weight = answer_weight
        self.format_weight = format_weight
        self._datasets: dict[str, Any] = {}
        self._entries: dict[tuple[str, int], dict[str, Any]] = {}
        self._task: Task | None = None
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
        third = population(family) // len(_SPLITS)
        first = _SPLITS.index(split) * third

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

    def reset(self, task: Task) -> Observation:
        """Ask the question."""
        self._task = task
        return Observation(messages=(self._question(task),), state_key=task.id)

    def step(self, action: Action) -> StepResult:
        """Grade the final answer of the reply; the episode is over.

        Raises:
            RuntimeError: No episode is running.
            GraderError: The family's grader crashed.
        """
        if self._task is None:
            raise RuntimeError("step was called without a running episode; call reset first")
        task, self._task = self._task, None
        answer = extract_answer(action.message.text, self.answer_format)
        score = self._score(task, answer)
        success = score >= self.success_threshold
        parts = {
            "answer": score if self.partial_credit else float(success),
            "format": float(answer is not None),
        }
        return StepResult(
            observation=None,
            reward=self.answer_weight * parts["answer"] + self.format_weight * parts["format"],
            reward_parts=parts,
            terminated=True,
            success=success,
            info={"answer": answer, "score": score},
        )

    def close(self) -> None:
        """Drop the running episode and everything cached."""
        self._task = None
        self._datasets.clear()
        self._entries.clear()

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec] = ()) -> Demonstration:
        """Show the task solved: with the calculator if it is offered and can solve it, else by stating the answer.

        Raises:
            ValueError: The family checks answers without having one to show.
        """
        messages = [self._question(task)]
        answer = task.data["answer"]
        expression = task.data["expression"]
        if expression is not None and any(tool.name == "calculator" for tool in tools):
            output = _compute(expression)
            # Some families round by rules of their own; a demonstration must not copy a result that fails.
            if output is not None and self._score(task, output) >= self.success_threshold:
                messages += calculator_turn(expression, output)
                answer = output
        if answer is None:
            raise ValueError(f"env.init_args.families: {task.family!r} has no gold answers to demonstrate")
        messages.append(Message.of("assistant", write_answer(answer, self.answer_format)))
        return Demonstration(task=task, messages=tuple(messages), tools=tuple(tools))

    def _question(self, task: Task) -> Message:
        return Message.of("user", f"{task.data['question']}\n{answer_instruction(self.answer_format)}")

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

    def _score(self, task: Task, answer: str | None) -> float:
        """Return the grader's score in [0, 1], or 0 for answers that no grader should see."""
        data = task.data
        if answer is None or not is_gradable(
            answer, family=task.family, question=data["question"], gold=data["answer"]
        ):
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


def _compute(expression: str) -> str | None:
    try:
        return calculator(expression)
    except ValueError:  # options can ask for more terms than the calculator takes
        return None


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
