"""The plain agent: it talks with the environment and calls tools until the episode is over."""

from __future__ import annotations

from collections.abc import Sequence

from lit_agentrl.agents.base import Agent
from lit_agentrl.agents.context import EpisodeContext
from lit_agentrl.types import Action, GenerationRequest, Message, Observation, StepResult, Trajectory, Turn


class ToolAgent(Agent):
    """Answers, or writes tool calls and reads what they return, turn by turn.

    A reply whose calls all go to the agent's own tools costs no environment step; any other reply is the action.
    Unknown tools and wrong arguments come back to the model as text.

    Args:
        tools: Import paths of typed functions, for example `lit_agentrl.agents.tools.calculator.calculator`.
        system_prompt: First message; none by default.
        max_turns: Completions per episode. An episode that needs more is truncated.
    """

    def __init__(
        self, *, tools: list[str] | None = None, system_prompt: str | None = None, max_turns: int = 4
    ) -> None:
        if max_turns < 1:
            raise ValueError(f"agent.init_args.max_turns is {max_turns}: it must be at least 1")
        self.tools = tuple(tools or ())
        self.system_prompt = system_prompt
        self.max_turns = max_turns

    def preface(self) -> Sequence[Message]:
        """Return the system message, if there is one."""
        return (Message.of("system", self.system_prompt),) if self.system_prompt else ()

    async def run(self, trajectory: Trajectory, context: EpisodeContext) -> None:
        """Run one episode; see the base class."""
        observation = await context.env.reset(trajectory.task)
        new_messages: tuple[Message, ...] = (*self.preface(), *observation.messages)
        history: list[Message] = list(new_messages)
        tools = (*context.tools, *observation.tools)
        prompt = context.chat.prompt(history, tools)
        new_ids, parent = prompt.ids, None
        state_key = observation.state_key

        for index in range(self.max_turns):
            if len(prompt.ids) >= context.max_context:
                trajectory.status, trajectory.cause = "truncated", "context is full"
                return
            completion = await context.engine.generate(
                GenerationRequest(
                    identity=(trajectory.group, trajectory.sample, trajectory.attempt, index),
                    prompt_ids=prompt.ids,
                    seed=context.generation_seed(trajectory, index),
                    sampling=context.sampling,
                )
            )
            reply = context.chat.parse(context.chat.decode(completion.token_ids))
            turn = Turn(
                parent=parent,
                prompt_ids=new_ids,
                completion=completion,
                messages=new_messages,
                reply=reply,
                state_key=state_key,
            )
            trajectory.turns.append(turn)
            if completion.stop_reason != "eos":
                trajectory.status, trajectory.cause = "truncated", f"completion stopped by {completion.stop_reason}"
                return

            outcome = await self._act(reply, trajectory, context)
            if isinstance(outcome, StepResult):
                _record(outcome, turn, trajectory)
                if outcome.terminated or outcome.truncated:
                    return
                assert outcome.observation is not None
                new_messages = outcome.observation.messages
                tools = (*context.tools, *outcome.observation.tools)
                state_key = outcome.observation.state_key
            else:
                new_messages = outcome
            extension = context.chat.extend(prompt, completion.token_ids, history, reply, new_messages, tools)
            history += [reply, *new_messages]
            prompt, new_ids = extension.context, extension.new_ids
            parent = index if extension.parent else None
        trajectory.status, trajectory.cause = "truncated", f"no end after {self.max_turns} turns"

    async def _act(
        self, reply: Message, trajectory: Trajectory, context: EpisodeContext
    ) -> StepResult | tuple[Message, ...]:
        """Carry out a reply: the agent's own tools, or a step of the environment."""
        own = {tool.name for tool in context.tools}
        calls = reply.tool_calls
        trajectory.tool_calls += len(calls)
        unreadable = [call for call in calls if call.error is not None]
        trajectory.tool_errors += len(unreadable)
        if not calls or not (unreadable or all(call.name in own for call in calls)):
            trajectory.env_steps += 1
            return await context.env.step(Action(message=reply))
        answers = []
        for call in calls:
            if call.error is not None:
                text = f"Error: {call.error}"
            else:
                output = await context.env.call_tool(call.name, call.arguments)
                text = output.text
                trajectory.tool_errors += output.error
            answers.append(Message.of("tool", text, tool_call_id=call.id))
        return tuple(answers)


def _record(result: StepResult, turn: Turn, trajectory: Trajectory) -> None:
    turn.reward = result.reward
    turn.reward_parts = dict(result.reward_parts)
    trajectory.reward += result.reward
    for name, part in result.reward_parts.items():
        trajectory.reward_parts[name] = trajectory.reward_parts.get(name, 0.0) + part
    if result.terminated or result.truncated:
        trajectory.success = bool(result.success)
        trajectory.status = "completed" if result.terminated else "truncated"
        trajectory.cause = "" if result.terminated else "ended by the environment's limit"
        observation: Observation | None = result.observation
        trajectory.closing_messages = observation.messages if observation else ()
