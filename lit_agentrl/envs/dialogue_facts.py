"""Made dialogues over many sessions: facts that a user states, changes and takes back, and one question at the end."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lit_agentrl.seeding import derive_seed

QuestionType: TypeAlias = Literal["recall", "update", "temporal", "abstain"]
QUESTION_TYPES: tuple[QuestionType, ...] = ("recall", "update", "temporal", "abstain")
UNKNOWN = "unknown"

_PEOPLE = ("I", "Anna", "Boris", "Chloe", "David", "Elif", "Farid", "Greta", "Hiro")
_VALUES = {
    "favourite tea": [
        "oolong",
        "rooibos",
        "jasmine",
        "assam",
        "sencha",
        "chamomile",
        "darjeeling",
        "mint",
        "hibiscus",
        "matcha",
    ],
    "home town": ["Lisbon", "Turin", "Bergen", "Graz", "Leeds", "Porto", "Ghent", "Malmo", "Brno", "Cork"],
    "dog": ["Biscuit", "Pepper", "Waffle", "Ziggy", "Maple", "Rusty", "Olive", "Domino", "Clover", "Bandit"],
    "dentist": ["Okafor", "Lindqvist", "Moreau", "Tanaka", "Haddad", "Novak", "Silva", "Keller", "Osei", "Petrov"],
    "instrument": ["cello", "oboe", "banjo", "harp", "trombone", "viola", "clarinet", "accordion", "flute", "bassoon"],
    "car": ["Skoda", "Volvo", "Mazda", "Fiat", "Subaru", "Honda", "Seat", "Toyota", "Citroen", "Opel"],
    "project": ["Falcon", "Walnut", "Glacier", "Ember", "Orchid", "Quartz", "Lantern", "Saffron", "Comet", "Juniper"],
    "sport": [
        "fencing",
        "rowing",
        "judo",
        "tennis",
        "curling",
        "climbing",
        "badminton",
        "archery",
        "sailing",
        "squash",
    ],
    "parking space": [],
    "locker code": [],
}
"""Values by attribute; those without a list are numbers of three digits."""
_STATED = (
    "{Whose} {what} is {value}.",
    "By the way, {whose} {what} is {value}.",
    "You should know that {whose} {what} is {value}.",
)
_CHANGED = ("{Whose} {what} has changed: it is {value} now.", "News: {whose} {what} is now {value}.")
_WITHDRAWN = (
    "Forget what I said about {whose} {what}; it no longer holds.",
    "Scratch {whose} {what}: what I told you is not true any more.",
)
_CHAT = (
    "It rained all {day}.",
    "The train was late again on {day}.",
    "I watched a film about {thing}.",
    "My neighbour talked about {thing} for an hour.",
    "I could not sleep on {day}.",
    "There was a long queue at the bakery on {day}.",
    "I read half a book on {thing}.",
    "The meeting on {day} could have been a letter.",
)
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_THINGS = ["lighthouses", "volcanoes", "bees", "bridges", "comets", "canals", "mushrooms", "glaciers"]
MAX_FACTS = len(_PEOPLE) * len(_VALUES) // 2
_MAX_GAP_DAYS = 14


@dataclass(frozen=True, kw_only=True, slots=True)
class Controls:
    """What makes a dialogue long or hard."""

    sessions: int
    facts: int
    """Facts besides the one that is asked for; the same attributes of other people among them."""
    distractors: int
    """Lines of small talk a session."""
    update_rate: float
    """Chance that a fact changes in a session after it was stated."""
    withdraw_rate: float
    """Chance that it is taken back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """What was said at one time."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialogue:
    """Sessions and the question after them."""

    sessions: tuple[Session, ...]
    question: str
    answer: str
    kind: QuestionType
    delay: int | None
    """Sessions between the one that settles the answer and the question, 0 if it is the last; `None` if none does."""


class _Fact:
    """An attribute of somebody, and what was said about it when."""

    def __init__(self, person: str, what: str) -> None:
        self.person = person
        self.what = what
        self.values: list[str] = []
        self.holds = False

    def say(self, rng: random.Random, event: Literal["state", "change", "withdraw"]) -> str:
        self.holds = event != "withdraw"
        if event == "withdraw":
            return self._fill(rng.choice(_WITHDRAWN))
        return self._fill(rng.choice(_STATED if event == "state" else _CHANGED), value=self._fresh(rng))

    def _fresh(self, rng: random.Random) -> str:
        pool = _VALUES[self.what] or [str(number) for number in range(100, 1000)]
        unused = [value for value in pool if value not in self.values] or [
            value for value in pool if value != self.values[-1]
        ]
        self.values.append(rng.choice(unused))
        return self.values[-1]

    def _fill(self, template: str, **values: str) -> str:
        whose = self.whose
        return template.format(Whose=whose[0].upper() + whose[1:], whose=whose, what=self.what, **values)

    @property
    def whose(self) -> str:
        return "my" if self.person == "I" else f"{self.person}'s"


def make_dialogue(seed: int, kind: QuestionType, controls: Controls) -> Dialogue:
    """Return the dialogue of a seed, with a question of the given type after its last session."""
    rng = random.Random(derive_seed(seed, f"dialogue/{kind}"))
    pairs = [(person, what) for person in _PEOPLE for what in _VALUES]
    rng.shuffle(pairs)
    target = _Fact(*pairs[0])
    # Half of the other facts are the same attribute of other people or another attribute of the same person.
    close = [pair for pair in pairs[1:] if target.what in pair or target.person in pair]
    near = close[: (controls.facts + 1) // 2]
    others = [_Fact(*pair) for pair in (near + [pair for pair in pairs[1:] if pair not in near])[: controls.facts]]

    plan, asked_after, delay = _plan(rng, kind, controls.sessions)
    first_said = {id(fact): rng.randint(1, controls.sessions) for fact in others}
    answer, day, sessions = UNKNOWN, 0, []
    for number in range(1, controls.sessions + 1):
        day += rng.randint(1, _MAX_GAP_DAYS)
        lines = [
            rng.choice(_CHAT).format(day=rng.choice(_DAYS), thing=rng.choice(_THINGS))
            for _ in range(controls.distractors)
        ]
        for fact in others:
            if number == first_said[id(fact)]:
                lines.append(fact.say(rng, "state"))
            elif fact.holds and number > first_said[id(fact)]:
                draw = rng.random()
                if draw < controls.update_rate:
                    lines.append(fact.say(rng, "change"))
                elif draw < controls.update_rate + controls.withdraw_rate:
                    lines.append(fact.say(rng, "withdraw"))
        if number in plan:
            lines.append(target.say(rng, plan[number]))
        if number == asked_after and target.holds:
            answer = target.values[-1]
        rng.shuffle(lines)
        sessions.append(Session(title=f"Session {number} (day {day})", lines=tuple(lines or ["Nothing new."])))
    question = f"What is {target.whose} {target.what}?"
    if kind == "temporal":
        question = f"What was {target.whose} {target.what} right after session {asked_after}?"
    return Dialogue(sessions=tuple(sessions), question=question, answer=answer, kind=kind, delay=delay)


def _plan(
    rng: random.Random, kind: QuestionType, sessions: int
) -> tuple[dict[int, Literal["state", "change", "withdraw"]], int, int | None]:
    """Return what happens to the asked fact in which session, the session that is asked about, and the delay."""
    if kind == "recall":
        stated = rng.randint(1, sessions)
        return {stated: "state"}, sessions, sessions - stated
    if kind == "abstain" and rng.random() < 0.5:
        return {}, sessions, None
    # The delay is even over what is possible; the statement before is anywhere earlier.
    last = rng.randint(2, sessions)
    stated = rng.randint(1, last - 1)
    if kind == "temporal":
        return {stated: "state", last: "change"}, rng.randint(stated, last - 1), sessions - stated
    return {stated: "state", last: "withdraw" if kind == "abstain" else "change"}, sessions, sessions - last
