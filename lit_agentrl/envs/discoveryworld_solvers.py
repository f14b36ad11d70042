"""Scripted solutions of DiscoveryWorld's ten small skills, for demonstrations: they know the whole map and the answer.

The package has no solutions, and the 24 scenarios of its eight themes are left without: they want hypotheses to be
formed and tested over hundreds of steps, which is not a path that a short script could walk.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from lit_agentrl.envs.discoveryworld_game import SAY, Game

Place: TypeAlias = tuple[int, int]
_STEPS: dict[str, Place] = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
_QUOTED = re.compile(r"`([^`]*)`")


def solve(game: Game) -> Iterator[str]:
    """Yield commands; each is to be carried out before the next is asked for.

    Raises:
        KeyError: There is no script for the scenario.
    """
    yield from SOLVERS[game.scenario](_Guide(game))


class _Guide:
    """Knows the way: walks are shortest paths over the true map, and closed doors on them are opened."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.info: dict[str, Any] = game.task.scoringInfo

    @property
    def place(self) -> Place:
        return self._place_of(self.game.player)

    def reach(self, thing: Any) -> Iterator[str]:
        """Be next to a thing and face it, wherever it moves meanwhile: walk there, and teleport once it is in sight."""
        while True:
            place = self._place_of(thing)
            way = self._way_to_neighbour(place)
            if way is None and (self._sees(thing) or self._path(self._next_to(place)) is None):
                yield f"teleport_to_object {thing.uuid}"
            elif way is None:
                yield from self._step(self._next_to(place))
            elif way and way != self.game.player.attributes["faceDirection"]:
                yield f"rotate_direction {way}"
            else:
                return

    def enter(self, is_goal: Callable[[Place], bool]) -> Iterator[str]:
        """Go to the nearest place of a kind."""
        while not is_goal(self.place):
            yield from self._step(is_goal)

    def use(self, command: str, thing: Any, *others: Any) -> Iterator[str]:
        """Reach a thing, then give a command with it as first object."""
        yield from self.reach(thing)
        yield " ".join([command, *(str(one.uuid) for one in (thing, *others))])

    def carry(self, thing: Any, to: Any) -> Iterator[str]:
        """Take one thing and put it into another, or give it to somebody."""
        yield from self.use("pickup", thing)
        yield from self.reach(to)
        yield f"put {thing.uuid} {to.uuid}"

    def answer(self, wanted: Callable[[str, str], bool]) -> str:
        """Return the command that gives the first wanted answer, judged by what was said and the answer."""
        dialog = self.game.view["dialog_box"]
        for number, text in dialog["dialogOptions"].items():
            if wanted(str(dialog["dialogIn"]), str(text)):
                return f"{SAY} {number}"
        raise RuntimeError(f"no answer to {dialog['dialogIn']!r} is the right one")

    def nearest(self, things: list[Any]) -> Any:
        """Return the thing with the shortest way to it."""
        lengths = {id(thing): self._path(self._next_to(self._place_of(thing))) for thing in things}
        known = [thing for thing in things if lengths[id(thing)] is not None]
        if not known:
            raise RuntimeError("there is no way to what is left")
        return min(known, key=lambda thing: len(lengths[id(thing)] or ()))

    def _step(self, is_goal: Callable[[Place], bool]) -> Iterator[str]:
        path = self._path(is_goal)
        if not path:
            raise RuntimeError("there is no way")
        (x, y), way = self.place, path[0]
        door = self._closed_door((x + _STEPS[way][0], y + _STEPS[way][1]))
        if door is None:
            yield f"move_direction {way}"
            return
        if way != self.game.player.attributes["faceDirection"]:
            yield f"rotate_direction {way}"
        yield f"open {door.uuid}"

    def _path(self, is_goal: Callable[[Place], bool]) -> list[str] | None:
        """Return the directions of a shortest path, or `None`."""
        start = self.place
        came: dict[Place, tuple[Place, str] | None] = {start: None}
        waiting = deque([start])
        while waiting:
            here = waiting.popleft()
            if is_goal(here):
                return self._back(came, here)
            for way, (dx, dy) in _STEPS.items():
                there = (here[0] + dx, here[1] + dy)
                if there not in came and self._is_open(there):
                    came[there] = (here, way)
                    waiting.append(there)
        return None

    @staticmethod
    def _back(came: dict[Place, tuple[Place, str] | None], place: Place) -> list[str]:
        path = []
        while (step := came[place]) is not None:
            place, way = step
            path.append(way)
        return path[::-1]

    def _is_open(self, place: Place) -> bool:
        world = self.game.world
        if not world.isWithinBounds(*place):
            return False
        return bool(world.isPassable(*place)[0]) or self._closed_door(place) is not None

    def _closed_door(self, place: Place) -> Any:
        """Return the closed door at a place for which the player has what it needs."""
        keys = {thing.attributes["keyID"] for thing in self.game.player.getInventory()} | {0}
        for thing in self.game.world.getObjectsAt(*place):
            what = thing.attributes
            if what["isPassage"] and what["isOpenable"] and not what["isOpenPassage"]:
                return thing if what["requiresKey"] in keys or what["requiresKey"] <= 0 else None
        return None

    def _sees(self, thing: Any) -> bool:
        near = self.game.view["nearbyObjects"]["objects"].values()
        return any(entry["uuid"] == thing.uuid for entries in near for entry in entries)

    def _next_to(self, place: Place) -> Callable[[Place], bool]:
        return lambda here: abs(here[0] - place[0]) + abs(here[1] - place[1]) <= 1

    def _way_to_neighbour(self, place: Place) -> str | None:
        """Return the direction of a neighbouring place, "" for one's own, `None` for those farther away."""
        x, y = self.place
        if place == (x, y):
            return ""
        return next((way for way, (dx, dy) in _STEPS.items() if place == (x + dx, y + dy)), None)

    @staticmethod
    def _place_of(thing: Any) -> Place:
        x, y = thing.getWorldLocation()
        return int(x), int(y)


