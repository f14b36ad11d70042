"""One world of DiscoveryWorld: made from a seed, quiet, the same in every process; what is seen of it, in words."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import random
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lit_agentrl.seeding import derive_seed

LEVELS = ("easy", "normal", "challenge")
THEMES = {
    "combinatorial_chemistry": "Combinatorial Chemistry",
    "archaeology_dating": "Archaeology Dating",
    "plant_nutrients": "Plant Nutrients",
    "reactor_lab": "Reactor Lab",
    "lost_in_translation": "Lost in Translation",
    "space_sick": "Space Sick",
    "proteomics": "Proteomics",
    "rocket_science": "It's (not) Rocket Science!",
}
SMALL_SKILLS = {
    "dialog": "Small Skills: Dialog Test",
    "pick_and_place": "Small Skills: Pick and Place Test",
    "pick_and_give": "Small Skills: Pick and Give Test",
    "measurement": "Small Skills: Instrument Measurement Test",
    "doors": "Small Skills: Doors Test",
    "doors_with_keys": "Small Skills: Doors with Keys Test",
    "house": "Small Skills: Navigation in a House Test",
    "search": "Small Skills: Search Test",
    "discovery_feed": "Small Skills: Discovery Feed Test",
    "moving_agents": "Small Skills: Moving Agents Test",
}
SCENARIOS: dict[str, tuple[str, str]] = {
    **{f"{theme}-{level}": (name, level.capitalize()) for theme, name in THEMES.items() for level in LEVELS},
    **{skill: (name, "Normal") for skill, name in SMALL_SKILLS.items()},
}
"""Name and difficulty in the library, by our names."""

COMMANDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("pickup", "drop", "open", "close", "activate", "deactivate", "talk", "eat", "read"), ("OBJ",)),
    **dict.fromkeys(("put", "use"), ("OBJ", "OBJ")),
    **dict.fromkeys(("move_direction", "rotate_direction"), ("DIRECTION",)),
    "teleport_to_location": ("PLACE",),
    "teleport_to_object": ("OBJ",),  # anything that has been seen; all others take what is in reach
    "discovery_feed_get_updates": (),
    "discovery_feed_get_post_by_id": ("NUMBER",),
}
"""The library's actions in small letters, with what they take."""
SAY = "say"
SAY_KEY = "chosen_dialog_option_int"
DIRECTIONS = ("north", "east", "south", "west")
# Listed without numbers where they are near: they are many, and one is like the other.
TERRAIN = frozenset({"grass", "floor", "wall", "path", "cave floor", "cave wall", "launch pad", "sand"})
_TELEPORT = "teleport_to_object"
_TILE = 32


class CommandError(ValueError):
    """A command that the library cannot be given; the text is for the player."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What the task's scorecard says. Never shown to the player."""

    score: float
    """From 0 to 1."""
    completed: bool
    successful: bool


