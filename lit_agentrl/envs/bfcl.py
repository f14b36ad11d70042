"""BFCL v4, multi-turn: a user with a list of wishes, stateful simulated APIs, and the benchmark's own checks."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lit_agentrl.envs.arguments import check_at_least, check_some
from lit_agentrl.envs.bfcl_api import (
    CATEGORIES,
    DOCS,
    PRELOAD,
    REQUIRES,
    Dialogue,
    Dispatcher,
    dialogues,
    make_instances,
    needs_what_is_held_out,
    split_of_story,
    tool_specs,
    turn_is_right,
)
from lit_agentrl.envs.calls import call_message
from lit_agentrl.envs.extras import check_requirements
from lit_agentrl.envs.splits import choose
from lit_agentrl.envs.states import History
from lit_agentrl.rewards.grading import GraderError
from lit_agentrl.types import (
    Action,
    Demonstration,
    EnvTraits,
    Message,
    Observation,
    Split,
    StepResult,
    Task,
    ToolCall,
    ToolSpec,
)

_HANDED_OVER = "I have updated some more functions you can choose from. What about now?"
_NOTHING_TO_CALL = "I cannot do that with what I have been given."
_DONE = "Done."


class BFCLMultiTurn:
    """Tool use in several turns of a user, scored by state (Berkeley Function Calling Leaderboard v4).

    The observation offers the functions of the simulated APIs that a dialogue involves. A reply with calls runs them; a
    reply without ends the user's turn, which is then checked as the benchmark does: the APIs must be in the state that
    the right calls lead to, and every result of those must have been seen by now. The first wrong turn ends the
    episode, since all must be right. A dialogue has one to seven turns of the user.

    Where this differs from the benchmark's runner: calls are dispatched, never evaluated as Python; functions that are
    not offered cannot be called; precision set by one arithmetic call does not leak into the next; function
    descriptions lose the sentence that is the same for all functions of a class. The 800 tasks are the benchmark's
    test, split here by story for training on a part of them: say so beside any figure.

    Args:
        categories: Any of `base`, `miss_func` (a needed function is handed over a turn late), `miss_param` (the user
            forgets a detail at first) and `long_context` (results are padded to tens of thousands of characters).
        classes: Only dialogues whose API classes are all among these; all by default.
        max_user_turns: Dialogues end after this many turns of the user. 1 makes tasks that small models can learn.
        max_steps_per_turn: Replies with calls in one turn of the user; one more ends the episode as wrong.
        turn_weight: Paid at the end for the share of turns that were right, on top of 1 for all of them.

    Raises:
        ValueError: An argument is not accepted, or the package is not installed.
    """

    traits = EnvTraits(deterministic=True, replay=True)
    requires = REQUIRES
    preload = PRELOAD

    def __init__(
        self,
        *,
        categories: tuple[str, ...] = ("base",),
        classes: tuple[str, ...] | None = None,
        max_user_turns: int | None = None,
        max_steps_per_turn: int = 20,
        turn_weight: float = 0.0,
    ) -> None:
        check_requirements(type(self))
        check_some("categories", categories, CATEGORIES)
        check_some("classes", DOCS if classes is None else classes, DOCS)
        check_at_least(1, max_user_turns=max_user_turns, max_steps_per_turn=max_steps_per_turn)
        self.max_steps_per_turn = max_steps_per_turn
        self.turn_weight = turn_weight
        allowed = set(DOCS if classes is None else classes)
        self._dialogues: dict[str, tuple[Dialogue, int]] = {}
        self._ids: dict[Split, list[str]] = {"train": [], "val": [], "test": []}
        for dialogue in (dialogue for category in categories for dialogue in dialogues(category)):
            num_turns = min(len(dialogue.turns), max_user_turns or len(dialogue.turns))
            # A dialogue in which nothing is to be called would be solved by saying anything.
            solvable = any(dialogue.gold[:num_turns]) and not needs_what_is_held_out(dialogue)
            if not solvable or not allowed.issuperset(dialogue.classes):
                continue
            name = dialogue.id if num_turns == len(dialogue.turns) else f"{dialogue.id}_first_{num_turns}"
            self._dialogues[name] = (dialogue, num_turns)
            self._ids[split_of_story(dialogue.scenario)].append(name)
        self._episode: _Episode | None = None

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the dialogue of a seed; the four forms of a story are in the same split.

        Raises:
            ValueError: The options leave no dialogue in the split.
        """
        names = self._ids[split]
        if not names:
            counts = ", ".join(f"{name} {len(ids)}" for name, ids in self._ids.items())
            raise ValueError(f"env.init_args.classes: no dialogue is left for split {split!r} ({counts}); allow more")
        name = names[choose(seed, len(names), split=split, purpose="bfcl")]
        dialogue, num_turns = self._dialogues[name]
        return Task(
            id=name,
            family=f"bfcl_{dialogue.category}",
            split=split,
            seed=seed,
            data={"dialogue": dialogue.id, "category": dialogue.category, "num_turns": num_turns},
        )

    def reset(self, task: Task) -> Observation:
        """Begin the dialogue: the user's first message, and the functions.

        Raises:
            ValueError: The installed package has no such dialogue.
        """
        self._episode = _Episode(task, max_steps_per_turn=self.max_steps_per_turn)
        return self._episode.user_speaks()

    def step(self, action: Action) -> StepResult:
        """Run the calls, or end the user's turn.

        Raises:
            RuntimeError: No episode is running.
            GraderError: The benchmark's checks crashed.
        """
        if self._episode is None:
            raise RuntimeError("step was called without a running episode; call reset first")
        episode = self._episode
        calls = action.message.tool_calls
        if calls:
            outputs = episode.run(calls)
            if episode.steps_in_turn <= self.max_steps_per_turn:
                return StepResult(observation=episode.observe(outputs))
        elif episode.turn_is_right():
            episode.turn += 1
            if episode.turn < episode.num_turns:
                return StepResult(observation=episode.user_speaks())
        self._episode = None
        share = episode.turn / episode.num_turns
        success = episode.turn == episode.num_turns
        return StepResult(
            observation=None,
            reward=float(success) + self.turn_weight * share,
            reward_parts={"solved": float(success), "turns": share, "invalid_actions": float(episode.refused)},
            terminated=True,
            success=success,
        )

    def close(self) -> None:
        """Drop the running episode."""
        self._episode = None

    def demonstrate(self, task: Task, tools: Sequence[ToolSpec] = ()) -> Demonstration:
        """Show the benchmark's right calls, one message for each turn of the user, and then that the turn is over.

        Functions that are handed over late are described in the user's message; the tools of the demonstration are
        those of the beginning.
        """
        episode = _Episode(task, max_steps_per_turn=self.max_steps_per_turn)
        opening = episode.user_speaks()
        messages = list(opening.messages)
        while episode.turn < episode.num_turns:
            calls = [episode.gold.named(source) for source in episode.gold_calls]
            if calls:
                shown = call_message(calls, number=len(messages))
                messages += [shown, *episode.observe(episode.run(shown.tool_calls)).messages]
            messages.append(Message.of("assistant", _DONE if calls else _NOTHING_TO_CALL))
            episode.turn_is_right()  # keeps the right calls' own objects in step
            episode.turn += 1
            if episode.turn < episode.num_turns:
                messages += episode.user_speaks().messages
        return Demonstration(task=task, messages=tuple(messages), tools=(*tools, *opening.tools))