def _pick_and_place(guide: _Guide) -> Iterator[str]:
    yield from guide.carry(guide.info["objectToMove"], guide.info["destinationContainer"])


def _discovery_feed(guide: _Guide) -> Iterator[str]:
    yield "discovery_feed_get_updates"
    yield from _pick_and_place(guide)


def _measurement(guide: _Guide) -> Iterator[str]:
    thing, device = guide.info["objectToMove"], guide.info["measurementDevice"]
    yield from guide.use("pickup", thing)
    yield from guide.use("use", device, thing)
    yield from guide.reach(guide.info["destinationContainer"])
    yield f"put {thing.uuid} {guide.info['destinationContainer'].uuid}"


def _dialog(guide: _Guide) -> Iterator[str]:
    yield from guide.use("talk", guide.info["agentToTalkTo"])
    while guide.game.in_dialog:
        yield guide.answer(lambda said, text: text in (_QUOTED.findall(said) or ["Exit"]))


def _moving_agents(guide: _Guide) -> Iterator[str]:
    for agent in guide.info["agentsToTalkTo"]:
        while not guide.game.in_dialog:  # who is busy has to be asked again
            yield from guide.use("talk", agent)
        yield guide.answer(lambda said, text: "about to rain" in text)
        while guide.game.in_dialog:
            yield guide.answer(lambda said, text: True)


def _doors(guide: _Guide) -> Iterator[str]:
    yield from _open_all(guide, [])
    yield from guide.use("pickup", guide.info["objectToPickUp"])


def _doors_with_keys(guide: _Guide) -> Iterator[str]:
    yield from _open_all(guide, list(guide.info["keys"]))
    yield from guide.use("pickup", guide.info["objectToPickUp"])


def _open_all(guide: _Guide, keys: list[Any]) -> Iterator[str]:
    """Take all keys and open all doors, what is nearest first."""
    while True:
        carried = guide.game.player.getInventory()
        wanted = [key for key in keys if key not in carried]
        held = {thing.attributes["keyID"] for thing in carried}
        for door in guide.info["doors"]:
            needs = door.attributes["requiresKey"]
            if not door.attributes["isOpenPassage"] and (needs <= 0 or needs in held):
                wanted.append(door)
        if not wanted:
            return
        thing = guide.nearest(wanted)
        yield from guide.use("pickup" if thing in keys else "open", thing)


def _house(guide: _Guide) -> Iterator[str]:
    rectangle = guide.info["taskLocationRect"]

    def inside(place: Place) -> bool:
        x, y = place
        return rectangle["startX"] < x < rectangle["endX"] and rectangle["startY"] <= y < rectangle["endY"]

    yield from guide.enter(inside)
    yield f"drop {guide.info['flag'].uuid}"


def _search(guide: _Guide) -> Iterator[str]:
    yield from guide.use("pickup", guide.info["flag"])


SOLVERS: dict[str, Callable[[_Guide], Iterator[str]]] = {
    "dialog": _dialog,
    "pick_and_place": _pick_and_place,
    "pick_and_give": _pick_and_place,
    "measurement": _measurement,
    "doors": _doors,
    "doors_with_keys": _doors_with_keys,
    "house": _house,
    "search": _search,
    "discovery_feed": _discovery_feed,
    "moving_agents": _moving_agents,
}
