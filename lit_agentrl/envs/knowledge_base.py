"""Questions to an archive that changes while they are answered: what counts is what holds now, with its source."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from lit_agentrl.agents.tools.base import ToolBox
from lit_agentrl.envs.archive import Archive, Controls, Fact, make_archive
from lit_agentrl.envs.arguments import check_at_least
from lit_agentrl.envs.calls import Call, call_message
from lit_agentrl.envs.splits import content_digest
from lit_agentrl.envs.states import History
from lit_agentrl.envs.words import content_words
from lit_agentrl.rewards.answers import answer_instruction, exact_match, extract_answer, write_answer
from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import Action, Demonstration, EnvTraits, Message, Observation, Split, StepResult, Task, ToolSpec

QuestionKind: TypeAlias = Literal["steady", "changing"]
QUESTION_KINDS: tuple[QuestionKind, ...] = get_args(QuestionKind)
_MAX_HITS = 6
_MAX_TOOL_CHARS = 8000
_CHANGE_STEPS = (2, 3)
_MAX_DRAWS = 400
_PLACES = 12
_RULES = (
    "You answer from an archive of short documents that changes from day to day. Of several notices that state a fact, "
    "the newest counts; letters may be wrong. Find the notice with `search`, quote the sentence that states the fact "
    "with `quote`, then answer. Every reply with calls takes a day. Answer and quotation must hold on the day on which "
    "you answer."
)
_NOTICE = re.compile(r"^\[(N\d+)\] Notice on (.+?), day (\d+)(?:, revised day (\d+))?: (.*)$", re.MULTILINE)


@dataclass(kw_only=True, slots=True)
class _Episode:
    """The state of a running episode."""

    task: Task
    archive: Archive
    fact: Fact
    day: int
    steps: int = 0
    quoted: tuple[str, str] | None = None
    """Document and sentence of the last quotation."""
    first: str | None = None
    """The value that held when the first calls ran."""
    history: History = field(default_factory=History)


class KnowledgeBase:
    """Facts about made places, stated in notices that later ones replace or that are rewritten, and in letters.

    An archive has one history of `days`. An episode is a question on one of these days, and every reply with calls lets
    a day pass before the calls run, with whatever the history brings. So between two episodes on the same archive, and
    within one, answers change; what was learnt by heart is stale. `success` and, by default, the reward need the value
    that holds at the end and, as last quotation, the sentence that states it in the notice that counts. Splits have
    places of their own.

    Args:
        archives: Archives of the train split; val and test have a quarter as many, at least one.
        places: Places of an archive, each with six facts.
        days: Days of an archive's history.
        changes_per_day: Places of which one fact changes, each day.
        letters_per_day: Chance that a letter with an old or invented value comes, each day.
        changing_share: Share of the questions whose fact changes as the second or third reply with calls is made.
        announce: Whether each answer of the tools begins with the documents that changed.
        max_steps: Replies with calls; one more ends the episode as wrong.
        answer_weight: Weight of the reward part `answer`; the rest is that of `success`.

    Raises:
        ValueError: An argument is not accepted.
    """

    traits = EnvTraits(deterministic=True, replay=True)

    def __init__(
        self,
        *,
        archives: int = 16,
        places: int = 6,
        days: int = 60,
        changes_per_day: int = 2,
        letters_per_day: float = 0.3,
        changing_share: float = 0.5,
        announce: bool = True,
        max_steps: int = 8,
        answer_weight: float = 0.0,
    ) -> None:
        key = "env.init_args"
        check_at_least(1, archives=archives)
        check_at_least(20, days=days)
        check_at_least(5, max_steps=max_steps)
        if not 1 <= places <= _PLACES:
            raise ValueError(f"{key}.places must be 1 to {_PLACES}, got {places}")
        if not 1 <= changes_per_day <= places:
            raise ValueError(f"{key}.changes_per_day must be 1 to {key}.places ({places}), got {changes_per_day}")
        rates = {"letters_per_day": letters_per_day, "changing_share": changing_share, "answer_weight": answer_weight}
        for name, rate in rates.items():
            if not 0 <= rate <= 1:
                raise ValueError(f"{key}.{name} must be from 0 to 1, got {rate}")
        if days <= max_steps + len(_CHANGE_STEPS):
            raise ValueError(f"{key}.days must be more than {key}.max_steps and two, got {days}")
        self.archives = archives
        self.controls = Controls(
            places=places, days=days, changes_per_day=changes_per_day, letters_per_day=letters_per_day
        )
        self.changing_share = changing_share
        self.announce = announce
        self.max_steps = max_steps
        self.answer_weight = answer_weight
        self._box = ToolBox([self.search, self.quote])
        self._running: _Episode | None = None

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the question of a seed.

        Raises:
            ValueError: The archives have no fact that changes at the right time, or none that does not.
        """
        rng = random.Random(derive_seed(seed, f"knowledge/{split}"))
        kind: QuestionKind = "changing" if rng.random() < self.changing_share else "steady"
        for _ in range(_MAX_DRAWS):
            archive = rng.randrange(self.archives if split == "train" else max(1, self.archives // 4))
            found = self._draw_question(make_archive(archive, split, self.controls), kind, rng)
            if found is not None:
                fact, day = found
                text = f"{archive} {fact.what} {fact.place} {day}"
                return Task(
                    id=f"knowledge_{kind}-{split}-{content_digest(text)}",
                    family=f"knowledge_{kind}",
                    split=split,
                    seed=seed,
                    data={"archive": archive, "place": fact.place, "what": fact.what, "day": day, "kind": kind},
                )
        raise ValueError(f"env.init_args.changes_per_day: no {kind} fact was found; take other days, places or changes")

    def reset(self, task: Task) -> Observation:
        """Ask the question.

        Raises:
            ValueError: The task was made with other `init_args`.
        """
        data = task.data
        archive = make_archive(data["archive"], task.split, self.controls)
        facts = [fact for fact in archive.facts if (fact.place, fact.what) == (data["place"], data["what"])]
        if not facts:
            raise ValueError(f"task {task.id!r} was made with other env.init_args: there is no {data['place']}")
        self._running = _Episode(task=task, archive=archive, fact=facts[0], day=data["day"])
        question = f"It is day {data['day']}. What is the {data['what']} of {data['place']}?"
        return self._observation((Message.of("user", f"{_RULES}\n{question}\n{answer_instruction('line')}"),))

    def step(self, action: Action) -> StepResult:
        """Let a day pass and run the calls, or grade the answer.

        Raises:
            RuntimeError: No episode is running.
        """
        running = self._episode
        calls = action.message.tool_calls
        running.steps += bool(calls)
        if calls and running.steps <= self.max_steps:
            running.day += 1
            texts = []
            for call in calls:
                output = self._box.call(call.name, call.arguments, max_chars=_MAX_TOOL_CHARS).text
                texts.append(f"Error: {call.error}" if call.error is not None else output)
            running.first = running.first or running.fact.on(running.day).value
            texts[0] = f"{self._news(running)}\n{texts[0]}"
            messages = [Message.of("tool", text, tool_call_id=call.id) for call, text in zip(calls, texts, strict=True)]
            return StepResult(observation=self._observation(tuple(messages)))
        self._running = None
        return self._graded(running, None if calls else extract_answer(action.message.text, "line"))

    def close(self) -> None:
        """Drop the running episode."""
        self._running = None

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec] = ()) -> Demonstration:
        """Show a solver that reads what the tools say: search, quote, and both again if the place is in the news."""
        before = self._running
        try:
            opening = self.reset(task)
            messages = list(opening.messages)

            def show(call: Call) -> str:
                reply = call_message([call], number=len(messages))
                result = self.step(Action(message=reply))
                assert result.observation is not None
                messages.extend((reply, *result.observation.messages))
                return result.observation.messages[0].text

            answer = _solve(show, task.data["what"], task.data["place"], announced=self.announce)
        finally:
            self._running = before
        messages.append(Message.of("assistant", write_answer(answer, "line")))
        return Demonstration(task=task, messages=tuple(messages), tools=(*tools, *opening.tools))

    def search(self, query: str) -> str:
        """Find the documents that share most words with a query.

        Args:
            query: A few words.
        """
        day, archive = self._episode.day, self._episode.archive
        wanted = content_words(query)
        there = [document for document in archive.documents.values() if document.on(day) is not None]
        ranked = []
        for place, document in enumerate(there):
            shared = len(wanted & content_words(document.text(day)))
            version = document.on(day)
            if shared and version is not None:
                ranked.append((-shared, -version.day, place))
        best = sorted(place for *_, place in sorted(ranked)[:_MAX_HITS])
        return "\n".join(there[place].text(day) for place in best) or "Nothing was found."

    def quote(self, document: str, sentence: str) -> str:
        """Quote a sentence of a document; the last quotation goes with the answer.

        Args:
            document: Its number, for example N3.
            sentence: One whole sentence of it, word for word.
        """
        running = self._episode
        found = running.archive.documents.get(document.strip(" []"))
        version = None if found is None else found.on(running.day)
        if found is None or version is None:
            raise ValueError(f"there is no document {document!r} on day {running.day}")
        wanted = " ".join(sentence.split()).strip("\"'")
        if wanted not in version.sentences:
            raise ValueError(f"{found.id} has no such sentence on day {running.day}; quote a whole one, word for word")
        running.quoted = (found.id, wanted)
        return f"Quoted from {found.id}."

    @property
    def _episode(self) -> _Episode:
        if self._running is None:
            raise RuntimeError("step was called without a running episode; call reset first")
        return self._running

    def _draw_question(self, archive: Archive, kind: QuestionKind, rng: random.Random) -> tuple[Fact, int] | None:
        """Return a fact and the day on which it is asked, if what is drawn suits the kind."""
        fact = rng.choice(archive.facts)
        last = self.controls.days - self.max_steps
        turns = [statement.day for statement in fact.history[1:]]
        if kind == "steady":
            day = rng.randint(0, last)
        elif turns:
            day = rng.choice(turns) - rng.choice(_CHANGE_STEPS)
        else:
            return None
        ahead = sum(day < turn <= day + self.max_steps for turn in turns)
        return (fact, day) if 0 <= day <= last and ahead == (kind == "changing") else None

    def _news(self, running: _Episode) -> str:
        changed = running.archive.changed(running.day) if self.announce else []
        return f"It is day {running.day}." + (f" Changed since yesterday: {', '.join(changed)}." if changed else "")

    def _graded(self, running: _Episode, answer: str | None) -> StepResult:
        now = running.fact.on(running.day)
        given = None if answer is None else answer.rstrip(".")
        right = exact_match(given, now.value)
        quoted = running.quoted == (now.document, now.sentence)
        former = [statement.value for statement in running.fact.history if statement.day < now.day]
        success = right and quoted
        changed = running.first is not None and running.first != now.value
        parts = {
            "answer": float(right),
            "quoted": float(quoted),
            "stale": float(any(exact_match(given, value) for value in former)),
            "after_change" if changed else "without_change": float(success),
        }
        return StepResult(
            observation=None,
            reward=self.answer_weight * right + (1 - self.answer_weight) * success,
            reward_parts=parts,
            terminated=True,
            success=success,
            info={"answer": answer, "right": now.value, "document": now.document},
        )

    def _observation(self, messages: tuple[Message, ...]) -> Observation:
        assert self._running is not None
        key = self._running.history.add(*(message.text for message in messages))
        return Observation(messages=messages, tools=self._box.specs, state_key=f"{self._running.task.id} {key}")


def _solve(show: Callable[[Call], str], what: str, place: str, *, announced: bool) -> str:
    """Answer a question by calls, reading only what they return; without news, by looking twice."""
    query = {"query": f"{what} {place}"}
    found = _newest(show(("search", query)), what, place)
    while True:
        document, sentence = found
        said = show(("quote", {"document": document, "sentence": sentence}))
        if announced and f" on {place} " not in said.partition("\n")[0]:
            break
        again = _newest(show(("search", query)), what, place)
        if again == found and not said.partition("\n")[2].startswith("Error"):
            break
        found = again
    return sentence.rstrip(".").rpartition(" ")[2]


def _newest(results: str, what: str, place: str) -> tuple[str, str]:
    """Return the newest notice among search results that states a fact, and the sentence."""
    stated = []
    for document, _, first, revised, text in _NOTICE.findall(results):
        for sentence in re.findall(r"[^.]+\.", text):
            if f"the {what} of {place} is" in sentence.lower().replace(place.lower(), place):
                stated.append((int(revised or first), document, sentence.strip()))
    _, document, sentence = max(stated)
    return document, sentence