class Game:
    """A world, the player in it, and its task.

    The library draws from the global generator and from generators that nobody seeded, and it takes things out of sets
    that are ordered by where they lie in memory. Here all of that follows from the seed; the global generator of this
    process is left as it was. What the library prints is dropped, and so are its copies of the world after every step,
    which cost four fifths of a step's time.

    Args:
        scenario: One of `SCENARIOS`.
        seed: Of the world.
    """

    def __init__(self, scenario: str, seed: int) -> None:
        name, difficulty = SCENARIOS[scenario]
        self.scenario = scenario
        self._random = random.Random(derive_seed(seed, f"discoveryworld/{scenario}")).getstate()
        with self._inside(), tempfile.TemporaryDirectory() as folder:
            self._api = _library()()
            self._api.FRAME_DIR = folder  # the library makes one where it runs, and removes what is in it
            if not self._api.loadScenario(name, difficulty, randomSeed=seed):
                raise RuntimeError(f"the installed discoveryworld has no scenario {name!r}, {difficulty}")
        self.world: Any = self._api.world
        self.player: Any = self._api.ui[0].currentAgent
        (self.task,) = self.world.taskScorer.tasks
        self.view: dict[str, Any] = {}
        self._look()

    @property
    def description(self) -> str:
        """The task, in the library's words."""
        return str(self.task.taskDescription).strip()

    @property
    def places(self) -> list[str]:
        """Where the player can teleport to, by name."""
        return sorted(self._api.listTeleportLocationsDict())

    @property
    def in_dialog(self) -> bool:
        """Whether the player talks with somebody, so that an answer has to be chosen."""
        return bool(self.view["dialog_box"]["is_in_dialog"]) and bool(self.view["dialog_box"]["dialogOptions"])

    @property
    def progress(self) -> Progress:
        """How far the task is."""
        return Progress(
            score=float(self.task.getScoreNormalized()),
            completed=bool(self.task.isCompleted()),
            successful=bool(self.task.isCompletedSuccessfully()),
        )

    def act(self, action: Mapping[str, Any]) -> tuple[str, bool]:
        """Carry out an action in the library's form, let the world go on for a step, and look.

        Returns:
            What came of it, and whether its arguments were there: a door that is locked is there.
        """
        with self._inside():
            response = self._api.performAgentAction(0, dict(action))
            self._api.tick()
        self._look()
        said = str(self.view["lastActionMessage"]).strip()
        name = str(action.get("action", SAY)).lower()
        in_reach = name != _TELEPORT and "OBJ" in COMMANDS.get(name, ())
        missing = [str(text) for text in response["errors"]] if in_reach and not response["success"] else []
        more = str(self.view["extended_action_message"]).strip()
        parts = [said, *missing, *([more] if more != said else [])]
        return "\n".join(part for part in parts if part), not missing

    def image(self) -> bytes:
        """Return what is around the player, 24 x 16 tiles of 32 pixels, as a PNG."""
        pygame = importlib.import_module("pygame")
        width, height = self._api.viewportSizeX, self._api.viewportSizeY
        surface = pygame.Surface((width * _TILE, height * _TILE))
        x, y = self.player.getWorldLocation()
        data = io.BytesIO()
        with self._inside():
            self.world.renderViewport(surface, x - width // 2, y - height // 2, width, height, 0, 0, 1.0)
            pygame.image.save(surface, data, "view.png")
        return data.getvalue()

    def _look(self) -> None:
        with self._inside():
            self.view = self._api.ui[0].renderJSON()  # once a step: it takes messages off a queue

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """Run the library's code: with the world's own random numbers, without a word."""
        outside = random.getstate()
        random.setstate(self._random)
        try:
            with contextlib.redirect_stdout(_NOWHERE), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # overflows in the rocket's equations, which the library makes use of
                yield
        finally:
            self._random = random.getstate()
            random.setstate(outside)


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


_NOWHERE = _Nowhere()


@functools.cache
def _library() -> Any:
    """Return the library's entry, made to depend on seeds alone; see `Game`."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    api = importlib.import_module("discoveryworld.DiscoveryWorldAPI").DiscoveryWorldAPI
    seeded = types.SimpleNamespace(**{**vars(random), "Random": _seeded})
    for name, module in list(sys.modules.items()):
        if name.startswith("discoveryworld.") and getattr(module, "random", None) is random:
            vars(module)["random"] = seeded
    importlib.import_module("discoveryworld.objects.Object").Object.__hash__ = lambda self: self.uuid
    importlib.import_module("discoveryworld.World").World.saveWorldHistory = lambda self: None
    return api


def _seeded(seed: Any = None) -> random.Random:
    """Stand in for `random.Random`, which takes its seed from the system when it is given none."""
    return random.Random(random.getrandbits(64) if seed is None else seed)


def parse_command(command: str) -> dict[str, Any]:
    """Return an action in the library's form.

    Args:
        command: `put 11878 5035`, `move_direction north`, `say 2`; or the library's own JSON.

    Raises:
        CommandError: There is no such command, or it takes something else.
    """
    if command.startswith("{"):
        return _from_json(command)
    name, _, rest = command.partition(" ")
    name, words = name.lower(), rest.split()
    if name == SAY:
        if not (len(words) == 1 and _is_number(words[0])):
            raise CommandError(f"Error: {SAY} takes the number of an answer, as in: {SAY} 1")
        return {SAY_KEY: int(words[0])}
    if name not in COMMANDS:
        raise CommandError(f"Error: there is no command {name!r}; there are: {', '.join((*COMMANDS, SAY))}")
    takes = COMMANDS[name]
    if takes == ("PLACE",):
        given: Sequence[Any] = [rest.strip()] if rest.strip() else []
    else:
        given = [word.lstrip("#") for word in words]
    fits = {
        "OBJ": _is_number,
        "NUMBER": _is_number,
        "DIRECTION": lambda word: word in DIRECTIONS,
        "PLACE": lambda word: True,
    }
    if len(given) != len(takes) or not all(fits[kind](word) for kind, word in zip(takes, given, strict=True)):
        raise CommandError(
            f"Error: {name} takes {' and '.join(takes) or 'nothing'}, OBJ being an object's number, "
            f"DIRECTION one of {', '.join(DIRECTIONS)}"
        )
    values = [int(word) if kind in ("OBJ", "NUMBER") else word for kind, word in zip(takes, given, strict=True)]
    return {"action": name.upper(), **{f"arg{place}": value for place, value in enumerate(values, start=1)}}


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 10


def _from_json(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        raise CommandError("Error: this is no JSON. Answer with one command on a line of its own.") from None
    if not isinstance(given, dict):
        raise CommandError("Error: a command in JSON is an object.")
    if SAY_KEY in given:
        return parse_command(f"{SAY} {given[SAY_KEY]}")
    arguments = [str(given[key]) for key in ("arg1", "arg2") if given.get(key) is not None]
    return parse_command(" ".join([str(given.get("action", "")), *arguments]))


def valid_commands(game: Game) -> tuple[str, ...]:
    """Return the commands whose arguments are there; whether they lead to anything is another question."""
    view = game.view
    if game.in_dialog:
        return tuple(f"{SAY} {number}" for number in view["dialog_box"]["dialogOptions"])
    carried = [entry["uuid"] for entry in view["inventoryObjects"]]
    reached = [entry["uuid"] for entry in view["accessibleEnvironmentObjects"]]
    everything = carried + reached
    found = [f"move_direction {way}" for way in view["agentLocation"]["directions_you_can_move"]]
    facing = view["agentLocation"]["faceDirection"]
    found += [f"rotate_direction {way}" for way in DIRECTIONS if way != facing]
    found += [f"drop {number}" for number in carried]
    for name in ("pickup", "open", "close", "activate", "deactivate", "talk", "eat", "read"):
        found += [f"{name} {number}" for number in (reached if name in ("pickup", "talk") else everything)]
    found += [f"put {one} {other}" for one in carried for other in everything if one != other]
    found += [f"use {one} {other}" for one in everything for other in everything if one != other]
    found += [f"teleport_to_location {place}" for place in game.places]
    near = [entry for entries in view["nearbyObjects"]["objects"].values() for entry in entries]
    found += [f"teleport_to_object {entry['uuid']}" for entry in near if entry["name"] not in TERRAIN]
    found.append("discovery_feed_get_updates")
    return tuple(dict.fromkeys(found))


def describe(view: Mapping[str, Any]) -> str:
    """Return what is seen, in words; objects are named with the numbers that commands take."""
    place = view["agentLocation"]
    ways = ", ".join(place["directions_you_can_move"]) or "nowhere"
    lines = [
        f"You are at ({place['x']}, {place['y']}) and face {place['faceDirection']}. You can move: {ways}.",
        f"You carry: {_listed(view['inventoryObjects'])}.",
        f"In reach: {_listed(view['accessibleEnvironmentObjects'])}.",
        "Near, with steps away:",
    ]
    for direction, entries in view["nearbyObjects"]["objects"].items():
        ground = dict.fromkeys(str(entry["name"]) for entry in entries if entry["name"] in TERRAIN)
        things = [entry for entry in entries if entry["name"] not in TERRAIN]
        if direction != "same_location" and entries:
            lines.append(f"- {direction}: {'; '.join([*_grouped(things), *ground])}")
    for who, actions in view["nearbyAgents"]["list_of_agents"].items():
        lately = "; ".join(str(action["message"]) for action in actions)
        if lately:
            lines.append(f"{who} lately: {' '.join(lately.split())}")
    posts = view["discoveryFeed"]["posts"]
    lines += [f"Discovery Feed, post {post['postID']}, {post['author']}: {post['content']}" for post in posts]
    dialog = view["dialog_box"]
    if dialog["is_in_dialog"] and dialog["dialogOptions"]:
        lines.append(f"You are told: {dialog['dialogIn']}")
        lines += [f"{SAY} {number}: {text}" for number, text in dialog["dialogOptions"].items()]
    return "\n".join(lines)


def _grouped(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return things by what they are called, with their numbers and, where it is known, how far away they are."""
    groups: dict[str, list[str]] = {}
    for entry in entries:
        name, more = str(entry["name"]), str(entry["description"])
        called = more if more.startswith(name) else f"{name} ({more})"
        distance = f" at {entry['distance']}" if "distance" in entry else ""
        groups.setdefault(called, []).append(f"{entry['uuid']}{distance}")
    return [f"{called}: {', '.join(numbers)}" for called, numbers in groups.items()]


def _listed(entries: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(_grouped(entries)) or "nothing"
