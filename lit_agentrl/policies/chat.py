"""Conversations to token ids and back: the one place that knows a chat template.

A rollout never re-tokenises what was sampled. `ChatFormat.prompt` renders the first context, `ChatFormat.extend` says
which ids follow a completion, and `ChatFormat.parse` reads a completion as a message. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lit_agentrl.policies.tool_text import (
    CALL_EXAMPLE,
    assistant_text,
    describe_tools,
    parse_tool_calls,
    wrap_tool_result,
)
from lit_agentrl.types import ImagePart, Message, ToolSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ToolMode: TypeAlias = Literal["auto", "native", "fallback"]

_END_OF_TURN_TOKENS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")
# Alphanumeric, so that no template trims or escapes it, and unlikely enough never to occur in a conversation.
_MARKER = "zqREPLYxMARKERqz"
_PROBE_TOOL = ToolSpec(
    name="zq_probe_tool",
    description="Probe.",
    parameters={"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A context: its rendering, and the ids that the model really reads (completions as sampled)."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Extension:
    """What the model reads after a completion."""

    new_ids: tuple[int, ...]
    """With `parent`, only the ids after the completion; without, a whole fresh context."""
    text: str
    """The rendering of the whole new context."""
    parent: bool
    """Whether the new context continues the old context and its completion token for token."""
    context: Prompt
    """The whole new context, to be handed to the next `extend`."""


class ChatFormat:
    """A tokenizer's chat template made safe for multi-turn rollouts. Immutable; holds no conversation.

    Args:
        tokenizer: A transformers tokenizer with a chat template.
        tools: `native` has the template describe tools and render tool results; `fallback` describes them in the
            system message and gives results as user messages; `auto` takes `native` where the template shows tools,
            results and the `<tool_call>{...}` form that `parse` reads, `fallback` otherwise.

    Raises:
        ValueError: The tokenizer has no chat template, or `native` is asked of a template that cannot do it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, tools: ToolMode = "auto") -> None:
        if tools not in ("auto", "native", "fallback"):
            raise ValueError(f"policy.init_args.tools must be auto, native or fallback, not {tools!r}")
        if not tokenizer.chat_template:
            raise ValueError(
                f"policy.init_args.model: the tokenizer of {tokenizer.name_or_path!r} has no chat template; "
                "choose an instruction-tuned model"
            )
        self._tokenizer = tokenizer
        self._system_role = self._renders([Message.of("system", _MARKER), Message.of("user", "x")], needles=[_MARKER])
        self._native = tools != "fallback" and self._has_native_tools(announced=tools == "auto")
        if tools == "native" and not self._native:
            raise ValueError(
                f"policy.init_args.tools: the chat template of {tokenizer.name_or_path!r} does not render tools and "
                "tool results; use auto or fallback"
            )
        self._eos_ids = self._find_eos_ids()
        self._end_of_turn_id = self._find_end_of_turn_id()

    @property
    def native_tools(self) -> bool:
        """Whether the template itself renders tools and their results."""
        return self._native

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a completion."""
        return self._eos_ids

    @property
    def end_of_turn_id(self) -> int:
        """The id that the template writes after an assistant's message."""
        return self._end_of_turn_id

    @property
    def pad_id(self) -> int:
        """Id for padding; never told apart from text by its value, only by the attention mask."""
        pad = self._tokenizer.pad_token_id
        return self._end_of_turn_id if pad is None else int(pad)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text, with nothing added around it."""
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Return a completion's text: without the id that ended it, other special tokens kept."""
        kept = ids[:-1] if ids and ids[-1] in self._eos_ids else ids
        text = self._tokenizer.decode(list(kept), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Prompt:
        """Return the context in which the assistant's next message is sampled.

        Raises:
            ValueError: A message holds an image, or the template refuses the order of roles.
        """
        text = self._render(messages, tools)
        return Prompt(text=text, ids=self.encode(text))

    def extend(
        self,
        context: Prompt,
        completion_ids: tuple[int, ...],
        history: Sequence[Message],
        reply: Message,
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
    ) -> Extension:
        """Return what the model reads after it sampled a completion in a context.

        The template is rendered twice, once with the reply and once with a marker in its place. What stands after the
        marker is exactly what the template puts between the reply and the next generation, whatever the reply holds.

        Args:
            context: What the model had read: `prompt(history, tools)`, or the `context` of the previous extension.
            completion_ids: What it sampled, the end-of-turn id included if it was sampled.
            history: The messages of the context.
            reply: The message parsed from the completion.
            new_messages: What came after it (tool results, user messages).
            tools: The tools, as they are from now on.

        Raises:
            ValueError: A message holds an image, or the template refuses the order of roles.
        """
        text = self._render([*history, reply, *new_messages], tools)
        marked = self._render([*history, Message.of("assistant", _MARKER), *new_messages], tools)
        before, found, after = marked.partition(_MARKER)
        sampled = self.decode(completion_ids)
        # Templates may trim the reply; the model has read it untrimmed, which is what the ids say.
        continues = (
            bool(found)
            and before == context.text
            and len(text) >= len(before) + len(after)
            and text.startswith(before)
            and text.endswith(after)
            and text[len(before) : len(text) - len(after)].strip() == sampled.strip()
        )
        if not continues:
            ids = self.encode(text)
            return Extension(new_ids=ids, text=text, parent=False, context=Prompt(text=text, ids=ids))
        new_ids = self._without_sampled_end(self.encode(after), completion_ids)
        whole = Prompt(text=text, ids=context.ids + completion_ids + new_ids)
        return Extension(new_ids=new_ids, text=text, parent=True, context=whole)

    def parse(self, text: str, *, call_prefix: str = "call") -> Message:
        """Return a completion's text as an assistant message, with its tool calls read.

        Calls are Hermes blocks, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. Those that cannot be read
        are kept with `error` set. The message's text is the whole text, blocks included.

        Args:
            text: As `decode` returns it.
            call_prefix: Ids are `<prefix>_0`, `<prefix>_1`, in order.
        """
        return Message.of("assistant", text, tool_calls=parse_tool_calls(text, call_prefix=call_prefix))

    def demonstration(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return a conversation as ids and a mask that is 1 on what the assistant has to produce.

        Built as a rollout would be, so that ids and mask equal those of an episode that sampled these very messages:
        the mask covers the assistant's text and its end-of-turn id. Messages after the last reply are left out.

        Raises:
            ValueError: There is no assistant message, or the template does not keep earlier replies as they were
                (use `demonstration_rows`).
        """
        rows = self.demonstration_rows(messages, tools)
        if len(rows) > 1:
            raise ValueError(
                "the chat template changes earlier replies (it strips their thinking), so this demonstration does not "
                "fit in one row; use demonstration_rows"
            )
        return rows[0]

    def demonstration_rows(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, given: int = 0
    ) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return a conversation as rows of ids and mask; a new row wherever the template changes earlier replies.

        Args:
            messages: The conversation.
            tools: What the template tells of tools.
            given: Messages at the beginning that are context, whoever wrote them.

        Raises:
            ValueError: There is no assistant message, or it stands first.
        """
        turns = [index for index, message in enumerate(messages) if message.role == "assistant" and index >= given]
        if not turns or turns[0] == 0:
            raise ValueError("a demonstration needs a message of role assistant after at least one other message")
        context = self.prompt(messages[: turns[0]], tools)
        mask = [0] * len(context.ids)
        rows: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for turn, following in zip(turns, [*turns[1:], None], strict=True):
            reply = messages[turn]
            completion = (*self.encode(assistant_text(reply)), self._end_of_turn_id)
            row = (context.ids + completion, tuple(mask + [1] * len(completion)))
            if following is None:
                return [*rows, row]
            extension = self.extend(context, completion, messages[:turn], reply, messages[turn + 1 : following], tools)
            if not extension.parent:
                rows.append(row)
            kept = list(row[1]) if extension.parent else []
            mask = kept + [0] * len(extension.new_ids)
            context = extension.context
        return rows

    def _without_sampled_end(self, ids: tuple[int, ...], completion_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Drop the end-of-turn id from the template's ids if the model has sampled it already."""
        if not completion_ids or completion_ids[-1] not in self._eos_ids or completion_ids[-1] not in ids:
            return ids
        end = ids.index(completion_ids[-1])
        # Some templates write a space before the end token; anything more is text that must not be lost.
        return ids[end + 1 :] if not self.decode(ids[:end]).strip() else ids

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation: bool = True) -> str:
        try:
            return self._apply(self._as_dicts(messages, tools), tools if self._native else (), generation=generation)
        except _template_errors() as error:
            roles = ", ".join(message.role for message in messages)
            raise ValueError(
                f"the chat template of {self._tokenizer.name_or_path!r} refuses messages of roles {roles}: {error}"
            ) from error

    def _apply(self, dicts: list[dict[str, Any]], tools: Sequence[ToolSpec], *, generation: bool) -> str:
        text = self._tokenizer.apply_chat_template(
            dicts,
            tools=[_tool_schema(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=generation,
        )
        return str(text)

    def _as_dicts(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
        """Return the messages as the template gets them, with roles that it does not know rewritten."""
        plain = [(message.role, _text_of(message), message.tool_call_id) for message in messages]
        if not self._native:
            plain = [
                ("user", wrap_tool_result(text), None) if role == "tool" else (role, text, None)
                for role, text, _ in plain
            ]
            if tools:
                system = [text for role, text, _ in plain[:1] if role == "system"]
                described = "\n".join([*system, describe_tools(tools)])
                plain = [("system", described, None), *plain[len(system) :]]
        if not self._system_role and plain and plain[0][0] == "system":
            plain = [("user", plain[0][1], None), *plain[1:]]
        dicts: list[dict[str, Any]] = []
        for role, text, call_id in plain:
            # Templates without tool support often want user and assistant to alternate; one header is shorter, too.
            if not self._native and role == "user" and dicts and dicts[-1]["role"] == "user":
                dicts[-1]["content"] += "\n" + text
            else:
                dicts.append({"role": role, "content": text} | ({"tool_call_id": call_id} if call_id else {}))
        return dicts

    def _renders(self, messages: Sequence[Message], *, needles: Sequence[str]) -> bool:
        dicts = [{"role": message.role, "content": message.text} for message in messages]
        try:
            text = self._apply(dicts, (), generation=True)
        except _template_errors():
            return False
        return all(needle in text for needle in needles)

    def _has_native_tools(self, *, announced: bool) -> bool:
        """Say whether a probe's tool and result are rendered, and, with `announced`, the call form `parse` reads."""
        user = {"role": "user", "content": "x"}
        call = {"role": "assistant", "content": CALL_EXAMPLE}
        result = {"role": "tool", "content": _MARKER, "tool_call_id": "call_0"}
        try:
            opening = self._apply([user], [_PROBE_TOOL], generation=True)
            text = self._apply([user, call, result], [_PROBE_TOOL], generation=True)
        except _template_errors():
            return False
        shown = _PROBE_TOOL.name in opening and _MARKER in text and CALL_EXAMPLE in text
        return shown and (not announced or "<tool_call>{" in "".join(opening.split()))

    def _find_eos_ids(self) -> frozenset[int]:
        tokenizer = self._tokenizer
        added = tokenizer.get_added_vocab()
        ids = {int(added[token]) for token in _END_OF_TURN_TOKENS if token in added}
        if tokenizer.eos_token_id is not None:
            ids.add(int(tokenizer.eos_token_id))
        if not ids:
            raise ValueError(
                f"policy.init_args.model: the tokenizer of {tokenizer.name_or_path!r} has no end-of-sequence token"
            )
        return frozenset(ids)

    def _find_end_of_turn_id(self) -> int:
        """Return the first end that the template writes after a reply, or the tokenizer's if it writes none."""
        messages = [Message.of("user", "x"), Message.of("assistant", _MARKER)]
        after = self._render(messages, (), generation=False).partition(_MARKER)[2]
        written = [index for index in self.encode(after) if index in self._eos_ids]
        own = self._tokenizer.eos_token_id
        return written[0] if written else min(self._eos_ids) if own is None else int(own)


def _text_of(message: Message) -> str:
    """Return a message's text; refuse images by name."""
    for part in message.content:
        if isinstance(part, ImagePart):
            raise ValueError(
                f"a message of role {message.role} holds an image ({part.media_type}), which text policies cannot read"
            )
    return assistant_text(message) if message.role == "assistant" else message.text


def _tool_schema(tool: ToolSpec) -> dict[str, Any]:
    parameters: Mapping[str, Any] = tool.parameters
    function = {"name": tool.name, "description": tool.description, "parameters": dict(parameters)}
    return {"type": "function", "function": function}


def _template_errors() -> tuple[type[Exception], ...]:
    """Return what a template raises when it refuses a conversation, `raise_exception` included."""
    from jinja2.exceptions import TemplateError

    return (TemplateError, TypeError, KeyError)
