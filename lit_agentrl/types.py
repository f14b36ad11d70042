"""The nouns of the framework: one dataclass each, without torch, so that environment workers stay small.

Reading order is the order in which data is made: an environment offers a `Task`; an agent reads `Message`s, an engine
answers with a `Completion`; one exchange is a `Turn`, all turns of an episode a `Trajectory`, and all episodes of one
task a `TrajectoryGroup`. Tensors appear only afterwards, in `lit_agentrl.rollouts.batch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Phase: TypeAlias = Literal["train", "val", "test", "predict"]
Split: TypeAlias = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
StopReason: TypeAlias = Literal["eos", "length", "context"]
TrajectoryStatus: TypeAlias = Literal["completed", "truncated", "failed"]
TrajectoryRole: TypeAlias = Literal["policy", "reflection", "meta", "worker"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPart:
    """A run of text inside a message."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePart:
    """An encoded image inside a message. Text policies refuse it by name."""

    data: bytes
    media_type: str = "image/png"


ContentPart: TypeAlias = TextPart | ImagePart


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSpec:
    """What a model is told about a tool: its name, purpose and JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of type object."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """One call that the model wrote.

    Calls that could not be parsed are kept, with `error` saying why, so that the model can be told.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message of a conversation, made of content parts."""

    role: Role
    content: tuple[ContentPart, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @classmethod
    def of(cls, role: Role, text: str, **fields: Any) -> Message:
        """Make a message of plain text."""
        return cls(role=role, content=(TextPart(text=text),), **fields)

    @property
    def text(self) -> str:
        """The text parts, joined; images are left out."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolOutput:
    """What the model is told after a call."""

    text: str
    error: bool = False
    """The call was wrong or the tool raised; `text` is one line that says why."""
    cut: bool = False
    """The output was too long or not text; `text` ends with a marker that says so."""
    restarted: bool = False
    """What stands behind the tool had died and was started again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One problem that an environment can be reset to. Plain JSON values only: it crosses process borders and logs."""

    id: str
    family: str
    """Name under which metrics and baselines are grouped, for example `chain_sum`."""
    split: Split
    seed: int
    data: Mapping[str, Any] = field(default_factory=dict)
    """Whatever the environment needs at `reset`, the answer included. Never shown to the agent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvTraits:
    """What an environment promises. Declared here, checked by `lit_agentrl.testing.check_environment`."""

    deterministic: bool = False
    """The same task and the same actions give the same observations and rewards, in any process."""
    snapshot: bool = False
    replay: bool = False
    exclusive: bool = False
    """Heavy: one instance per worker process, so that only `num_workers` episodes run at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What the agent sees: new messages, and the tools that the environment itself offers from now on.

    Value functions read the state from it: `array`, or the last text part of the last message.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    state_key: str | None = None
    """Equal keys mean equal states of one task. `None`: states are not comparable."""
    actions: tuple[str, ...] = ()
    """The replies that are valid now, each once; empty: any text."""
    array: tuple[float, ...] | None = None
    """The state as numbers, of one length for the whole environment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """What the agent does: its message, tool calls parsed."""

    message: Message


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """The environment's answer to an action."""

    observation: Observation | None
    """`None` when the episode is over and there is nothing left to say."""
    reward: float = 0.0
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    success: bool | None = None
    """Whether the task was solved. Required on the last step, `None` before."""
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """One environment step as value-based learning replays it."""

    observation: Observation
    action: str
    reward: float
    next_observation: Observation | None
    """What the action led to; `None` only where nothing follows from it, because the episode terminated."""
    terminated: bool
    """Whether the task itself ended. An episode that was cut short goes on in the value function."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Demonstration:
    """A solved episode as messages; only the messages of role assistant are trained."""

    task: Task
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How completions are drawn. Only the temperature acts on the distribution, so log-probs stay exact."""

    temperature: float = 1.0
    """0 means greedy; log-probs are then those of temperature 1."""
    max_new_tokens: int = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """One completion to be drawn."""

    identity: tuple[int, ...]
    """Orders requests in a batch (group, sample, attempt, turn, node), so that arrival order changes nothing."""
    prompt_ids: tuple[int, ...]
    seed: int
    sampling: Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What an engine drew: exactly the sampled ids, the end-of-sequence id included when it was sampled."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of each sampled id under the distribution that it was drawn from (behavior log-probs)."""
    stop_reason: StopReason
    policy_version: int


@dataclass(kw_only=True, slots=True)
class EngineStats:
    """What an engine did since its last `reset`."""

    prompt_tokens: int = 0
    """Prompt tokens asked for."""
    prefilled_tokens: int = 0
    """Prompt tokens really read: equal prompts of a batch are read once."""
    generated_tokens: int = 0
    decode_steps: int = 0
    seconds: float = 0.0


@dataclass(kw_only=True, slots=True)
class Turn:
    """One completion and the ids that are new before it. Memory grows linearly with the episode."""

    parent: int | None
    """Index of the turn that this one continues token for token; `None` starts a new root."""
    prompt_ids: tuple[int, ...]
    """Only the ids that the parent's context does not already hold."""
    completion: Completion
    messages: tuple[Message, ...]
    """The messages that were new before the completion."""
    reply: Message
    reward: float = 0.0
    reward_parts: dict[str, float] = field(default_factory=dict)
    state_key: str | None = None


@dataclass(kw_only=True, slots=True)
class Trajectory:
    """One episode."""

    task: Task
    group: int
    """Index of the task group in the rollout, over all ranks."""
    sample: int
    """Index inside the group."""
    attempt: int = 0
    parent_id: str | None = None
    role: TrajectoryRole = "policy"
    status: TrajectoryStatus = "completed"
    cause: str = ""
    """Why it was truncated or failed; one short phrase."""
    turns: list[Turn] = field(default_factory=list)
    closing_messages: tuple[Message, ...] = ()
    """What the environment said after the last action."""
    closing_ids: tuple[int, ...] = ()
    """If it was truncated between two turns: the ids that the next prompt would have added to the last turn's."""
    reward: float = 0.0
    reward_parts: dict[str, float] = field(default_factory=dict)
    success: bool = False
    env_steps: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    tool_restarts: int = 0
    """Calls whose tool had died, a server for example, and was started again."""
    outputs_cut: int = 0
    """Observations or tool outputs that were longer than allowed and were cut with a marker."""
    wall_s: float = 0.0

    @property
    def id(self) -> str:
        """Names the trajectory inside its rollout: group/sample/attempt."""
        return f"{self.group}/{self.sample}/{self.attempt}"

    @property
    def num_tokens(self) -> int:
        """Sampled tokens, over all turns."""
        return sum(len(turn.completion.token_ids) for turn in self.turns)


@dataclass(kw_only=True, slots=True)
class TrajectoryGroup:
    """All episodes that started from one task; the unit of group baselines."""

    group: int
    task: Task
    trajectories: list[Trajectory] = field(default_factory=list)
