"""The smallest useful environment: arithmetic in a dozen characters, without any dependency."""

from __future__ import annotations

import operator
import random
import string
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
_SOURCES = {"?": "answer", "!": "rumour"}
_MAX_DIGITS = 9
_MAX_DRAWS = 400


class TinyArithmetic:
    """`7*8=` is the question, `56` the answer: an episode that a from-scratch model of 0.5M parameters can learn.

    In mode `call`, the question can be looked up before it is answered, once, in one of two sources: to the reply `?`
    the environment answers with the result, to `!` with a rumour, which is the result of some other question. The next
    reply is graded. What is learned is to ask the right source and to copy, which a tiny policy generalises to new
    questions; the sums themselves it cannot guess. In mode `direct`, the first reply is graded.

    With `trusted_share` below 1 a warm start leaves something to find out: the other demonstrations ask for the rumour
    and repeat it, mostly wrongly. All of them teach to ask and to copy, none tells which source to trust; reinforcement
    learning does.

    Args:
        mode: `call` (two turns) or `direct` (one turn).
        digits: Most digits of an operand, 1 to 9.
        operators: Those to draw from, out of `+`, `-`, `*`.
        last_digit: Whether the answer is the last digit of the result only: one token to copy, and a guess is right
            once in ten times. Observations then list the valid replies as `actions`.
        trusted_share: In mode `call`, the share of tasks whose demonstration asks `?`, above 0 and at most 1.
    """

    traits = EnvTraits(deterministic=True, replay=True)

    def __init__(
        self,
        *,
        mode: Literal["direct", "call"] = "call",
        digits: int = 1,
        operators: str = "+",
        last_digit: bool = False,
        trusted_share: float = 1.0,
    ) -> None:
        if mode not in ("direct", "call"):
            raise ValueError(f"env.init_args.mode must be 'direct' or 'call', got {mode!r}")
        if not 1 <= digits <= _MAX_DIGITS:
            raise ValueError(f"env.init_args.digits must be 1 to {_MAX_DIGITS}, got {digits}")
        if not operators or set(operators) - set(_OPERATORS):
            raise ValueError(f"env.init_args.operators must be some of {''.join(_OPERATORS)}, got {operators!r}")
        if not 0 < trusted_share <= 1:
            raise ValueError(f"env.init_args.trusted_share must be above 0 and at most 1, got {trusted_share}")
        self.mode = mode
        self.digits = digits
        self.operators = operators
        self.last_digit = last_digit
        self.trusted_share = trusted_share
        self._task: Task | None = None
        self._looked_up = False

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the task of a seed.

        Raises:
            ValueError: The options allow too few questions to fill the split.
        """

        def draw(attempt: int) -> dict[str, Any]:
            rng = random.Random(derive_seed(seed, f"tiny_arithmetic/{split}", attempt))
            question, answer = self._draw(rng)
            return {"question": question, "answer": answer, "rumour": self._draw(rng)[1]}

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

    def _draw(self, rng: random.Random) -> tuple[str, str]:
        left, right = (rng.randrange(10**self.digits) for _ in range(2))
        sign = rng.choice(self.operators)
        answer = str(_OPERATORS[sign](left, right))
        return f"{left}{sign}{right}=", answer[-1] if self.last_digit else answer

    def reset(self, task: Task) -> Observation:
        """Ask the question."""
        self._task = task
        self._looked_up = False
        return self._observation(task.data["question"], state_key="question")

    def step(self, action: Action) -> StepResult:
        """Let a source answer, once, or grade the reply.

        Raises:
            RuntimeError: No episode is running.
        """
        if self._task is None:
            raise RuntimeError("step was called without a running episode; call reset first")
        task, reply = self._task, action.message.text.strip()
        if self.mode == "call" and reply in _SOURCES and not self._looked_up:
            self._looked_up = True
            return StepResult(observation=self._observation(task.data[_SOURCES[reply]], state_key="looked up"))
        self._task = None
        success = numeric_match(reply, task.data["answer"])
        return StepResult(
            observation=None,
            reward=float(success),
            reward_parts={"answer": float(success)},
            terminated=True,
            success=success,
        )

    def _observation(self, text: str, *, state_key: str) -> Observation:
        """Say something; where an answer is one digit, the replies that make sense are few enough to be listed."""
        sources = tuple(_SOURCES) if self.mode == "call" and not self._looked_up else ()
        actions = (*sources, *string.digits) if self.last_digit else ()
        return Observation(messages=(Message.of("user", text),), state_key=state_key, actions=actions)

    def close(self) -> None:
        """End the episode; nothing else is held."""
        self._task = None

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec] = ()) -> Demonstration:
        """Show an episode: with the agent's calculator if its output is the answer, else with a source, else directly.

        The task's seed decides which source is asked; `trusted_share` 1, the default, shows solved episodes only.
        """
        question, reply = task.data["question"], task.data["answer"]
        messages = [Message.of("user", question)]
        if not self.last_digit and any(tool.name == "calculator" for tool in tools):
            messages += calculator_turn(question.removesuffix("="), reply)
        elif self.mode == "call":
            trusts = random.Random(derive_seed(task.seed, "tiny_arithmetic/source")).random() < self.trusted_share
            source = "?" if trusts else "!"
            reply = task.data[_SOURCES[source]]
            messages += [Message.of("assistant", source), Message.of("user", reply)]
        messages.append(Message.of("assistant", reply))
        return Demonstration(task=task, messages=tuple(messages), tools=tuple(tools))


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
