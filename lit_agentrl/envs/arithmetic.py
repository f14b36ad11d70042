"""The smallest useful environment: arithmetic in a dozen characters, without any dependency."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

from lit_agentrl.envs.splits import content_digest, draw_until
from lit_agentrl.rewards.answers import numeric_match
from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import (
    Action,
    Demonstration,
    EnvTraits,
    Message,
    Observation,
    Split,
    StepResult,
    Task,
    ToolCall,
    ToolSpec,
)

_OPERATORS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_MAX_DIGITS = 9
_MAX_DRAWS = 400


class TinyArithmetic:
    """`7*8=` is the question, `56` the answer: an episode that a from-scratch model of 0.5M parameters can learn.

    In mode `call`, the question itself can be looked up: to the reply `?` the environment answers with the result, and
    the next reply has to repeat it. What is learned is then to ask first and to copy, which a tiny policy generalises
    to new questions; three-digit products, it cannot guess. In mode `direct`, the first reply is graded.

    With `lookup_share` below 1 a warm start leaves something to find out. Only that share of the demonstrations looks
    the question up; the others are as right, but answer at once, which teaches a small model nothing but to guess. The
    warm-started policy knows both ways and cannot tell which one pays; reinforcement learning can.

    Args:
        mode: `call` (two turns) or `direct` (one turn).
        digits: Most digits of an operand, 1 to 9.
        operators: Those to draw from, out of `+`, `-`, `*`.
        last_digit: Whether the answer is the last digit of the result only: one token to copy, and a guess is right
            once in ten times.
        lookup_share: In mode `call`, the share of tasks that are demonstrated by looking up, above 0 and at most 1.
    """

    traits = EnvTraits(deterministic=True, replay=True)

    def __init__(
        self,
        *,
        mode: Literal["direct", "call"] = "call",
        digits: int = 1,
        operators: str = "+",
        last_digit: bool = False,
        lookup_share: float = 1.0,
    ) -> None:
        if mode not in ("direct", "call"):
            raise ValueError(f"env.init_args.mode must be 'direct' or 'call', got {mode!r}")
        if not 1 <= digits <= _MAX_DIGITS:
            raise ValueError(f"env.init_args.digits must be 1 to {_MAX_DIGITS}, got {digits}")
        if not operators or set(operators) - set(_OPERATORS):
            raise ValueError(f"env.init_args.operators must be some of {''.join(_OPERATORS)}, got {operators!r}")
        if not 0 < lookup_share <= 1:
            raise ValueError(f"env.init_args.lookup_share must be above 0 and at most 1, got {lookup_share}")
        self.mode = mode
        self.digits = digits
        self.operators = operators
        self.last_digit = last_digit
        self.lookup_share = lookup_share
        self._task: Task | None = None
        self._looked_up = False

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the task of a seed.

        Raises:
            ValueError: The options allow too few questions to fill the split.
        """

        def draw(attempt: int) -> dict[str, Any]:
            rng = random.Random(derive_seed(seed, f"tiny_arithmetic/{split}", attempt))
            left, right = (rng.randrange(10**self.digits) for _ in range(2))
            sign = rng.choice(self.operators)
            answer = str(_OPERATORS[sign](left, right))
            return {"question": f"{left}{sign}{right}=", "answer": answer[-1] if self.last_digit else answer}

        data = draw_until(
            draw, lambda item: item["question"], split=split, max_draws=_MAX_DRAWS, key="env.init_args.digits"
        )
        return Task(
            id=f"tiny_arithmetic-{content_digest(data['question'])}",
            family="tiny_arithmetic",
            split=split,
            seed=seed,
            data=data,
        )

    def reset(self, task: Task) -> Observation:
        """Ask the question."""
        self._task = task
        self._looked_up = False
        return Observation(messages=(Message.of("user", task.data["question"]),), state_key="question")

    def step(self, action: Action) -> StepResult:
        """Look the question up, once, or grade the reply.

        Raises:
            RuntimeError: No episode is running.
        """
        if self._task is None:
            raise RuntimeError("step was called without a running episode; call reset first")
        task, reply = self._task, action.message.text.strip()
        if self.mode == "call" and reply == "?" and not self._looked_up:
            self._looked_up = True
            message = Message.of("user", task.data["answer"])
            return StepResult(observation=Observation(messages=(message,), state_key="looked up"))
        self._task = None
        success = numeric_match(reply, task.data["answer"])
        return StepResult(
            observation=None,
            reward=float(success),
            reward_parts={"answer": float(success)},
            terminated=True,
            success=success,
        )

    def close(self) -> None:
        """End the episode; nothing else is held."""
        self._task = None

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec] = ()) -> Demonstration:
        """Show the task solved: by the agent's calculator if its output is the answer, else by `?`, else directly.

        A task is always shown the same way: its seed decides whether it is looked up.
        """
        question, answer = task.data["question"], task.data["answer"]
        messages = [Message.of("user", question)]
        if not self.last_digit and any(tool.name == "calculator" for tool in tools):
            messages += calculator_turn(question.removesuffix("="), answer)
        elif self.mode == "call" and self._is_shown_looked_up(task):
            messages += [Message.of("assistant", "?"), Message.of("user", answer)]
        messages.append(Message.of("assistant", answer))
        return Demonstration(task=task, messages=tuple(messages), tools=tuple(tools))

    def _is_shown_looked_up(self, task: Task) -> bool:
        drawn = random.Random(derive_seed(task.seed, "tiny_arithmetic/demonstration")).random()
        return drawn < self.lookup_share


def calculator_turn(expression: str, output: str) -> tuple[Message, Message]:
    """Return the assistant's call of the calculator and the tool's message, as an agent's rollout holds them."""
    import json

    arguments = {"expression": expression}
    call = ToolCall(id="call_0", name="calculator", arguments=arguments)
    text = json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False)
    return (
        Message.of("assistant", f"<tool_call>\n{text}\n</tool_call>", tool_calls=(call,)),
        Message.of("tool", output, tool_call_id=call.id),
    )
