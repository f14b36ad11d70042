"""TextWorldExpress: eight kinds of text games, thousands of steps a second."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lit_agentrl.envs.arguments import check_at_least, check_some
from lit_agentrl.envs.commands import HOW, MAX_COMMAND_CHARS, read_command, refusal
from lit_agentrl.envs.extras import check_requirements
from lit_agentrl.envs.java import JavaObject, JavaServer, check_java, jar_of, shared_server
from lit_agentrl.envs.solutions import play_through, say
from lit_agentrl.envs.splits import choose
from lit_agentrl.envs.states import History, digest
from lit_agentrl.types import (
    Action,
    Demonstration,
    EnvTraits,
    Message,
    Observation,
    Split,
    StepResult,
    Task,
    TextPart,
    ToolSpec,
)

# The properties that each game's world is made with.
GAMES: dict[str, tuple[str, ...]] = {
    "cookingworld": ("numLocations", "numIngredients", "numDistractorItems", "includeDoors", "limitInventorySize"),
    "twc": ("numLocations", "numItemsToPutAway", "includeDoors", "limitInventorySize"),
    "coin": ("numLocations", "numDistractorItems", "includeDoors", "limitInventorySize"),
    "mapreader": (
        *("numLocations", "maxDistanceApart", "maxDistractorItemsPerLocation"),
        *("includeDoors", "limitInventorySize"),
    ),
    "arithmetic": (),
    "sorting": (),
    "simonsays": ("gameLength", "numDistractors", "memorization", "verbose"),
    "peckingorder": (),
}
REQUIRES = dict.fromkeys(("textworld_express", "py4j"), "pip install 'lit_agentrl[games]'")
SEEDS_PER_SPLIT = 1000
_FIRST_SEED: dict[Split, int] = {"train": 0, "val": 10_000, "test": 20_000}
_FOLDS: dict[Split, str] = {"train": "train", "val": "dev", "test": "test"}
_INTERFACE = "textworldexpress.runtime.PythonInterface"
_UNKNOWN = "Unknown action"


class TextWorldExpress:
    """Short text games made from a seed (arXiv:2208.01174), played by commands such as `take coin`.

    An episode opens with the task and what is seen; afterwards the game's answer is said. The last line of a reply is
    the command. The reward of a step is the change of the game's score, which is 1 when all is done. A mistake for
    which the game gives a negative score (the wrong thing in the box) ends the episode; what had been earned is then
    taken back, so that the rewards sum to `failure_return`.

    All instances of a process share a Java process. It starts with the first episode; when it dies or hangs, the
    episodes in it fail, and it is replaced at the next `reset`.

    Args:
        games: Which games, and the properties of their worlds, for example `{coin: {numLocations: 5}, sorting: {}}`.
            All eight by default. Properties that are not given are the game's own choice.
        max_steps: Commands after which an episode is cut short.
        look: Say after each command also what the room and the inventory look like.
        actions: `none`; `offered`: the commands that are valid now are in `Observation.actions`; `told`: they are said,
            too.
        state_key: `history`: states are equal after the same commands and answers; `seen`: where room, inventory and
            score look alike, whatever is elsewhere.
        failure_return: What the rewards of an episode sum to that ends by a mistake. -1 is the game's own.
        timeout_s: Seconds that a command may take before the games' process counts as hung.
        heap_mb: Memory of the Java process; it takes some 60 MB more.

    Raises:
        ValueError: An argument is not accepted, or the package or Java is not installed.
    """

    traits = EnvTraits(deterministic=True, replay=True)
    requires = REQUIRES
    preload = ("py4j.java_gateway",)

    def __init__(
        self,
        *,
        games: dict[str, dict[str, int]] | None = None,
        max_steps: int = 150,
        look: bool = False,
        actions: Literal["none", "offered", "told"] = "none",
        state_key: Literal["history", "seen"] = "history",
        failure_return: float = 0.0,
        timeout_s: float = 30.0,
        heap_mb: int = 128,
    ) -> None:
        check_requirements(type(self))
        self.games = _checked_games({name: {} for name in GAMES} if games is None else games)
        check_at_least(1, max_steps=max_steps)
        check_at_least(64, heap_mb=heap_mb)
        if timeout_s <= 0:
            raise ValueError(f"env.init_args.timeout_s must be greater than 0, got {timeout_s}")
        self.max_steps = max_steps
        self.look = look
        self.actions = actions
        self.state_key = state_key
        self.failure_return = failure_return
        self.timeout_s = timeout_s
        self.heap_mb = heap_mb
        self._server: JavaServer | None = None
        self._game: JavaObject | None = None
        self._loaded = ""
        self._running = False

    @staticmethod
    def check_machine() -> None:
        """Check that there is a Java.

        Raises:
            ValueError: There is none.
        """
        check_java("TextWorldExpress")

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the game of a seed; outside training, evaluations go through the games' seeds in order."""
        names = list(self.games)
        number = choose(seed, len(names) * SEEDS_PER_SPLIT, split=split, purpose="textworld_express")
        place, name = divmod(number, len(names))
        game, game_seed = names[name], _FIRST_SEED[split] + place
        data = {"game": game, "properties": self.games[game], "seed": game_seed}
        return Task(id=f"{game}-{game_seed}", family=f"twx_{game}", split=split, seed=seed, data=data)

    def reset(self, task: Task) -> Observation:
        """Begin a game.

        Raises:
            ValueError: The game does not accept its properties; names `env.init_args.games`.
            JavaLostError: The Java process does not start, died or hung.
        """
        self._running = False
        game = self._connected()
        shown = self._make(game, task, solve=False)
        self._steps, self._score = 0, 0.0
        description = game.call("getTaskDescription").strip()
        self._history = History(description, shown["observation"])
        self._running = True
        return self._observe(shown, f"{description}\n{HOW}\n\n")

    def step(self, action: Action) -> StepResult:
        """Carry out the command of the reply.

        Raises:
            RuntimeError: No episode is running, or the game raised.
            JavaLostError: The Java process died or hung.
        """
        if not self._running or self._game is None:
            raise RuntimeError("step was called without a running episode; call reset first")
        self._running = False  # whatever fails below, fails the episode
        command = read_command(action.message.text)
        problem = refusal(command)
        if problem is None:
            self._shown = json.loads(self._game.call("stepJSON", command))
        answer = problem or self._shown["observation"]
        shown = {**self._shown, "observation": answer}
        invalid = problem is not None or answer.startswith(_UNKNOWN)
        self._steps += 1
        score = float(shown["score"])
        lost = bool(shown["taskfailure"]) or score < 0
        worth = self.failure_return if score < 0 else score
        reward, self._score = worth - self._score, worth
        terminated = lost or bool(shown["tasksuccess"])
        truncated = not terminated and self._steps >= self.max_steps
        self._history.add(command[:MAX_COMMAND_CHARS], answer, repr(score))
        ended = terminated or truncated
        self._running = not ended
        return StepResult(
            observation=Observation(messages=(Message.of("user", answer),)) if ended else self._observe(shown, ""),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            success=bool(shown["tasksuccess"]) and not lost if ended else None,
            reward_parts={"invalid_actions": float(invalid)},
        )

    def close(self) -> None:
        """Give up the game. The Java process ends with the last instance that uses it."""
        self._running = False
        if self._game is not None:
            self._game.close()
        self._game = self._server = None

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec] = ()) -> Demonstration:
        """Show the game's own solution.

        Raises:
            JavaLostError: The Java process does not start or died.
            RuntimeError: The solution does not solve the game within `max_steps`.
        """
        # Another player, so that a running episode goes on undisturbed; they share the Java process.
        player = TextWorldExpress(
            games={task.data["game"]: task.data["properties"]},
            max_steps=self.max_steps,
            look=self.look,
            actions=self.actions,
            state_key=self.state_key,
            timeout_s=self.timeout_s,
            heap_mb=self.heap_mb,
        )
        self._connected()  # keeps the Java process, which would end with the player
        try:
            return player._solve(task, tuple(tools))
        finally:
            player.close()

    def _solve(self, task: Task, tools: tuple[ToolSpec, ...]) -> Demonstration:
        game = self._connected()
        self._make(game, task, solve=True)
        path = game.texts("getGoldActionSequence")
        unsolved = (
            f"the game's solution of {task.id}, {len(path)} commands, does not solve it within "
            f"env.init_args.max_steps ({self.max_steps})"
        )
        return play_through(task, self.reset(task), self.step, say(path), tools=tools, unsolved=unsolved)

    def _connected(self) -> JavaObject:
        if self._game is None or self._server is None or not self._server.alive:
            jar = jar_of("textworld_express", "textworld-express.jar")
            self._server = shared_server(jar, heap_mb=self.heap_mb, first=_INTERFACE)
            self._game = self._server.make(_INTERFACE, timeout_s=self.timeout_s)
            self._loaded = ""
        return self._game

    def _make(self, game: JavaObject, task: Task, *, solve: bool) -> dict[str, Any]:
        name, properties = task.data["game"], task.data["properties"]
        wanted = f"{name} {','.join(f'{key}={value}' for key, value in properties.items())}"
        if wanted != self._loaded:
            self._loaded = ""
            problem = game.call("load", *wanted.split(" ", 1))
            if problem:
                raise ValueError(f"env.init_args.games: {name}: {problem.strip()}")
            self._loaded = wanted
        self._shown = json.loads(game.call("generateNewGameJSON", int(task.data["seed"]), _FOLDS[task.split], solve))
        return self._shown

    def _observe(self, shown: Mapping[str, Any], said: str) -> Observation:
        """Return what is read next; the last part is the state as far as it is seen."""
        parts = [f"{said}{shown['observation'].strip()}"]
        seen = (shown["look"].strip(), shown["inventory"].strip())
        if self.look:
            parts += [text for text in seen if text]
        # The game's order depends on where things lie in memory, and it names some twice.
        valid = tuple(sorted(set(shown["validActions"]))) if self.actions != "none" else ()
        if self.actions == "told":
            parts.append(f"Commands: {', '.join(valid)}")
        content = (*(TextPart(text=f"{text}\n\n") for text in parts[:-1]), TextPart(text=parts[-1]))
        key = self._history.add() if self.state_key == "history" else digest(*seen, parts[0], repr(self._score))
        return Observation(messages=(Message(role="user", content=content),), state_key=key, actions=valid)


def _checked_games(games: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    check_some("games", games, GAMES)
    for name, properties in games.items():
        unknown = sorted(set(properties) - set(GAMES[name]))
        if unknown:
            accepted = ", ".join(GAMES[name]) or "none"
            raise ValueError(f"env.init_args.games: {name} has no property {unknown[0]!r}; it accepts: {accepted}")
    return {name: dict(properties) for name, properties in games.items()}
