"""MiniGrid and BabyAI: an agent in a small grid world, told what it sees in words, and shown it on request."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from lit_agentrl.envs.arguments import check_at_least
from lit_agentrl.envs.extras import check_requirements
from lit_agentrl.envs.gymnasium_text import read_action
from lit_agentrl.envs.solutions import play_through
from lit_agentrl.envs.splits import draw_until
from lit_agentrl.envs.states import digest
from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import (
    Action,
    ContentPart,
    Demonstration,
    EnvTraits,
    ImagePart,
    Message,
    Observation,
    Split,
    StepResult,
    Task,
    TextPart,
    ToolSpec,
)

ACTIONS = ("left", "right", "forward", "pick up", "drop", "toggle", "done")
"""What an agent can do, by the package's numbers. Left and right turn; toggle opens doors and boxes."""
REQUIRES = dict.fromkeys(("minigrid", "gymnasium"), "pip install 'lit_agentrl[games]'")
_RULES = (
    "You are in a grid world and see some cells ahead and to the sides. left and right turn you, forward moves you by "
    "one, pick up, drop and toggle (open, close, unlock) act on the cell ahead."
)
_DOORS = ("open ", "closed ", "locked ")
_MAX_DRAWS = 1000
_MAX_ERROR_CHARS = 60
_DEFAULT_LEVELS = ("BabyAI-GoToLocal-v0",)


