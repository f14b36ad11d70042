"""One question, one final answer, one grade: what environments of a single turn share."""

from __future__ import annotations

from collections.abc import Sequence

from lit_agentrl.agents.tools.calculator import calculator
from lit_agentrl.envs.arithmetic import calculator_turn
from lit_agentrl.rewards.answers import ANSWER_FORMATS, AnswerFormat, answer_instruction, extract_answer, write_answer
from lit_agentrl.types import Action, Demonstration, EnvTraits, Message, Observation, StepResult, Task, ToolSpec


class OneAnswer:
    """Asks `task.data["question"]` and grades the one final answer of the reply.

    Who derives from it says what an answer is worth in `score`. `task.data` holds `question`, `answer` (the gold one,
    `None` if the task has none to show) and perhaps `expression` (what a calculator makes the answer of).

    Args:
        answer_format: How the final answer is marked.
        answer_weight: Weight of the reward part `answer`.
        format_weight: Weight of the reward part `format`: 1 if there is one final answer in the right form.
        success_threshold: The score, in (0, 1], from which a task counts as solved.
        partial_credit: Whether the answer's reward is the score rather than 1 for solved and 0 else.

    Raises:
        ValueError: An argument is not accepted.
    """

    traits = EnvTraits(deterministic=True, replay=True)

    def __init__(
        self,
        *,
        answer_format: AnswerFormat,
        answer_weight: float,
        format_weight: float,
        success_threshold: float = 1.0,
        partial_credit: bool = False,
    ) -> None:
        if answer_format not in ANSWER_FORMATS:
            accepted = ", ".join(ANSWER_FORMATS)
            raise ValueError(f"env.init_args.answer_format must be one of {accepted}, got {answer_format!r}")
        if not 0.0 < success_threshold <= 1.0:
            raise ValueError(f"env.init_args.success_threshold must be in (0, 1], got {success_threshold}")
        self.answer_format = answer_format
        self.answer_weight = answer_weight
        self.format_weight = format_weight
        self.success_threshold = success_threshold
        self.partial_credit = partial_credit
        self._task: Task | None = None

    def score(self, answer: str, task: Task) -> float:
        """Return what an answer is worth, in [0, 1].

        Raises:
            GraderError: The grader looped, crashed, or cannot read the gold answer.
        """
        raise NotImplementedError

    def reset(self, task: Task) -> Observation:
        """Ask the question."""
        self._task = task
        return Observation(messages=(self._question(task),), state_key=task.id)

    def step(self, action: Action) -> StepResult:
        """Grade the final answer of the reply; the episode is over.

        Raises:
            RuntimeError: No episode is running.
            GraderError: The grader looped, crashed, or cannot read the gold answer.
        """
        if self._task is None:
            raise RuntimeError("step was called without a running episode; call reset first")
        task, self._task = self._task, None
        answer = extract_answer(action.message.text, self.answer_format)
        score = 0.0 if answer is None else self.score(answer, task)
        success = score >= self.success_threshold
        parts = {"answer": score if self.partial_credit else float(success), "format": float(answer is not None)}
        return StepResult(
            observation=None,
            reward=self.answer_weight * parts["answer"] + self.format_weight * parts["format"],
            reward_parts=parts,
            terminated=True,
            success=success,
            info={"answer": answer, "score": score},
        )

    def close(self) -> None:
        """Drop the running episode."""
        self._task = None

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec] = ()) -> Demonstration:
        """Show the task solved: with the calculator if it is offered and can solve it, else by stating the answer.

        Raises:
            ValueError: The family checks answers without having one to show.
        """
        messages = [self._question(task)]
        answer, expression = task.data["answer"], task.data.get("expression")
        if expression is not None and any(tool.name == "calculator" for tool in tools):
            output = _computed(expression)
            # Some families round by rules of their own; a demonstration must not copy a result that fails.
            if output is not None and self.score(output, task) >= self.success_threshold:
                messages += calculator_turn(expression, output)
                answer = output
        if answer is None:
            raise ValueError(f"env.init_args.families: {task.family!r} has no gold answers to demonstrate")
        messages.append(Message.of("assistant", write_answer(answer, self.answer_format)))
        return Demonstration(task=task, messages=tuple(messages), tools=tuple(tools))

    def _question(self, task: Task) -> Message:
        return Message.of("user", f"{task.data['question']}\n{answer_instruction(self.answer_format)}")


def _computed(expression: str) -> str | None:
    try:
        return calculator(expression)
    except ValueError:  # longer than the calculator takes
        return None
