"""An engine that says what a test tells it to, and an environment and tools in the test's own process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import asynccontextmanager

from lit_agentrl.agents.context import EpisodeContext
from lit_agentrl.policies.chat import ChatFormat
from lit_agentrl.policies.tiny import make_tiny_tokenizer
from lit_agentrl.types import (
    Completion,
    EngineStats,
    Message,
    Observation,
    Sampling,
    StepResult,
    Task,
    ToolOutput,
    ToolSpec,
    Trajectory,
)

CHAT = ChatFormat(make_tiny_tokenizer(), tools="native")
ECHO = ToolSpec(name="echo", description="Echo.", parameters={"type": "object", "properties": {"text": {}}})
LOOK = ToolSpec(name="look", description="Look around.", parameters={"type": "object", "properties": {}})


def call(name: str, **arguments: object) -> str:
    import json

    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class ScriptedEngine:
    """Answers with the given texts, each ended by the end-of-turn id, unless it has to be cut."""

    def __init__(self, *texts: str) -> None:
        self.stats = EngineStats()
        self.requests: list = []
        self._texts = list(texts)

    @asynccontextmanager
    async def outside(self):
        yield

    episode = outside

    async def generate(self, request):
        self.requests.append(request)
        ids = (*CHAT.encode(self._texts.pop(0)), CHAT.end_of_turn_id)
        limit = request.sampling.max_new_tokens
        reason = "eos" if len(ids) <= limit else "length"
        ids = ids[:limit]
        return Completion(token_ids=ids, logprobs=(-1.0,) * len(ids), stop_reason=reason, policy_version=0)


class ScriptedEnv:
    """Gives the results in order, and remembers actions and calls."""

    outputs_cut = 0

    def __init__(self, *results: StepResult, tools: Sequence[ToolSpec] = ()) -> None:
        self.actions: list = []
        self.calls: list = []
        self._results = list(results)
        self._tools = tuple(tools)

    async def reset(self, task):
        return Observation(messages=(Message.of("user", "Go."),), tools=self._tools, state_key="start")

    async def step(self, action):
        self.actions.append(action)
        return self._results.pop(0)

    async def call_tool(self, name, arguments):
        self.calls.append((name, dict(arguments)))
        if name != "echo":
            return ToolOutput(text=f"Error: there is no tool {name!r}; there are: echo", error=True)
        if set(arguments) != {"text"}:
            return ToolOutput(text="Error: echo: argument 'text' is missing", error=True)
        return ToolOutput(text=str(arguments["text"]))


def done(reward: float = 1.0, **fields) -> StepResult:
    return StepResult(observation=None, reward=reward, terminated=True, success=reward > 0, **fields)


def says(*messages: Message, tools: Sequence[ToolSpec] = (), **fields) -> StepResult:
    return StepResult(observation=Observation(messages=messages, tools=tuple(tools)), **fields)


def episode(agent, env, engine, *, tools=(), max_context=512, max_new_tokens=250) -> Trajectory:
    import asyncio

    task = Task(id="t", family="f", split="train", seed=0)
    trajectory = Trajectory(task=task, group=0, sample=0)
    context = EpisodeContext(
        env=env,
        engine=engine,
        chat=CHAT,
        tools=tuple(tools),
        sampling=Sampling(max_new_tokens=max_new_tokens),
        max_context=max_context,
        phase="train",
        run_seed=0,
        rollout=0,
    )
    asyncio.run(agent.run(trajectory, context))
    return trajectory
