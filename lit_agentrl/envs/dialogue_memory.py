"""Memory over sessions of a dialogue: what was said, changed and taken back is asked for after the last session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from lit_agentrl.agents.tools.base import ToolBox
from lit_agentrl.envs.arguments import check_at_least, check_some
from lit_agentrl.envs.calls import call_message
from lit_agentrl.envs.dialogue_facts import MAX_FACTS, QUESTION_TYPES, UNKNOWN, Controls, QuestionType, make_dialogue
from lit_agentrl.envs.splits import content_digest, draw_until
from lit_agentrl.envs.states import History
from lit_agentrl.envs.words import content_words, words
from lit_agentrl.rewards.answers import answer_instruction, exact_match, extract_answer, write_answer
from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import Action, Demonstration, EnvTraits, Message, Observation, Split, StepResult, Task, ToolSpec

Delivery: TypeAlias = Literal["prompt", "turns"]
_DELIVERIES = ("prompt", "turns")
_RULE = f'If it was never said, or was taken back, the answer is "{UNKNOWN}".'
_MAX_DRAWS = 200
_MAX_HITS = 8
_MAX_TOOL_CHARS = 20_000


class SessionsEnvironment:
    """Sessions and one question; what made and read dialogues share.

    With delivery `prompt` the last `window` sessions stand before the question, and earlier ones are looked up with the
    functions `search_sessions` and `read_session`. With `turns` every session is a turn of its own that the agent
    answers with anything, nothing can be looked up, and the agent's own memory has to do.
    """

    traits = EnvTraits(deterministic=True, replay=True)
    success_score = 1.0
    """Score from which an answer counts as right."""
    pays_score = False
    """Whether the reward is the score rather than 1 for right and 0 else."""

    def __init__(self, *, window: int, delivery: Delivery, max_lookups: int) -> None:
        if delivery not in _DELIVERIES:
            raise ValueError(f"env.init_args.delivery must be one of {', '.join(_DELIVERIES)}, got {delivery!r}")
        check_at_least(0, window=window)
        check_at_least(1, max_lookups=max_lookups)
        self.window = window
        self.delivery = delivery
        self.max_lookups = max_lookups
        self._box = ToolBox([self.search_sessions, self.read_session])
        self._task: Task | None = None
        self._sessions: list[dict[str, Any]] = []
        self._told = 0
        self._lookups = 0
        self._history = History()

    def reset(self, task: Task) -> Observation:
        """Tell the last sessions and ask, or tell the first session."""
        self._task = task
        self._sessions = self._sessions_of(task)
        self._lookups = 0
        self._history = History(task.id)
        if self.delivery == "turns":
            self._told = 0
            return self._next_session()
        hidden = max(len(self._sessions) - self.window, 0)
        parts = [_written(session) for session in self._sessions[hidden:]]
        if hidden:
            parts.insert(0, f"There were {len(self._sessions)} sessions. Sessions 1 to {hidden} can be looked up.")
        text = "\n\n".join([*parts, self._question(task)])
        return Observation(messages=(Message.of("user", text),), tools=self._tools(), state_key=self._history.key)

    def step(self, action: Action) -> StepResult:
        """Look something up, tell the next session, or grade the answer.

        Raises:
            RuntimeError: No episode is running.
        """
        task = self._task
        if task is None:
            raise RuntimeError("step was called without a running episode; call reset first")
        if self.delivery == "turns" and self._told <= len(self._sessions):
            return StepResult(observation=self._next_session())
        calls = action.message.tool_calls
        self._lookups += bool(calls)
        if calls and self._tools() and self._lookups <= self.max_lookups:
            outputs = [(call, self._look_up(call.name, call.arguments, call.error)) for call in calls]
            key = self._history.add_calls(outputs)
            messages = tuple(Message.of("tool", text, tool_call_id=call.id) for call, text in outputs)
            return StepResult(observation=Observation(messages=messages, tools=self._tools(), state_key=key))
        self._task = None
        answer = None if calls else extract_answer(action.message.text, "line")
        score = 0.0 if answer is None else self.score(answer, task)
        success = score >= self.success_score
        return StepResult(
            observation=None,
            reward=score if self.pays_score else float(success),
            reward_parts=self._parts(task, score, success=success, answered=answer is not None),
            terminated=True,
            success=success,
            info={"answer": answer, "score": score},
        )

    def score(self, answer: str, task: Task) -> float:
        """Return how right an answer is, from 0 to 1."""
        return float(exact_match(answer.rstrip("."), task.data["answer"]))

    def close(self) -> None:
        """Drop the running episode."""
        self._task = None
        self._sessions = []

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec] = ()) -> Demonstration:
        """Show the answer, after a search where sessions are out of the window."""
        running = self._task, self._sessions, self._told, self._lookups, self._history
        try:
            opening = self.reset(task)
            shown = list(opening.messages)
            for reply in self._shown_steps(task, can_look_up=bool(opening.tools)):
                result = self.step(Action(message=reply))
                assert result.observation is not None
                shown += [reply, *result.observation.messages]
        finally:
            self._task, self._sessions, self._told, self._lookups, self._history = running
        shown.append(Message.of("assistant", write_answer(task.data["answer"], "line")))
        return Demonstration(task=task, messages=tuple(shown), tools=(*tools, *opening.tools))

    def _shown_steps(self, task: Task, *, can_look_up: bool) -> list[Message]:
        """Return a demonstration's replies before the answer."""
        if self.delivery == "turns":
            return [Message.of("assistant", "Noted.")] * len(self._sessions_of(task))
        return [call_message([("search_sessions", {"query": task.data["query"]})], number=0)] if can_look_up else []

    def search_sessions(self, query: str) -> str:
        """Find lines of all sessions that share words with a query.

        Args:
            query: A few words.
        """
        wanted = content_words(query)
        hits = []
        for number, session in enumerate(self._sessions):
            for place, line in enumerate(session["lines"]):
                shared = len(wanted & content_words(line))
                if shared:
                    hits.append((-shared, -number, place, f"{session['title']}: {line}"))
        best = sorted(hits)[:_MAX_HITS]
        return "\n".join(text for *_, text in sorted(best, key=lambda hit: (-hit[1], hit[2]))) or "Nothing was found."

    def read_session(self, number: int) -> str:
        """Read a whole session.

        Args:
            number: Its number, from 1.
        """
        if not 1 <= number <= len(self._sessions):
            raise ValueError(f"there is no session {number}; there are 1 to {len(self._sessions)}")
        return _written(self._sessions[number - 1])

    def _sessions_of(self, task: Task) -> list[dict[str, Any]]:
        sessions: list[dict[str, Any]] = task.data["sessions"]
        return sessions

    def _tools(self) -> tuple[ToolSpec, ...]:
        return self._box.specs if self.delivery == "prompt" and len(self._sessions) > self.window else ()

    def _look_up(self, name: str, arguments: Any, error: str | None) -> str:
        return (
            f"Error: {error}" if error is not None else self._box.call(name, arguments, max_chars=_MAX_TOOL_CHARS).text
        )

    def _next_session(self) -> Observation:
        assert self._task is not None
        told = self._told
        self._told += 1
        last = told == len(self._sessions)
        text = self._question(self._task) if last else _written(self._sessions[told])
        return Observation(messages=(Message.of("user", text),), state_key=f"{self._task.id} {told}")

    def _question(self, task: Task) -> str:
        return f"{task.data['question']} {_RULE}\n{answer_instruction('line')}"

    def _parts(self, task: Task, score: float, *, success: bool, answered: bool) -> dict[str, float]:
        """Return success by type and by delay: the mean of a part is over the episodes that have it."""
        right = float(success)
        parts = {"answer": score, "answered": float(answered), f"type_{task.data['type']}": right}
        if task.data["delay"] is not None:
            parts[f"delay_{delay_bucket(task.data['delay'])}"] = right
        return parts


