"""A known solution becomes a demonstration, or an error."""

import pytest

from lit_agentrl.envs.solutions import play_through, say
from lit_agentrl.types import Message, Observation, StepResult, Task, ToolSpec

TASK = Task(id="t", family="f", split="train", seed=0)
OWN, OFFERED = (ToolSpec(name=name, description="", parameters={"type": "object"}) for name in ("own", "offered"))
OPENING = Observation(messages=(Message.of("user", "Go."),), tools=(OFFERED,))


def game(*, wins_at):
    said = []

    def step(action):
        said.append(action.message.text)
        ended = len(said) == wins_at
        seen = None if ended else Observation(messages=(Message.of("user", f"seen {len(said)}"),))
        return StepResult(observation=seen, terminated=ended, success=True if ended else None)

    return step


def play(step, replies):
    return play_through(TASK, OPENING, step, replies, tools=(OWN,), unsolved="it does not solve t")


def test_what_was_said_is_shown_up_to_the_end_of_the_episode():
    shown = play(game(wins_at=2), say(["a", "b", "never said"]))
    assert [message.text for message in shown.messages] == ["Go.", "a", "seen 1", "b"]
    assert (shown.task, shown.tools) == (TASK, (OWN, OFFERED))


def test_replies_are_asked_for_one_by_one():
    asked = []

    def replies():
        for number in range(9):
            asked.append(number)
            yield Message.of("assistant", str(number))

    play(game(wins_at=3), replies())
    assert asked == [0, 1, 2]


@pytest.mark.parametrize("replies", [[], ["a"]])
def test_a_solution_that_does_not_solve_is_an_error(replies):
    with pytest.raises(RuntimeError, match="it does not solve t"):
        play(game(wins_at=2), say(replies))
