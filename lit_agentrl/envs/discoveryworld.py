"""DiscoveryWorld: eight kinds of scientific discovery at three levels, and ten small skills, in a world of tiles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from lit_agentrl.envs.arguments import check_at_least, check_some
from lit_agentrl.envs.commands import HOW, MAX_COMMAND_CHARS, read_command, refusal
from lit_agentrl.envs.discoveryworld_game import (
    COMMANDS,
    DIRECTIONS,
    SAY,
    SAY_KEY,
    SCENARIOS,
    SMALL_SKILLS,
    CommandError,
    Game,
    describe,
    parse_command,
    valid_commands,
)
from lit_agentrl.envs.discoveryworld_solvers import SOLVERS, solve
from lit_agentrl.envs.extras import check_requirements
from lit_agentrl.envs.solutions import play_through, say
from lit_agentrl.envs.splits import choose
from lit_agentrl.envs.states import History, digest
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

_EXTRA = "pip install 'lit_agentrl[science]'"
REQUIRES = {
    "discoveryworld": "pip install --no-deps discoveryworld==0.0.2",
    **dict.fromkeys(("pygame", "pathfinding", "termcolor", "matplotlib"), _EXTRA),
}
SEEDS_PER_SPLIT = 1000
_FIRST_SEED: dict[Split, int] = {"test": 0, "val": 10_000, "train": 20_000}
_MAX_COMMAND_CHARS_SHOWN = 80


class DiscoveryWorld:
    """Discovery in a world of 32 x 32 tiles (arXiv:2406.06769), by text commands such as `pickup 11878`.

    An episode opens with the task, the forms of commands, and what is seen; afterwards what came of the command, and
    what is seen now. The last line of a reply is the command; the library's own JSON is taken as well. The reward of a
    step is the change of the scorecard's `scoreNormalized`, so that the rewards of an episode sum to the score of the
    paper, at most 1. The scorecard itself is never shown. The episode ends when the task is over, which some tasks can
    be without success.

    Args:
        scenarios: Names, of a theme with its level (`proteomics-easy`) or of a small skill (`pick_and_place`); the ten
            small skills by default.
        max_steps: Commands after which an episode is cut short.
        view: `text`: what is seen in words, ground and walls without numbers; `json`: word for word what the library
            shows its own agents, some seven times as long.
        image: Also show what is around the player as a PNG, 768 x 512 pixels. Text policies refuse images.
        actions: `none`; or `offered`: the commands whose objects are there are in `Observation.actions`.
        state_key: `history`: states are equal after the same commands and answers; `seen`: where what is seen is alike,
            whatever is elsewhere.

    Raises:
        ValueError: An argument is not accepted, or a package is not installed.
    """

    traits = EnvTraits(deterministic=True, replay=True)
    requires = REQUIRES
    preload = ("discoveryworld.DiscoveryWorldAPI",)

    def __init__(
        self,
        *,
        scenarios: tuple[str, ...] = tuple(SMALL_SKILLS),
        max_steps: int = 100,
        view: Literal["text", "json"] = "text",
        image: bool = False,
        actions: Literal["none", "offered"] = "none",
        state_key: Literal["history", "seen"] = "history",
    ) -> None:
        check_requirements(type(self))
        check_some("scenarios", scenarios, SCENARIOS, each_once=True)
        check_at_least(1, max_steps=max_steps)
        self.scenarios = tuple(scenarios)
        self.max_steps = max_steps
        self.view = view
        self.image = image
        self.actions = actions
        self.state_key = state_key
        self._game: Game | None = None

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the world of a seed; outside training, evaluations go through them in order, the scenarios in turn."""
        number = choose(seed, len(self.scenarios) * SEEDS_PER_SPLIT, split=split, purpose="discoveryworld")
        place, which = divmod(number, len(self.scenarios))
        name, world = self.scenarios[which], _FIRST_SEED[split] + place
        data = {"scenario": name, "seed": world}
        return Task(id=f"{name}-{world}", family=f"discovery_{name}", split=split, seed=seed, data=data)

    def reset(self, task: Task) -> Observation:
        """Make the world.

        Raises:
            RuntimeError: The installed package has no such scenario.
        """
        self._game = None
        game = Game(task.data["scenario"], int(task.data["seed"]))
        self._steps, self._score = 0, game.progress.score
        self._history = History(task.id)
        self._game = game
        return self._observe(game, _opening(game))

    def step(self, action: Action) -> StepResult:
        """Carry out the command of the reply.

        Raises:
            RuntimeError: No episode is running.
        """
        game, self._game = self._game, None  # whatever fails below, fails the episode
        if game is None:
            raise RuntimeError("step was called without a running episode; call reset first")
        command = read_command(action.message.text)
        answer, valid = self._act(game, command)
        self._steps += 1
        progress = game.progress
        reward, self._score = progress.score - self._score, progress.score
        truncated = not progress.completed and self._steps >= self.max_steps
        self._history.add(command[:MAX_COMMAND_CHARS], answer, json.dumps(game.view, sort_keys=True))
        ended = progress.completed or truncated
        if not ended:
            self._game = game
        return StepResult(
            observation=Observation(messages=(Message.of("user", answer),)) if ended else self._observe(game, answer),
            reward=reward,
            terminated=progress.completed,
            truncated=truncated,
            success=progress.successful if ended else None,
            reward_parts={"invalid_actions": float(not valid)},
        )

    def close(self) -> None:
        """Give up the world."""
        self._game = None

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec] = ()) -> Demonstration:
        """Show how a script that knows the whole map solves a small skill.

        Raises:
            ValueError: There is no script for the scenario.
            RuntimeError: The script does not solve it within `max_steps`.
        """
        name = task.data["scenario"]
        if name not in SOLVERS:
            raise ValueError(
                f"env.init_args.scenarios: there is no solution of {name!r}; for a warm start choose from "
                f"{', '.join(SOLVERS)}"
            )
        player = DiscoveryWorld(
            scenarios=(name,),
            max_steps=self.max_steps,
            view=self.view,
            image=self.image,
            actions=self.actions,
            state_key=self.state_key,
        )
        opening = player.reset(task)
        assert player._game is not None
        unsolved = f"the script does not solve {task.id} within env.init_args.max_steps ({self.max_steps})"
        return play_through(task, opening, player.step, say(solve(player._game)), tools=tools, unsolved=unsolved)

    def _act(self, game: Game, command: str) -> tuple[str, bool]:
        """Return what came of a command, and whether it was one; a refused one takes no time in the world."""
        problem = refusal(command)
        if problem is not None:
            return problem, False
        try:
            parsed = parse_command(command)
        except CommandError as error:
            return str(error), False
        if (SAY_KEY in parsed) != game.in_dialog:
            what = f"choose an answer, as in: {SAY} 1" if game.in_dialog else "talk to somebody first"
            return f"Error: {command[:_MAX_COMMAND_CHARS_SHOWN]!r} is not possible now; {what}.", False
        return game.act(parsed)

    def _observe(self, game: Game, said: str) -> Observation:
        """Return what is read next; the last part is the state as far as it is seen."""
        seen = describe(game.view) if self.view == "text" else json.dumps(game.view)
        parts: list[ContentPart] = [TextPart(text=f"{said}\n\n")]
        if self.image:
            parts.append(ImagePart(data=game.image()))
        parts.append(TextPart(text=seen))
        key = self._history.key if self.state_key == "history" else digest(game.description, describe(game.view))
        valid = valid_commands(game) if self.actions == "offered" else ()
        return Observation(messages=(Message(role="user", content=tuple(parts)),), state_key=key, actions=valid)


def _opening(game: Game) -> str:
    forms = [" ".join([name, *takes]) for name, takes in COMMANDS.items()]
    return (
        f"{game.description}\n"
        f"Commands, OBJ being an object's number: {', '.join(forms)}; in a dialog: {SAY} NUMBER.\n"
        f"DIRECTION is {', '.join(DIRECTIONS)}; PLACE is {', '.join(game.places)}.\n"
        "Objects have to be carried, here, or in front of you; use takes an instrument first.\n"
        f"{HOW}"
    )
