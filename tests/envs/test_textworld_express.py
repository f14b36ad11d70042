"""TextWorldExpress: eight games, the package's folds, rewards that sum to its score."""

import json

import pytest
from java_support import needs_java

from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.envs.splits import held_out_seed
from lit_agentrl.envs.textworld_express import GAMES, REQUIRES, TextWorldExpress
from lit_agentrl.testing import check_environment
from lit_agentrl.types import Action, Message

pytestmark = needs_java


def say(env, text):
    return env.step(Action(message=Message.of("assistant", text)))


@pytest.fixture(scope="module")
def keeper():
    """Keeps the Java process for all tests of this file."""
    env = TextWorldExpress()
    env._connected()
    yield env
    env.close()


@pytest.fixture
def make(keeper):
    made = []

    def build(games=None, **options):
        made.append(TextWorldExpress(games=games, **options))
        return made[-1]

    yield build
    for env in made:
        env.close()


@pytest.mark.parametrize("game", GAMES)
def test_the_contract(keeper, game):
    check_environment(EnvSpec(class_path="TextWorldExpress", init_args={"games": {game: {}}}), seeds=range(4), tools=())


def test_the_contract_with_everything_said(keeper):
    options = {"games": {"mapreader": {}, "twc": {}}, "actions": "told", "look": True, "state_key": "seen"}
    check_environment(EnvSpec(class_path="TextWorldExpress", init_args=options), seeds=range(4), tools=())


def test_games_properties_and_seeds_are_the_packages(keeper):
    game = keeper._connected()
    keeper._loaded = ""
    assert set(game.texts("getGameNames")) == set(GAMES)
    for name, properties in GAMES.items():
        told = game.call("load", name, "no_such_property=1").partition("Known properties: ")[2].strip(". ")
        assert {part.removesuffix("None") for part in told.split(", ")} - {""} == set(properties)
    game.call("load", "coin", "")
    for split, name in (("train", "Train"), ("val", "Dev"), ("test", "Test")):
        ours = {keeper.sample_task(held_out_seed(split, n), split).data["seed"] for n in range(4000)}
        theirs = {int(seed) for seed in game.texts(f"getSeeds{name}")}
        assert ours <= theirs
        assert len(theirs) == 1000


def test_games_of_one_process_do_not_disturb_each_other(make):
    """The same solution, alone and with a command of another game between any two of its own."""
    env, other = make({"cookingworld": {}}), make({"sorting": {}, "twc": {}}, max_steps=10_000)
    shown = env.demonstrate(env.sample_task(3, "train"))
    assert env.reset(shown.task).messages == shown.messages[:1]
    other.reset(other.sample_task(1, "train"))
    for command, answer in zip(shown.messages[1::2], shown.messages[2::2], strict=False):
        say(other, "look around")
        assert say(env, command.text).observation.messages == (answer,)


@pytest.mark.parametrize("game", GAMES)
def test_rewards_sum_to_the_score(make, game):
    env = make({game: {}})
    shown = env.demonstrate(env.sample_task(0, "test"))
    env.reset(shown.task)
    results = [say(env, message.text) for message in shown.messages if message.role == "assistant"]
    assert sum(result.reward for result in results) == pytest.approx(1.0)
    assert (results[-1].success, results[-1].terminated) == (True, True)


@pytest.mark.parametrize("failure_return", [0.0, -1.0])
def test_a_mistake_ends_the_episode_and_takes_back_what_was_earned(make, failure_return):
    env = make({"sorting": {}}, failure_return=failure_return)
    shown = env.demonstrate(env.sample_task(0, "train"))
    env.reset(shown.task)
    right = [message.text for message in shown.messages if message.role == "assistant"]
    earned = say(env, right[0]).reward + say(env, right[1]).reward
    assert earned > 0
    largest = right[-2].removeprefix("take ")
    say(env, f"take {largest}")
    last = say(env, f"put {largest} in box")
    assert (last.terminated, last.success) == (True, False)
    assert earned + last.reward == pytest.approx(failure_return)


def test_what_cannot_be_understood_is_told_counted_and_costs_a_step(make):
    env = make({"coin": {}}, max_steps=3)
    env.reset(env.sample_task(0, "train"))
    first, second, third = say(env, "fly"), say(env, "  "), say(env, "y" * 201)
    assert [result.reward_parts for result in (first, second, third)] == [{"invalid_actions": 1.0}] * 3
    assert first.observation.messages[0].text == "Unknown action: I'm not sure what you mean."
    assert (third.truncated, third.success) == (True, False)


def test_valid_commands_are_offered_or_told(make):
    env = make({"coin": {}}, actions="told")
    opening = env.reset(env.sample_task(0, "train"))
    assert opening.messages[0].content[-1].text == f"Commands: {', '.join(opening.actions)}"
    assert "look around" in opening.actions
    silent = make({"coin": {}}, actions="offered").reset(env.sample_task(0, "train"))
    assert silent.actions == opening.actions
    assert "Commands:" not in silent.messages[0].text


def test_tasks_are_plain_and_name_their_game():
    env = TextWorldExpress(games={"coin": {"numLocations": 3}})
    task = env.sample_task(7, "val")
    assert json.loads(json.dumps(dict(task.data))) == {
        "game": "coin",
        "properties": {"numLocations": 3},
        "seed": task.data["seed"],
    }
    assert task.family == "twx_coin"


def test_a_property_out_of_range_is_named_at_the_first_episode(make):
    env = make({"coin": {"numLocations": 999}})
    with pytest.raises(ValueError, match=r"env.init_args.games: coin: Number of locations"):
        env.reset(env.sample_task(0, "train"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"games": {"chess": {}}}, r"env.init_args.games must be some of cookingworld, .*chess"),
        ({"games": {}}, r"env.init_args.games must be some of"),
        ({"games": {"coin": {"rooms": 3}}}, r"coin has no property 'rooms'; it accepts: numLocations"),
        ({"games": {"sorting": {"rooms": 3}}}, r"sorting has no property 'rooms'; it accepts: none"),
        ({"max_steps": 0}, r"env.init_args.max_steps must be at least 1"),
        ({"timeout_s": -1}, r"env.init_args.timeout_s must be greater than 0"),
        ({"heap_mb": 1}, r"env.init_args.heap_mb must be at least 64"),
        ({"state_key": "all"}, r"env.init_args.state_key"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        EnvSpec(class_path="TextWorldExpress", init_args=options).build()


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(TextWorldExpress, "requires", {"no_such_module": REQUIRES["textworld_express"]})
    with pytest.raises(ValueError, match=r"pip install 'lit_agentrl\[games\]'$"):
        EnvSpec(class_path="TextWorldExpress").check()