class MiniGrid:
    """Levels of MiniGrid (arXiv:2306.13831), whose missions are words.

    The observation says the mission, what lies in the field of view relative to the agent, and what it carries. A reply
    is an action's name; see `lit_agentrl.envs.gymnasium_text.read_action`. Any other is answered with an error and
    costs a step. The reward is the package's: 1 - 0.9 * steps / limit when the mission is accomplished, else 0.

    A task is a level and a seed; the layout and the mission decide which split it belongs to, so none is in two.

    Args:
        levels: Names in gymnasium's registry, for example `MiniGrid-DoorKey-6x6-v0`.
        max_steps: Replies after which an episode is cut short; default: the level's own limit, which the reward
            depends on in any case.
        image: Also show `view`, what the agent sees, or `full`, the whole grid, as a PNG. Text policies refuse images.
        tile_pixels: Size of a cell in the image.
        array: Also give the view as numbers, 3 for each of 49 cells, and the direction, for value functions.

    Raises:
        ValueError: An argument is not accepted, or the package is not installed.
    """

    traits = EnvTraits(deterministic=True, replay=True)
    requires = REQUIRES
    preload = ("minigrid",)
    _prefixes: tuple[str, ...] = ("MiniGrid-", "BabyAI-")

    def __init__(
        self,
        *,
        levels: tuple[str, ...] = _DEFAULT_LEVELS,
        max_steps: int | None = None,
        image: Literal["none", "view", "full"] = "none",
        tile_pixels: int = 8,
        array: bool = False,
    ) -> None:
        check_requirements(type(self))
        self._gymnasium = importlib.import_module("gymnasium")
        importlib.import_module("minigrid")  # registers its levels
        known = [name for name in self._gymnasium.registry if name.startswith(self._prefixes)]
        unknown = [name for name in levels if name not in known]
        if unknown or not levels:
            raise ValueError(
                f"env.init_args.levels must be names of levels, such as {', '.join(known[:3])} ({len(known)} in all), "
                f"got {list(levels)}"
            )
        check_at_least(1, max_steps=max_steps, tile_pixels=tile_pixels)
        self.levels = tuple(levels)
        self.max_steps = max_steps
        self.image = image
        self.tile_pixels = tile_pixels
        self.array = array
        self._worlds: dict[tuple[str, bool], Any] = {}
        self._world: Any = None
        self._running = False

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the level and layout of a seed.

        Raises:
            ValueError: The level has too few layouts to fill three splits; names `env.init_args.levels`.
        """
        level = self.levels[derive_seed(seed, f"minigrid/{split}/level") % len(self.levels)]

        def draw(attempt: int) -> tuple[int, str]:
            number = derive_seed(seed, f"minigrid/{split}/{level}", attempt) % 2**31
            return number, self._layout(level, number)

        number, layout = draw_until(
            draw, lambda drawn: drawn[1], split=split, max_draws=_MAX_DRAWS, key="env.init_args.levels"
        )
        return Task(
            id=f"{level}-{digest(layout)}",
            family=level,
            split=split,
            seed=seed,
            data={"level": level, "seed": number},
        )

    def reset(self, task: Task) -> Observation:
        """Say the rules, the mission and what is seen."""
        self._world = self._make(task.data["level"])
        seen = _reset(self._world, int(task.data["seed"]))
        self._limit = self.max_steps or int(self._world.max_steps)
        self._steps, self._running = 0, True
        return self._observe(seen, f"{_RULES}\nAnswer with one of: {', '.join(ACTIONS)}.\nMission: {seen['mission']}.")

    def step(self, action: Action) -> StepResult:
        """Carry out the action that the reply names.

        Raises:
            RuntimeError: No episode is running.
        """
        if not self._running:
            raise RuntimeError("step was called without a running episode; call reset first")
        self._running = False  # whatever fails below, fails the episode
        number = read_action(action.message.text, ACTIONS)
        error, reward, terminated, truncated = "", 0.0, False, False
        if number is None:
            said = action.message.text.strip()[:_MAX_ERROR_CHARS]
            error = f"Error: {said!r} is no action. Answer with one of: {', '.join(ACTIONS)}."
            seen = self._world.gen_obs()
        else:
            seen, earned, terminated, truncated, _ = self._world.step(number)
            reward = float(earned)
        self._steps += 1
        terminated = bool(terminated)
        truncated = not terminated and (bool(truncated) or self._steps >= self._limit)
        self._running = not (terminated or truncated)
        return StepResult(
            observation=self._observe(seen, error),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            success=None if self._running else reward > 0,
            reward_parts={"invalid_actions": float(number is None)},
        )

    def close(self) -> None:
        """End the episode and free the worlds."""
        self._running = False
        for world in self._worlds.values():
            world.close()
        self._worlds.clear()
        self._world = None

    def _make(self, level: str, *, other: bool = False) -> Any:
        """Return the world of a level; `other`: not the one that an episode may be running in."""
        if (level, other) not in self._worlds:
            made = self._gymnasium.make(level, disable_env_checker=True, tile_size=self.tile_pixels)
            self._worlds[level, other] = made.unwrapped
        return self._worlds[level, other]

    def _layout(self, level: str, number: int) -> str:
        world = self._make(level, other=True)
        seen = _reset(world, number)
        return f"{level} {seen['mission']} {_state(world)}"

    def _observe(self, seen: dict[str, Any], said: str) -> Observation:
        """Return what is read next; the last part is the state as far as it is seen."""
        text = describe(seen["image"], self._world.carrying)
        parts: list[ContentPart] = [TextPart(text=f"{said}\n\n")] if said else []
        if self.image != "none":
            frame = self._world.get_frame(
                tile_size=self.tile_pixels, agent_pov=self.image == "view", highlight=self.image == "full"
            )
            parts.append(ImagePart(data=png(frame.tobytes(), width=frame.shape[1], height=frame.shape[0])))
        array = None
        if self.array:
            direction = [float(number == int(seen["direction"])) for number in range(4)]
            array = (*(number / 10 for number in seen["image"].ravel().tolist()), *direction)
        return Observation(
            messages=(Message(role="user", content=(*parts, TextPart(text=text))),),
            state_key=digest(_state(self._world)),
            actions=ACTIONS,
            array=array,
        )


class BabyAI(MiniGrid):
    """The levels of BabyAI (arXiv:1810.08272), whose bot shows how missions are accomplished.

    Args are those of `MiniGrid`; levels are those whose names begin with `BabyAI-`.
    """

    _prefixes = ("BabyAI-",)

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec] = ()) -> Demonstration:
        """Show what the bot does.

        Raises:
            RuntimeError: The bot does not accomplish the mission within the limit, as happens in a few levels.
        """
        from minigrid.utils.baby_ai_bot import BabyAIBot

        player = BabyAI(
            levels=(task.data["level"],), max_steps=self.max_steps, image=self.image, tile_pixels=self.tile_pixels
        )
        unsolved = f"the bot does not accomplish the mission of {task.id} within the limit"
        try:
            opening = player.reset(task)
            replies = _replies_of(BabyAIBot(player._world), task)
            return play_through(task, opening, player.step, replies, tools=tools, unsolved=unsolved)
        finally:
            player.close()


def _replies_of(bot: Any, task: Task) -> Iterator[Message]:
    """Yield what the package's bot does, looking at the world before each action."""
    number: Any = None
    while True:
        try:
            number = bot.replan(number)
        except Exception as error:  # asserts and lookups of all kinds, where it is at its wits' end
            raise RuntimeError(f"the bot gives up on {task.id}: {type(error).__name__}: {error}") from error
        yield Message.of("assistant", ACTIONS[int(number)])


