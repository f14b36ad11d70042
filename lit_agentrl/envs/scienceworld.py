"""ScienceWorld: thirty kinds of experiments of a primary school, in a house that is described in text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from lit_agentrl.envs.arguments import check_at_least, check_some
from lit_agentrl.envs.commands import HOW, MAX_COMMAND_CHARS, read_command, refusal
from lit_agentrl.envs.extras import check_requirements
from lit_agentrl.envs.java import JavaObject, JavaServer, check_java, jar_of
from lit_agentrl.envs.solutions import play_through, say
from lit_agentrl.envs.splits import choose
from lit_agentrl.envs.states import History, digest
from lit_agentrl.types import (
    SPLITS,
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

SIMPLIFICATIONS = (
    "easy",
    "teleportAction",
    "openDoors",
    "openContainers",
    "selfWateringFlowerPots",
    "noElectricalAction",
)
REQUIRES = dict.fromkeys(("scienceworld", "py4j"), "pip install 'lit_agentrl[science]'")
_INTERFACE = "scienceworld.runtime.pythonapi.PythonInterface"
# Java numbers objects by where they lie in memory, and the simulator lists what a room holds in that order. With one
# number for all, the order is that of creation, and the whole simulator depends on task and commands alone.
_OPTIONS = ("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
_ELECTRICAL = ("power-component", "conductivity")
_HIDDEN_FORMS = ("reset task", "wait1")
_UNKNOWN = "No known action matches that input."

# How many variations of each task are train, dev and test: the simulator's own sets, which follow one another.
VARIATIONS: dict[str, tuple[int, int, int]] = {
    "boil": (14, 7, 9),
    "melt": (14, 7, 9),
    "freeze": (14, 7, 9),
    "change-the-state-of-matter-of": (14, 7, 9),
    "use-thermometer": (270, 135, 135),
    "measure-melting-point-known-substance": (218, 109, 109),
    "measure-melting-point-unknown-substance": (150, 75, 75),
    "power-component": (10, 5, 5),
    "power-component-renewable-vs-nonrenewable-energy": (10, 5, 5),
    "test-conductivity": (450, 225, 225),
    "test-conductivity-of-unknown-substances": (300, 150, 150),
    "find-living-thing": (150, 75, 75),
    "find-non-living-thing": (150, 75, 75),
    "find-plant": (150, 75, 75),
    "find-animal": (150, 75, 75),
    "grow-plant": (62, 31, 33),
    "grow-fruit": (62, 31, 33),
    "chemistry-mix": (16, 8, 8),
    "chemistry-mix-paint-secondary-color": (18, 9, 9),
    "chemistry-mix-paint-tertiary-color": (18, 9, 9),
    "lifespan-longest-lived": (62, 31, 32),
    "lifespan-shortest-lived": (62, 31, 32),
    "lifespan-longest-lived-then-shortest-lived": (62, 31, 32),
    "identify-life-stages-1": (6, 3, 5),
    "identify-life-stages-2": (4, 2, 4),
    "inclined-plane-determine-angle": (84, 42, 42),
    "inclined-plane-friction-named-surfaces": (692, 346, 348),
    "inclined-plane-friction-unnamed-surfaces": (80, 40, 42),
    "mendelian-genetics-known-plant": (60, 30, 30),
    "mendelian-genetics-unknown-plant": (240, 120, 120),
}


class ScienceWorld:
    """Experiments in a simulated house (arXiv:2203.07540), by text commands such as `open door to kitchen`.

    An episode opens with the task, the forms of commands, and what the room looks like; afterwards the simulator's
    answer is said. The last line of a reply is the command. The reward of a step is the change of the simulator's score
    divided by 100, so that the rewards of an episode sum to the score of the paper, at most 1. A mistake for which the
    simulator gives a negative score (to focus on the wrong thing) ends the episode; what had been earned is then taken
    back, so that the sum is `failure_return`. Success is a score of 100.

    Each instance has a Java process. It starts with the first episode; one that dies or hangs fails its episode and is
    replaced at the next. Texts depend on the task and the commands alone.

    Args:
        tasks: Names of tasks, for example `boil`; all thirty by default.
        simplifications: Of the simulator: `easy` for all, or some of `teleportAction`, `openDoors`, `openContainers`,
            `selfWateringFlowerPots` and `noElectricalAction`.
        max_variations: Only the first so many variations of each task in each split; all by default.
        max_steps: Commands after which an episode is cut short. The longest solution has some 260.
        look: Say after each command also what the room and the inventory look like (ten times the text).
        actions: `none`; or `offered`: all commands that are valid now are in `Observation.actions`, which takes the
            simulator a tenth of a second and more a step.
        state_key: `history`: states are equal after the same commands and answers; `seen`: where room, inventory and
            score look alike, whatever the rest of the house is like.
        failure_return: What the rewards of an episode sum to that ends by a mistake. -1 is the simulator's own.
        timeout_s: Seconds that a command may take before the simulator counts as hung.
        heap_mb: Memory of the Java process; it takes some 100 MB more.

    Raises:
        ValueError: An argument is not accepted, or the package or Java is not installed.
    """

    traits = EnvTraits(deterministic=True, replay=True, exclusive=True)
    requires = REQUIRES
    preload = ("py4j.java_gateway",)

    def __init__(
        self,
        *,
        tasks: tuple[str, ...] | None = None,
        simplifications: tuple[str, ...] = (),
        max_variations: int | None = None,
        max_steps: int = 300,
        look: bool = False,
        actions: Literal["none", "offered"] = "none",
        state_key: Literal["history", "seen"] = "history",
        failure_return: float = 0.0,
        timeout_s: float = 30.0,
        heap_mb: int = 256,
    ) -> None:
        check_requirements(type(self))
        self.tasks = tuple(VARIATIONS) if tasks is None else tuple(tasks)
        check_some("tasks", self.tasks, VARIATIONS)
        check_some("simplifications", simplifications, SIMPLIFICATIONS, or_none=True)
        check_at_least(1, max_variations=max_variations, max_steps=max_steps)
        check_at_least(128, heap_mb=heap_mb)
        if timeout_s <= 0:
            raise ValueError(f"env.init_args.timeout_s must be greater than 0, got {timeout_s}")
        electrical = [name for name in self.tasks if any(part in name for part in _ELECTRICAL)]
        if "noElectricalAction" in simplifications and electrical:
            raise ValueError(f"env.init_args.simplifications: noElectricalAction makes {electrical[0]} impossible")
        self.max_steps = max_steps
        self.look = look
        self.actions = actions
        self.state_key = state_key
        self.failure_return = failure_return
        self.timeout_s = timeout_s
        self.heap_mb = heap_mb
        self._simplifications = ",".join(simplifications)
        self._pairs = {split: self._variations(number, max_variations) for number, split in enumerate(SPLITS)}
        self._arguments: dict[str, Any] = {
            "tasks": self.tasks,
            "simplifications": simplifications,
            "max_steps": max_steps,
            "look": look,
            "actions": actions,
            "state_key": state_key,
            "failure_return": failure_return,
            "timeout_s": timeout_s,
            "heap_mb": heap_mb,
        }
        self._forms = ""
        self._server: JavaServer | None = None
        self._game: JavaObject | None = None
        self._running = False

    @staticmethod
    def check_machine() -> None:
        """Check that there is a Java.

        Raises:
            ValueError: There is none.
        """
        check_java("ScienceWorld")

    def _variations(self, split: int, limit: int | None) -> list[tuple[str, int]]:
        """Return (task, variation) of a split, the tasks taking turns: an evaluation of a few has all kinds."""
        pairs = []
        for name in self.tasks:
            sizes = VARIATIONS[name]
            first = sum(sizes[:split])
            pairs += [(number, name, first + number) for number in range(min(sizes[split], limit or sizes[split]))]
        return [(name, variation) for _, name, variation in sorted(pairs, key=lambda pair: pair[0])]

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the variation of a seed; outside training, evaluations go through them in order."""
        pairs = self._pairs[split]
        name, variation = pairs[choose(seed, len(pairs), split=split, purpose="scienceworld")]
        data = {"task": name, "variation": variation}
        return Task(id=f"{name}-{variation}", family=f"science_{name}", split=split, seed=seed, data=data)

    def reset(self, task: Task) -> Observation:
        """Begin an experiment.

        Raises:
            JavaLostError: The Java process does not start, died or hung.
        """
        self._running = False
        game = self._connected()
        self._load(game, task)
        description, room = game.call("getTaskDescription").strip(), game.call("freeActionLook").strip()
        if not self._forms:
            forms = [form for form in game.texts("getPossibleActions") if form not in _HIDDEN_FORMS]
            self._forms = f"Commands, OBJ being a thing, a place or a door: {', '.join(forms)}."
        self._steps, self._score = 0, 0.0
        self._history = History(description, room)
        self._running = True
        opening = f"{description}\n{self._forms}\n{HOW}"
        return self._observe(game, opening if self.look else f"{opening}\n\n{room}")

    def step(self, action: Action) -> StepResult:
        """Carry out the command of the reply.

        Raises:
            RuntimeError: No episode is running, or the simulator raised.
            JavaLostError: The Java process died or hung.
        """
        if not self._running or self._game is None:
            raise RuntimeError("step was called without a running episode; call reset first")
        self._running = False  # whatever fails below, fails the episode
        game = self._game
        command = read_command(action.message.text)
        answer = refusal(command)
        invalid = answer is not None
        score, completed = self._score, False
        if answer is None:
            answer = game.call("step", command)
            score, completed = game.call("getScore"), game.call("getCompleted")
            invalid = answer.startswith(_UNKNOWN)
        self._steps += 1
        failed = score < 0
        worth = self.failure_return if failed else score
        reward, self._score = worth - self._score, worth
        terminated = completed or failed
        truncated = not terminated and self._steps >= self.max_steps
        self._history.add(command[:MAX_COMMAND_CHARS], answer, repr(score))
        ended = terminated or truncated
        observation = Observation(messages=(Message.of("user", answer),)) if ended else self._observe(game, answer)
        self._running = not ended
        return StepResult(
            observation=observation,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            success=score >= 1.0 if ended else None,
            reward_parts={"invalid_actions": float(invalid)},
        )

    def close(self) -> None:
        """End the Java process."""
        self._running = False
        self._game = None
        if self._server is not None:
            self._server.close()
            self._server = None

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec] = ()) -> Demonstration:
        """Show the simulator's own solution. For `mendelian-genetics` it takes some ten seconds to find.

        Raises:
            JavaLostError: The Java process does not start or died.
            RuntimeError: The solution does not lead to a score of 100 within `max_steps`.
        """
        if self._running:
            # The simulator's worlds share variables: a search for a solution would disturb the running episode.
            twin = ScienceWorld(**self._arguments)
            try:
                return twin.demonstrate(task, tools)
            finally:
                twin.close()
        path = self._solution(task)
        unsolved = (
            f"the simulator's solution of {task.id}, {len(path)} commands, does not solve it within "
            f"env.init_args.max_steps ({self.max_steps})"
        )
        try:
            return play_through(task, self.reset(task), self.step, say(path), tools=tools, unsolved=unsolved)
        finally:
            self._running = False

    def _solution(self, task: Task) -> list[str]:
        finder = self._connect(timeout_s=None)
        try:
            self._load(finder, task, solve=True)
            return finder.texts("getGoldActionSequence")
        finally:
            finder.close()

    def _load(self, game: JavaObject, task: Task, *, solve: bool = False) -> None:
        name, variation = task.data["task"], int(task.data["variation"])
        problem = game.call("load", name, variation, self._simplifications, solve)
        if problem and problem.startswith("ERROR"):
            raise ValueError(f"task {task.id!r}: {problem}")

    def _connect(self, *, timeout_s: float | None) -> JavaObject:
        if self._server is None or not self._server.alive:
            jar = jar_of("scienceworld", "scienceworld.jar")
            self._server = JavaServer(jar, heap_mb=self.heap_mb, options=_OPTIONS, first=_INTERFACE)
            self._game = None
        return self._server.make(_INTERFACE, timeout_s=timeout_s)

    def _connected(self) -> JavaObject:
        if self._game is None or self._server is None or not self._server.alive:
            self._game = self._connect(timeout_s=self.timeout_s)
        return self._game

    def _observe(self, game: JavaObject, said: str) -> Observation:
        """Return what is read next; the last part is the state as far as it is seen."""
        parts = [TextPart(text=said)]
        seen: tuple[str, ...] = ()
        if self.look or self.state_key == "seen":
            seen = (game.call("freeActionLook").strip(), game.call("freeActionInventory").strip())
        if self.look:
            parts = [TextPart(text=f"{said}\n\n"), TextPart(text="\n\n".join(seen))]
        valid: tuple[str, ...] = ()
        if self.actions == "offered":
            # One long text is ten times faster than a list, which is asked for entry by entry.
            found = json.loads(game.call("getValidActionObjectCombinationsJSON"))["validActions"]
            valid = tuple(dict.fromkeys(entry["action"] for entry in found))
        key = self._history.add() if self.state_key == "history" else digest(*seen, repr(self._score))
        return Observation(messages=(Message(role="user", content=tuple(parts)),), state_key=key, actions=valid)
