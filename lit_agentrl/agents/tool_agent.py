"""The plain agent: it talks with the environment and calls tools until the episode is over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lit_agentrl.agents.base import Agent
from lit_agentrl.agents.context import EpisodeContext, record_step
from lit_agentrl.types import Action, Message, StepResult, ToolCall, ToolSpec, Trajectory, Turn


class ToolAgent(Agent):
    """Answers, or writes tool calls and reads what they return, turn by turn.

    Calls of the agent's own tools cost no environment step. Calls of tools that the environment offers are the action,
    and so is a reply without calls, or any reply where there are no tools. A reply may hold both: its own tools run
    first, and the environment sees an action with its own calls only. Unknown tools, wrong arguments and calls that
    cannot be read come back to the model as text. Results keep the order of the calls.

    Args:
        tools: Import paths of typed functions, for example `lit_agentrl.agents.tools.calculator.calculator`;
            or `class_path` and `init_args` of a function that makes one, `lit_agentrl.agents.tools.python.make_python`,
            or several, `lit_agentrl.agents.tools.mcp_tools.make_mcp_tools`.
        system_prompt: First message; none by default.
        max_turns: Completions per episode. An episode that needs more is truncated.
    """

    def __init__(
        self, *, tools: list[str | dict[str, Any]] | None = None, system_prompt: str | None = None, max_turns: int = 4
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
        prompt = context.chat.prompt(history, (*context.tools, *observation.tools))
        new_ids, parent = prompt.ids, None

        for index in range(self.max_turns):
            completion = await context.generate(trajectory, prompt.ids, turn=index)
            if completion is None:
                trajectory.closing_messages = new_messages
                trajectory.status, trajectory.cause = "truncated", "context is full"
                return
            reply = context.chat.parse(context.chat.decode(completion.token_ids))
            turn = Turn(
                parent=parent,
                prompt_ids=new_ids,
                completion=completion,
                messages=new_messages,
                reply=reply,
                state_key=observation.state_key,
            )
            trajectory.turns.append(turn)
            if completion.stop_reason != "eos":
                trajectory.status, trajectory.cause = "truncated", f"completion stopped by {completion.stop_reason}"
                return

            answers, action = await self._run_own_tools(reply, trajectory, context, observation.tools)
            result = None
            if action is not None:
                trajectory.env_steps += 1
                result = await context.env.step(action)
                record_step(result, turn, trajectory)
                if result.observation is not None:
                    observation = result.observation
            new_messages = _in_call_order(reply, answers, result)
            ended = result is not None and (result.terminated or result.truncated)
            if ended or index + 1 == self.max_turns:
                trajectory.closing_messages = new_messages
                if not ended:
                    trajectory.status, trajectory.cause = "truncated", f"no end after {self.max_turns} turns"
            if ended and (trajectory.status != "truncated" or not new_messages):
                return
            tools = (*context.tools, *observation.tools)
            extension = context.chat.extend(prompt, completion.token_ids, history, reply, new_messages, tools)
            if ended or index + 1 == self.max_turns:
                if extension.parent and len(extension.context.ids) <= context.max_context:
                    trajectory.closing_ids = extension.new_ids
                return
            history += [reply, *new_messages]
            prompt, new_ids = extension.context, extension.new_ids
            parent = index if extension.parent else None

    async def _run_own_tools(
        self, reply: Message, trajectory: Trajectory, context: EpisodeContext, env_tools: Sequence[ToolSpec]
    ) -> tuple[dict[str, Message], Action | None]:
        """Answer the calls that are not the environment's.

        Returns:
            The answers by call id, and the action that is left for the environment, if any.
        """
        if not (context.tools or env_tools):
            return {}, Action(message=reply)
        own = {tool.name for tool in context.tools}
        for_env = {tool.name for tool in env_tools} - own
        trajectory.tool_calls += len(reply.tool_calls)
        answers: dict[str, Message] = {}
        env_calls: list[ToolCall] = []
        for call in reply.tool_calls:
            if call.error is None and call.name in for_env:
                env_calls.append(call)
                continue
            if call.error is not None:
                text, is_error = f"Error: {call.error}", True
            elif call.name in own or not for_env:
                output = await context.env.call_tool(call.name, call.arguments)
                text, is_error = output.text, output.error
                trajectory.tool_restarts += output.restarted
            else:
                known = ", ".join(sorted(own | for_env))
                text, is_error = f"Error: there is no tool {call.name!r}; there are: {known}", True
            trajectory.tool_errors += is_error
            answers[call.id] = Message.of("tool", text, tool_call_id=call.id)
        if not answers:
            return {}, Action(message=reply)
        if not env_calls:
            return answers, None
        return answers, Action(message=dataclasses.replace(reply, tool_calls=tuple(env_calls)))


def _in_call_order(reply: Message, answers: Mapping[str, Message], result: StepResult | None) -> tuple[Message, ...]:
    """Return what the model reads next: results in the order of the calls, then what else the environment said."""
    said = list(result.observation.messages) if result is not None and result.observation is not None else []
    if not answers:
        return tuple(said)
    ordered: list[Message] = []
    for call in reply.tool_calls:
        if call.id in answers:
            ordered.append(answers[call.id])
        else:
            ordered += [message for message in said if message.tool_call_id == call.id]
    return (*ordered, *(message for message in said if message not in ordered))
