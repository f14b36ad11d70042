"""The agent of a value function: it takes one of the environment's actions a turn, without a language model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from lit_agentrl.agents.base import Agent
from lit_agentrl.agents.context import EpisodeContext, record_step
from lit_agentrl.protocols import EnvHandle
from lit_agentrl.types import Action, Completion, Message, Observation, Trajectory, Transition, Turn

Choose: TypeAlias = Callable[[Observation, int], Awaitable[str]]
"""Returns the action for an observation and the number of the turn."""


class ActionAgent(Agent):
    """Replies with the text of an action that is chosen for it. Tools of the environment are not called.

    Turns have no sampled tokens: `completion` is empty and `reply` holds the action.

    Args:
        max_turns: Environment steps per episode. An episode that needs more is truncated.
    """

    def __init__(self, *, max_turns: int = 200) -> None:
        if max_turns < 1:
            raise ValueError(f"agent.init_args.max_turns is {max_turns}: it must be at least 1")
        self.max_turns = max_turns

    def preface(self) -> Sequence[Message]:
        """Return nothing: a value function reads no instructions."""
        return ()

    async def run(self, trajectory: Trajectory, context: EpisodeContext) -> None:
        """Refuse: completions of a language model are no choice among actions.

        Raises:
            ValueError: Always; `play` is what a value function uses.
        """
        raise ValueError(
            "agent.class_path: ActionAgent plays for a value function (data.class_path ReplayDataModule); a language "
            "model needs an agent such as lit_agentrl.agents.tool_agent.ToolAgent"
        )

    async def play(self, trajectory: Trajectory, env: EnvHandle, choose: Choose, *, version: int) -> list[Transition]:
        """Run one episode and return its steps.

        Args:
            trajectory: Turns, reward and status are written into it.
            env: The environment.
            choose: Chooses the actions.
            version: Optimizer steps behind the value function that chooses.

        Raises:
            EpisodeFailedError: The episode cannot go on.
        """
        observation = await env.reset(trajectory.task)
        messages = observation.messages
        transitions: list[Transition] = []
        for index in range(self.max_turns):
            reply = Message.of("assistant", await choose(observation, index))
            turn = Turn(
                parent=None,
                prompt_ids=(),
                completion=Completion(token_ids=(), logprobs=(), stop_reason="eos", policy_version=version),
                messages=messages,
                reply=reply,
                state_key=observation.state_key,
            )
            trajectory.turns.append(turn)
            trajectory.env_steps += 1
            result = await env.step(Action(message=reply))
            record_step(result, turn, trajectory)
            transitions.append(
                Transition(
                    observation=observation,
                    action=reply.text,
                    reward=result.reward,
                    next_observation=result.observation,
                    terminated=result.terminated,
                )
            )
            messages = () if result.observation is None else result.observation.messages
            if result.observation is None or result.terminated or result.truncated:
                trajectory.closing_messages = messages
                return transitions
            observation = result.observation
        trajectory.closing_messages = messages
        trajectory.status, trajectory.cause = "truncated", f"no end after {self.max_turns} turns"
        return transitions