class _Episode:
    """The objects that the model acts on, and those that the right calls act on."""

    def __init__(self, task: Task, *, max_steps_per_turn: int) -> None:
        found = [entry for entry in dialogues(task.data["category"]) if entry.id == task.data["dialogue"]]
        if not found:
            raise ValueError(f"task {task.id!r}: the installed bfcl-eval has no {task.data['dialogue']!r}")
        self.dialogue = found[0]
        self.num_turns = int(task.data["num_turns"])
        self.turn = 0
        self.steps_in_turn = 0
        self.refused = 0
        self._called_in_turn = False
        self._results: list[str] = []
        self._model_instances = make_instances(self.dialogue)
        self._gold_instances = make_instances(self.dialogue)
        self._model = Dispatcher(self._model_instances)
        self.gold = Dispatcher(self._gold_instances)
        self._history = History(task.id)
        offered = {name: spec for cls in self.dialogue.classes for name, spec in tool_specs(cls).items()}
        self._all_tools = {name: spec for name, spec in offered.items() if name not in self.dialogue.excluded}

    @property
    def gold_calls(self) -> tuple[str, ...]:
        return self.dialogue.gold[self.turn]

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        later = {name for turn, names in self.dialogue.held_out.items() if turn > self.turn for name in names}
        return tuple(spec for name, spec in self._all_tools.items() if name not in later)

    def user_speaks(self) -> Observation:
        """Begin a turn of the user."""
        self.steps_in_turn = 0
        self._called_in_turn = False
        self._offered = self.tools
        self._names = {spec.name for spec in self._offered}
        text = self.dialogue.turns[self.turn]
        if text is None:
            handed = [self._all_tools[name] for name in self.dialogue.held_out.get(self.turn, ())]
            docs = [
                {"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in handed
            ]
            text = f"{json.dumps(docs)}\n{_HANDED_OVER}"
        self._history.add("turn")
        return self._observation((Message.of("user", text),))

    def observe(self, outputs: Sequence[tuple[str, str]]) -> Observation:
        """Return results by call id as what the model reads next."""
        return self._observation(tuple(Message.of("tool", text, tool_call_id=call_id) for call_id, text in outputs))

    def run(self, calls: Sequence[ToolCall]) -> list[tuple[str, str]]:
        """Run calls in order; those that cannot be run are told why, and counted."""
        self.steps_in_turn += 1
        outputs = []
        for call in calls:
            if call.error is not None or call.name not in self._names:
                self.refused += 1
                problem = call.error or f"there is no function {call.name!r}"
                outputs.append((call.id, f"Error: {problem}"))
                continue
            text = self._model.call(call.name, call.arguments)
            self._results.append(text)
            self._called_in_turn = True
            self._history.add_calls([(call, text)])
            outputs.append((call.id, text))
        return outputs

    def turn_is_right(self) -> bool:
        """Run the right calls of this turn and compare.

        Raises:
            GraderError: The benchmark's checks crashed.
        """
        try:
            expected = [self.gold.call(*self.gold.named(source)) for source in self.gold_calls]
            if not expected:
                return True
            return self._called_in_turn and turn_is_right(
                self._model_instances, self._gold_instances, self._results, expected, self.turn
            )
        except Exception as error:
            raise GraderError(f"the checks of {self.dialogue.id} raised {type(error).__name__}: {error}") from error

    def _observation(self, messages: tuple[Message, ...]) -> Observation:
        return Observation(messages=messages, tools=self._offered, state_key=self._history.key)
