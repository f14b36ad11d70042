"""Made archives: short documents on places, whose facts change from day to day, with a history that is known."""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from lit_agentrl.envs.splits import split_of
from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import Split

DocumentKind: TypeAlias = Literal["notice", "letter"]

_SURNAMES = (
    "Abara Bekele Castro Duarte Eklund Farkas Galvin Horvat Ivanov Jansen Kowal Larsen Mbeki Nagy Ortega Pereira "
    "Quigley Rahimi Sandoval Tamm Ulloa Vance Weiss Yilmaz Zeman Adler Brandt Conti Dufour Ferrer"
)
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "ferry fee in crowns": tuple(map(str, range(2, 100))),
    "harbour master": tuple(_SURNAMES.split()),
    "dialling code": tuple(map(str, range(100, 1000))),
    "curfew": tuple(f"{hour}:{minute:02d}" for hour in range(19, 24) for minute in range(0, 60, 5)),
    "speed limit in knots": tuple(map(str, range(3, 60))),
    "number of berths": tuple(map(str, range(10, 400))),
}
"""Values by attribute, without spaces and full stops. A fact never has the same value twice."""
_BEGINNINGS = "Bel Cor Dun Esk Fal Gor Hal Ister Kel Lor Mar Nor Ost Pel Quen Ros Sel Tor Ulm Vest Wex Yar"
_ENDINGS = "amar bridge dale essa fjord gate holm ingen kirk lund mouth ness ona port quay ravik stad thorpe"
_FIRST, _EDITED, _NEW = (
    "The {what} of {place} is {value}.",
    "The {what} of {place} is now {value}.",
    "From day {day} on, the {what} of {place} is {value}.",
)
_HEARSAY = (
    "I was told that the {what} of {place} is {value}.",
    "As far as I know, the {what} of {place} is {value}.",
    "Everybody here says that the {what} of {place} is {value}.",
)
_FILLERS = (
    "The office is closed at noon.",
    "Lost umbrellas are kept at the gate.",
    "Swimming in the basin is not allowed.",
    "The band plays on the pier when the weather is fine.",
    "Please keep the slipway clear.",
    "Questions are answered at the counter.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Controls:
    """What makes an archive large or restless."""

    places: int
    days: int
    changes_per_day: int
    """Places of which one fact changes, each day."""
    letters_per_day: float
    """Chance that a letter comes, each day."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A document's text from a day on."""

    day: int
    sentences: tuple[str, ...]


@dataclass(kw_only=True, slots=True)
class Document:
    """A short text on one place; later versions take the place of earlier ones."""

    id: str
    kind: DocumentKind
    place: str
    versions: list[Version] = field(default_factory=list)

    def on(self, day: int) -> Version | None:
        """Return the version that is there on a day, if the document was there then."""
        return next((version for version in reversed(self.versions) if version.day <= day), None)

    def text(self, day: int) -> str:
        """Return the document on a day as it is shown; it has to be there."""
        version = self.on(day)
        assert version is not None
        first = self.versions[0].day
        revised = f", revised day {version.day}" if version.day > first else ""
        sentences = " ".join(version.sentences)
        return f"[{self.id}] {self.kind.capitalize()} on {self.place}, day {first}{revised}: {sentences}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What a fact is from a day on, and which notice says so."""

    day: int
    value: str
    document: str
    sentence: str


@dataclass(kw_only=True, slots=True)
class Fact:
    """An attribute of a place and its history."""

    place: str
    what: str
    history: list[Statement] = field(default_factory=list)

    def on(self, day: int) -> Statement:
        """Return what holds on a day."""
        return next(statement for statement in reversed(self.history) if statement.day <= day)


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """Documents and facts, over all days.

    Of all notices that state a fact on a day, the one with the newest day is right, and only that one. Letters state
    what was or never was.
    """

    documents: dict[str, Document]
    facts: tuple[Fact, ...]

    def changed(self, day: int) -> list[str]:
        """Return what a day brought, a phrase for each document."""
        phrases = []
        for document in self.documents.values():
            for version in document.versions:
                if version.day == day:
                    how = "is new" if version is document.versions[0] else "was revised"
                    phrases.append(f"{document.id} on {document.place} {how}")
        return phrases


@functools.lru_cache(maxsize=64)
def make_archive(number: int, split: Split, controls: Controls) -> Archive:
    """Return the archive of a number. Places of different splits have different names."""
    rng = random.Random(derive_seed(number, f"archive/{split}"))
    names = [f"{first}{last}" for first, last in itertools.product(_BEGINNINGS.split(), _ENDINGS.split())]
    own = [name for name in names if split_of(name) == split]
    return _Maker(rng, rng.sample(own, controls.places), controls).make()


class _Maker:
    """Writes an archive day by day."""

    def __init__(self, rng: random.Random, places: list[str], controls: Controls) -> None:
        self._rng = rng
        self._places = places
        self._controls = controls
        self._documents: dict[str, Document] = {}
        self._facts = {(place, what): Fact(place=place, what=what) for place in places for what in ATTRIBUTES}

    def make(self) -> Archive:
        for place in self._places:
            attributes = self._rng.sample(list(ATTRIBUTES), len(ATTRIBUTES))
            half = len(attributes) // 2
            for part in (attributes[:half], attributes[half:]):
                self._open(place, part, 0, _FIRST)
        for day in range(1, self._controls.days + 1):
            # One change of a place a day: two notices of one day never state the same fact.
            for place in self._rng.sample(self._places, self._controls.changes_per_day):
                self._change(place, day)
            if self._rng.random() < self._controls.letters_per_day:
                self._write_letter(self._rng.choice(self._places), day)
        return Archive(documents=self._documents, facts=tuple(self._facts.values()))

    def _change(self, place: str, day: int) -> None:
        what = self._rng.choice(list(ATTRIBUTES))
        if not self._unused(place, what):
            return
        if self._rng.random() < 0.5:
            self._open(place, [what], day, _NEW)
        else:
            self._edit(place, what, day)

    def _open(self, place: str, attributes: list[str], day: int, template: str) -> None:
        document = self._add("notice", place)
        stated = [self._state(place, what, day, document, template) for what in attributes]
        document.versions.append(Version(day=day, sentences=self._with_filler(stated)))

    def _edit(self, place: str, what: str, day: int) -> None:
        """Rewrite the notice that states a fact; what it states and no longer holds goes."""
        document = self._documents[self._facts[place, what].history[-1].document]
        outdated = {
            statement.sentence
            for fact in self._facts.values()
            for statement in fact.history
            if statement.document == document.id and statement is not fact.history[-1]
        }
        old = self._facts[place, what].history[-1].sentence
        new = self._state(place, what, day, document, _EDITED)
        kept = [sentence for sentence in document.versions[-1].sentences if sentence not in outdated]
        sentences = tuple(new if sentence == old else sentence for sentence in kept)
        document.versions.append(Version(day=day, sentences=sentences))

    def _write_letter(self, place: str, day: int) -> None:
        what = self._rng.choice(list(ATTRIBUTES))
        former = [statement.value for statement in self._facts[place, what].history[:-1]]
        value = self._rng.choice(former or self._unused(place, what))
        sentence = self._rng.choice(_HEARSAY).format(what=what, place=place, value=value)
        document = self._add("letter", place)
        document.versions.append(Version(day=day, sentences=self._with_filler([sentence])))

    def _state(self, place: str, what: str, day: int, document: Document, template: str) -> str:
        value = self._rng.choice(self._unused(place, what))
        sentence = template.format(what=what, place=place, value=value, day=day)
        statement = Statement(day=day, value=value, document=document.id, sentence=sentence)
        self._facts[place, what].history.append(statement)
        return sentence

    def _unused(self, place: str, what: str) -> list[str]:
        used = {statement.value for statement in self._facts[place, what].history}
        return [value for value in ATTRIBUTES[what] if value not in used]

    def _with_filler(self, sentences: list[str]) -> tuple[str, ...]:
        place = self._rng.randint(0, len(sentences))
        return (*sentences[:place], self._rng.choice(_FILLERS), *sentences[place:])

    def _add(self, kind: DocumentKind, place: str) -> Document:
        number = sum(document.kind == kind for document in self._documents.values()) + 1
        document = Document(id=f"{kind[0].upper()}{number}", kind=kind, place=place)
        self._documents[document.id] = document
        return document
