"""Known solutions played through an environment: what came of it is a demonstration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from lit_agentrl.types import Action, Demonstration, Message, Observation, StepResult, Task, ToolSpec


def play_through(
    task: Task,
    opening: Observation,
    step: Callable[[Action], StepResult],
    replies: Iterable[Message],
    *,
    tools: Sequence[ToolSpec],
    unsolved: str,
) -> Demonstration:
    """Return the episode that a solution makes.

    Args:
        task: What is solved.
        opening: What the environment said at `reset`.
        step: The environment's own `step`.
        replies: The assistant's messages. Each is asked for when the one before has been carried out, so a generator
            can look at the environment; those after the end of the episode are not asked for.
        tools: The agent's tools, to which those of the environment are added.
        unsolved: Text of the error if the task is not solved in the end.

    Raises:
        RuntimeError: The task is not solved.
    """
    messages = list(opening.messages)
    success: bool | None = False
    for reply in replies:
        result = step(Action(message=reply))
        messages.append(reply)
        success = result.success
        if result.terminated or result.truncated:
            break
        assert result.observation is not None
        messages += result.observation.messages
    if not success:
        raise RuntimeError(unsolved)
    return Demonstration(task=task, messages=tuple(messages), tools=(*tools, *opening.tools))


def say(texts: Iterable[str]) -> Iterable[Message]:
    """Return replies of plain text."""
    return (Message.of("assistant", text) for text in texts)