def describe(view: Any, carried: Any) -> str:
    """Return a field of view in words.

    Args:
        view: [width, height, 3] of object, colour and state; the agent is in the middle of the lowest row, facing up.
        carried: The package's object that the agent carries, or `None`.
    """
    objects, colours = _names()
    width, height = view.shape[:2]
    own, cells = width // 2, view.tolist()
    things = []
    for ahead in range(height):
        for across in sorted(range(width), key=lambda column: abs(column - own)):
            kind, colour, state = cells[across][height - 1 - ahead]
            name = objects[kind]
            if name in ("unseen", "empty", "wall", "agent", "floor") or (across, ahead) == (own, 0):
                continue
            door = _DOORS[state] if name == "door" else ""
            tint = "" if name in ("goal", "lava") else f"{colours[colour]} "
            things.append(f"{_article(door + tint + name)} {_place(ahead, across - own)}")
    walls = []
    for name, cells_there in (
        ("forward", [cells[own][height - 1 - number] for number in range(1, height)]),
        ("left", [cells[own - number][height - 1] for number in range(1, own + 1)]),
        ("right", [cells[own + number][height - 1] for number in range(1, width - own)]),
    ):
        distance = next((n for n, cell in enumerate(cells_there, 1) if objects[cell[0]] == "wall"), None)
        if distance is not None:
            walls.append(f"{distance} {name}")
    lines = [f"You see {'; '.join(things)}." if things else "You see nothing."]
    if walls:
        lines.append(f"Walls: {', '.join(walls)}.")
    if carried is not None:
        lines.append(f"You carry {_article(f'{carried.color} {carried.type}')}.")
    return " ".join(lines)


def png(pixels: bytes, *, width: int, height: int) -> bytes:
    """Return an image of red, green and blue bytes, row by row, as a PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))

    row = 3 * width
    lines = b"".join(b"\0" + pixels[start : start + row] for start in range(0, row * height, row))
    header = struct.pack("!IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 6)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _place(ahead: int, across: int) -> str:
    side = f"{abs(across)} {'right' if across > 0 else 'left'}" if across else ""
    front = f"{ahead} forward" if ahead else ""
    return " and ".join(part for part in (front, side) if part)


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


@functools.cache
def _names() -> tuple[dict[int, str], dict[int, str]]:
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT

    return dict(IDX_TO_OBJECT), dict(IDX_TO_COLOR)


def _reset(world: Any, number: int) -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()):  # it reports each layout that it rejects
        seen, _ = world.reset(seed=number)
    return dict(seen)


def _state(world: Any) -> str:
    """Return everything that decides what can happen: grid, agent, load, and which parts of the mission are done."""
    carried = world.carrying
    load = "" if carried is None else f"{carried.color} {carried.type}"
    mission = getattr(world, "instrs", None)
    done = [getattr(mission, name, None) for name in ("a_done", "b_done")]
    where = [int(number) for number in world.agent_pos]
    return f"{world.grid.encode().tobytes().hex()} {where} {int(world.agent_dir)} {load} {done}"