class DialogueMemory(SessionsEnvironment):
    """Made dialogues: facts are stated, changed and taken back over sessions, and one is asked for at the end.

    Four types of question: `recall` (said once), `update` (changed since: the newest value counts), `temporal` (the
    value that held after an earlier session) and `abstain` (never said, or taken back: the answer is "unknown").
    Answers are compared as text, whole. Saying "unknown" always is right for the share of `abstain`. Success by type
    and by delay, in sessions since the answer was settled, is logged through the reward parts.

    Args:
        sessions: Sessions before the question, at least 2.
        facts: Other facts in the dialogue, half of them about the same person or attribute.
        distractors: Lines of small talk a session.
        update_rate: Chance that one of the other facts changes in a session.
        withdraw_rate: Chance that it is taken back.
        window: Sessions that stand in the prompt; earlier ones have to be looked up.
        delivery: `prompt`, or `turns`: every session is a turn, and nothing can be looked up.
        types: Types of question, drawn evenly.
        max_lookups: Replies with calls; one more ends the episode as wrong.

    Raises:
        ValueError: An argument is not accepted.
    """

    def __init__(
        self,
        *,
        sessions: int = 6,
        facts: int = 6,
        distractors: int = 2,
        update_rate: float = 0.2,
        withdraw_rate: float = 0.05,
        window: int = 2,
        delivery: Delivery = "prompt",
        types: tuple[QuestionType, ...] = QUESTION_TYPES,
        max_lookups: int = 4,
    ) -> None:
        super().__init__(window=window, delivery=delivery, max_lookups=max_lookups)
        check_at_least(2, sessions=sessions)
        check_at_least(0, distractors=distractors)
        if not 0 <= facts <= MAX_FACTS:
            raise ValueError(f"env.init_args.facts must be 0 to {MAX_FACTS}, got {facts}")
        for name, rate in (("update_rate", update_rate), ("withdraw_rate", withdraw_rate)):
            if not 0 <= rate <= 1:
                raise ValueError(f"env.init_args.{name} must be from 0 to 1, got {rate}")
        if update_rate + withdraw_rate > 1:
            raise ValueError("env.init_args.update_rate and withdraw_rate must not exceed 1 together")
        check_some("types", types, QUESTION_TYPES)
        self.types = tuple(types)
        self.controls = Controls(
            sessions=sessions,
            facts=facts,
            distractors=distractors,
            update_rate=update_rate,
            withdraw_rate=withdraw_rate,
        )

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the dialogue of a seed; its text decides the split."""
        kind = self.types[derive_seed(seed, f"dialogue/type/{split}") % len(self.types)]

        def draw(attempt: int) -> dict[str, Any]:
            made = make_dialogue(derive_seed(seed, f"dialogue/{split}", attempt), kind, self.controls)
            return {
                "sessions": [{"title": session.title, "lines": list(session.lines)} for session in made.sessions],
                "question": made.question,
                "query": " ".join(words(made.question)[2:]) if kind != "temporal" else made.question,
                "answer": made.answer,
                "type": made.kind,
                "delay": made.delay,
            }

        def text(data: dict[str, Any]) -> str:
            return "\n".join([*(_written(session) for session in data["sessions"]), data["question"]])

        data = draw_until(draw, text, split=split, max_draws=_MAX_DRAWS, key="env.init_args.facts")
        return Task(
            id=f"dialogue_{kind}-{content_digest(text(data))}",
            family=f"dialogue_{kind}",
            split=split,
            seed=seed,
            data=data,
        )


def delay_bucket(delay: int) -> str:
    """Return the range of delays that are reported together: 0, 1, 2-3, 4-7, 8-15, ..."""
    if delay < 2:
        return str(delay)
    low = 1 << (delay.bit_length() - 1)
    return f"{low}-{2 * low - 1}"


def _written(session: dict[str, Any]) -> str:
    return "\n".join([session["title"], *session["lines"]])
