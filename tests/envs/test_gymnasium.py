"""Gymnasium environments keep the contract of `Environment`, as text and as arrays."""

import sys

import gymnasium
import pytest

from lit_agentrl.envs.gymnasium_env import GymnasiumEnv
from lit_agentrl.envs.gymnasium_text import read_action
from lit_agentrl.testing import check_environment
from lit_agentrl.types import Action, Message

LAKE = {"id": "FrozenLake-v1", "options": {"is_slippery": False}}
TAXI = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gymnasium.registry)
CLIFF = next(name for name in ("CliffWalking-v1", "CliffWalking-v0") if name in gymnasium.registry)


def play(env, *replies, seed=0):
    """Reset, reply, and return all step results."""
    env.reset(env.sample_task(seed, "train"))
    return [env.step(Action(message=Message.of("assistant", text))) for text in replies]


@pytest.mark.parametrize(
    "options",
    [
        LAKE,
        {"id": "FrozenLake-v1"},
        {"id": TAXI},
        {"id": CLIFF},
        {"id": "Blackjack-v1"},
        {"id": "CartPole-v1"},
        {"id": "MountainCar-v0", "success_return": -150.0},
    ],
    ids=lambda options: options["id"],
)
def test_the_contract(options):
    check_environment(lambda: GymnasiumEnv(**options))


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("left", 0),
        (" Left. ", 0),
        ("**LEFT**", 0),
        ("0", 0),
        ("I go left.", 0),
        ("left, left and left again", 0),
        ("pick_up", 2),
        ("Pick-Up!", 2),
        ("I will pick up now", 2),
        ("left or right", None),
        ("", None),
        ("leftwards", None),
        ("3", None),
        ("-1", None),
        ("9" * 5000, None),
    ],
)
def test_what_is_understood(reply, number):
    assert read_action(reply, ["left", "right", "pick up"]) == number


def test_an_invalid_reply_moves_nothing_and_costs_a_step():
    env = GymnasiumEnv(**LAKE, max_steps=3, invalid_reward=-0.5)
    first, second, third = play(env, "right", "jump", "fly")
    assert second.observation.state_key == first.observation.state_key == "row 0 column 1"
    assert (
        second.observation.messages[0].text
        == "Error: 'jump' is no action. Answer with one of: left, down, right, up.\n\nrow 0 column 1"
    )
    assert second.reward == -0.5
    assert (third.truncated, third.terminated, third.success) == (True, False, False)


def test_the_goal_is_success_and_a_hole_is_not():
    *_, goal = play(GymnasiumEnv(**LAKE), "down", "down", "right", "right", "down", "right")
    assert (goal.terminated, goal.truncated, goal.success, goal.reward) == (True, False, True, 1.0)
    *_, hole = play(GymnasiumEnv(**LAKE), "right", "down")
    assert (hole.terminated, hole.success, hole.reward) == (True, False, 0.0)


def test_arriving_at_the_last_allowed_step_is_an_end_and_no_cut():
    *_, goal = play(GymnasiumEnv(**LAKE, max_steps=6), "down", "down", "right", "right", "down", "right")
    assert (goal.terminated, goal.truncated) == (True, False)


def test_a_return_decides_success_where_the_end_does_not():
    env = GymnasiumEnv(id="CartPole-v1", max_steps=200)
    results = play(env, "left")
    while results[-1].success is None:
        results.append(env.step(Action(message=Message.of("assistant", "left"))))
    assert len(results) < 20  # pushed to one side only, it falls
    assert (results[-1].terminated, results[-1].success) == (True, False)
    *_, stands = play(GymnasiumEnv(id="CartPole-v1", max_steps=5, success_return=5.0), *["left", "right"] * 2, "left")
    assert (stands.truncated, stands.success) == (True, True)


def test_states_as_numbers():
    lake = GymnasiumEnv(**LAKE)
    observation = lake.reset(lake.sample_task(0, "train"))
    assert observation.array == (1.0, *[0.0] * 15)
    assert observation.actions == ("left", "down", "right", "up")
    # Opens with rules and state in two parts; a value function reads the last one.
    assert [part.text for part in observation.messages[0].content][-1] == "row 0 column 0"
    blackjack = GymnasiumEnv(id="Blackjack-v1")
    array = blackjack.reset(blackjack.sample_task(0, "train")).array
    assert (len(array), sum(array)) == (32 + 11 + 2, 3.0)
    cart = GymnasiumEnv(id="CartPole-v1")
    observation = cart.reset(cart.sample_task(0, "train"))
    assert len(observation.array) == 4
    assert observation.state_key is None


def test_the_seed_of_the_task_decides_the_episode():
    env = GymnasiumEnv(id="CartPole-v1")
    one, other = (env.reset(env.sample_task(seed, "train")).array for seed in (1, 2))
    assert one != other
    assert env.reset(env.sample_task(1, "train")).array == one


def test_no_seed_is_in_two_splits():
    env = GymnasiumEnv(**LAKE)
    seeds = {split: {env.sample_task(n, split).data["seed"] for n in range(300)} for split in ("train", "val", "test")}
    assert len(seeds["train"]) == 300
    assert not seeds["train"] & seeds["val"]
    assert not seeds["train"] & seeds["test"]
    assert not seeds["val"] & seeds["test"]


def test_without_gymnasium_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ValueError, match=r"pip install 'lit_agentrl\[games\]'$"):
        GymnasiumEnv(id="CartPole-v1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "NoSuchThing-v0"}, "env.init_args.id is 'NoSuchThing-v0'"),
        ({"id": "Pendulum-v1", "success_return": 0.0}, "only Discrete is accepted"),
        ({"id": "FrozenLake-v1", "options": {"wet": True}}, "env.init_args.options"),
        ({"id": "FrozenLake-v1", "max_steps": 0}, "env.init_args.max_steps is 0"),
        ({"id": "FrozenLake-v1", "actions": ["a", "b"]}, "env.init_args.actions"),
        ({"id": "FrozenLake-v1", "actions": ["a", "A.", "b", "c"]}, "env.init_args.actions"),
        ({"id": "MountainCar-v0"}, "env.init_args.success_return"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        GymnasiumEnv(**options)
