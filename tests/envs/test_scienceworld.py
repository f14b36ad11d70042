"""ScienceWorld: its own sets of variations, rewards that sum to its score, and texts that are always the same."""

import pytest
from java_support import needs_java

from lit_agentrl.envs.scienceworld import REQUIRES, VARIATIONS, ScienceWorld
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.envs.splits import held_out_seed
from lit_agentrl.testing import check_environment
from lit_agentrl.types import Action, Message, Task

pytestmark = needs_java
SPLITS = ("train", "val", "test")


def task(name, variation=0, split="train"):
    data = {"task": name, "variation": variation}
    return Task(id=f"{name}-{variation}", family=f"science_{name}", split=split, seed=0, data=data)


def say(env, text):
    return env.step(Action(message=Message.of("assistant", text)))


@pytest.fixture(scope="module")
def env():
    made = ScienceWorld()
    yield made
    made.close()


def test_the_contract():
    spec = EnvSpec(
        class_path="ScienceWorld", init_args={"tasks": ["find-non-living-thing"], "simplifications": ["easy"]}
    )
    check_environment(spec, seeds=range(1), max_steps=2, tools=())


def test_the_sets_are_the_simulators(env):
    """Every variation is in exactly the set that the simulator has it in."""
    env.reset(task("boil"))
    game = env._game
    assert set(VARIATIONS) == set(game.texts("getTaskNames"))
    for name in ("boil", "identify-life-stages-2", "grow-plant", "inclined-plane-friction-named-surfaces"):
        game.call("load", name, 0, "", False)
        ours = [[pair[1] for pair in sorted(ScienceWorld(tasks=(name,))._pairs[split])] for split in SPLITS]
        theirs = [game.texts(f"getVariations{split}") for split in ("Train", "Dev", "Test")]
        assert [[str(number) for number in numbers] for numbers in ours] == theirs
    sizes = {name: game.call("getTaskMaxVariations", name) for name in VARIATIONS}
    assert sizes == {name: sum(parts) for name, parts in VARIATIONS.items()}
    assert sum(sizes.values()) == 7207


def test_evaluations_go_through_all_kinds_before_a_second_of_one():
    env = ScienceWorld()
    drawn = [env.sample_task(held_out_seed("test", number), "test") for number in range(30)]
    assert {one.data["task"] for one in drawn} == set(VARIATIONS)
    assert all(one.data["variation"] >= sum(VARIATIONS[one.data["task"]][:2]) for one in drawn)


def test_rewards_sum_to_the_score(env):
    shown = env.demonstrate(task("find-plant"))
    env.reset(shown.task)
    results = [say(env, message.text) for message in shown.messages if message.role == "assistant"]
    assert [result.success for result in results[:-1]] == [None] * (len(results) - 1)
    assert (results[-1].success, results[-1].terminated) == (True, True)
    assert sum(result.reward for result in results) == pytest.approx(1.0)
    assert len([result for result in results if result.reward > 0]) > 2  # paid on the way, not only at the end


@pytest.mark.parametrize("failure_return", [0.0, -1.0])
def test_a_mistake_ends_the_episode_and_takes_back_what_was_earned(failure_return):
    env = ScienceWorld(tasks=("find-plant",), failure_return=failure_return)
    try:
        env.reset(task("find-plant"))
        earned = say(env, "open door to greenhouse").reward + say(env, "go to greenhouse").reward
        assert earned > 0
        last = say(env, "focus on agent")
        assert (last.terminated, last.success) == (True, False)
        assert earned + last.reward == pytest.approx(failure_return)
        with pytest.raises(RuntimeError, match="call reset first"):
            say(env, "look around")
    finally:
        env.close()


def test_texts_do_not_depend_on_what_was_played_before(env):
    """A process of its own, after other tasks, tells the same story to the letter."""
    other = ScienceWorld()
    try:
        for warm_up in ("boil", "chemistry-mix"):
            other.reset(task(warm_up))
            say(other, "look around")
        shown = other.demonstrate(task("use-thermometer", 1))
        assert env.reset(shown.task).messages == shown.messages[:1]
        for command, answer in zip(shown.messages[1::2], shown.messages[2::2], strict=False):
            assert say(env, command.text).observation.messages == (answer,)
    finally:
        other.close()


def test_a_demonstration_does_not_disturb_a_running_episode(env):
    env.reset(task("find-plant"))
    before = say(env, "look around").observation.messages
    env.demonstrate(task("find-non-living-thing"))
    assert say(env, "look around").observation.messages == before


def test_what_cannot_be_understood_is_told_counted_and_costs_a_step():
    env = ScienceWorld(max_steps=4)
    try:
        env.reset(task("boil"))
        for reply, answer in (
            ("fly to the moon", "No known action matches that input."),
            ("", "Error: the reply is empty."),
            ("x" * 10_000, "Error: the command is longer than 200 characters."),
        ):
            result = say(env, reply)
            assert result.observation.messages[0].text.startswith(answer)
            assert result.reward_parts == {"invalid_actions": 1.0}
            assert result.reward == 0
        last = say(env, "\ud800 Ω\x00")
        assert (last.truncated, last.terminated, last.success) == (True, False, False)
    finally:
        env.close()


def test_room_and_valid_commands_are_there_when_asked_for():
    env = ScienceWorld(look=True, actions="offered", state_key="seen")
    try:
        opening = env.reset(task("find-plant"))
        assert "look around" in opening.actions
        result = say(env, "open door to bedroom")
        assert "In your inventory, you see:" in result.observation.messages[0].content[-1].text
        assert result.observation.state_key != opening.state_key
        assert say(env, "look around").observation.state_key == result.observation.state_key
    finally:
        env.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ["cook"]}, r"env.init_args.tasks must be some of boil, .*, got \['cook'\]"),
        ({"tasks": []}, r"env.init_args.tasks must be some of boil, .*, got \[\]"),
        ({"simplifications": ["hard"]}, r"env.init_args.simplifications must be some of easy, .*, got \['hard'\]"),
        ({"simplifications": ["noElectricalAction"]}, r"noElectricalAction makes power-component impossible"),
        ({"max_steps": 0}, r"env.init_args.max_steps must be at least 1"),
        ({"max_variations": 0}, r"env.init_args.max_variations must be at least 1"),
        ({"timeout_s": 0}, r"env.init_args.timeout_s must be greater than 0"),
        ({"heap_mb": 1}, r"env.init_args.heap_mb must be at least 128"),
        ({"actions": "all"}, r"env.init_args.actions"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        EnvSpec(class_path="ScienceWorld", init_args=options).build()


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(ScienceWorld, "requires", {"no_such_module": REQUIRES["scienceworld"]})
    with pytest.raises(ValueError, match=r"pip install 'lit_agentrl\[science\]'$"):
        EnvSpec(class_path="ScienceWorld").check()
