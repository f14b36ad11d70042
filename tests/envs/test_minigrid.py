"""MiniGrid and BabyAI: what is seen in words, missions in one split each, and the bot's demonstrations."""

import io

import pytest
from PIL import Image

from lit_agentrl.envs.minigrid_env import ACTIONS, REQUIRES, BabyAI, MiniGrid
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.testing import check_environment
from lit_agentrl.types import Action, ImagePart, Message, Task

LEVELS = [
    "BabyAI-GoToLocal-v0",
    "BabyAI-GoToSeqS5R2-v0",
    "BabyAI-OpenDoorsOrderN2-v0",
    "BabyAI-PickupLoc-v0",
    "BabyAI-PutNextS5N1-v0",
    "BabyAI-UnlockLocal-v0",
]


def say(env, text):
    return env.step(Action(message=Message.of("assistant", text)))


@pytest.mark.parametrize("level", LEVELS)
def test_the_contract_with_demonstrations(level):
    check_environment(
        EnvSpec(class_path="BabyAI", init_args={"levels": [level], "array": True}), seeds=range(4), tools=()
    )


@pytest.mark.parametrize("level", ["MiniGrid-DoorKey-6x6-v0", "MiniGrid-Dynamic-Obstacles-6x6-v0"])
def test_the_contract_with_images(level):
    options = {"levels": [level], "image": "view"}
    check_environment(EnvSpec(class_path="MiniGrid", init_args=options), seeds=range(4), tools=())


def room(env, text, *, mission="find out"):
    """Begin an episode in a room drawn by hand: # wall, k red key, d locked yellow door, > the agent, facing right."""
    from minigrid.core.grid import Grid
    from minigrid.core.world_object import Door, Key, Wall

    rows = text.split()
    task = Task(id="x", family="x", split="train", seed=0, data={"level": env.levels[0], "seed": 0})
    env.reset(task)
    world = env._world
    world.grid = Grid(len(rows[0]), len(rows))
    made = {"#": Wall, "k": lambda: Key("red"), "d": lambda: Door("yellow", is_locked=True)}
    for down, row in enumerate(rows):
        for across, sign in enumerate(row):
            if sign in made:
                world.grid.set(across, down, made[sign]())
            if sign == ">":
                world.agent_pos, world.agent_dir = (across, down), 0
    world.width, world.height = len(rows[0]), len(rows)


def test_the_view_is_told_relative_to_the_agent():
    env = MiniGrid(levels=("MiniGrid-DoorKey-6x6-v0",))
    room(env, "####### #>.k.d# #..k..# #######")
    # The agent faces right, so what is drawn below it is on its right.
    seen = say(env, "left").observation.messages[0].content[-1].text
    assert seen == "You see a red key 2 right. Walls: 1 forward, 1 left."  # the door is four cells away, out of view
    seen = say(env, "right").observation.messages[0].content[-1].text
    expected = "You see a red key 2 forward; a red key 2 forward and 1 right; a locked yellow door 4 forward."
    assert seen == f"{expected} Walls: 5 forward, 1 left, 2 right."
    say(env, "forward")
    seen = say(env, "pick up").observation.messages[0].content[-1].text
    expected = "You see a red key 1 forward and 1 right; a locked yellow door 3 forward."
    assert seen == f"{expected} Walls: 4 forward, 1 left, 2 right. You carry a red key."


def test_reward_is_the_packages_and_success_is_above_zero():
    env = BabyAI(levels=("BabyAI-GoToLocalS6N2-v0",))
    shown = env.demonstrate(env.sample_task(0, "train"))
    env.reset(shown.task)
    replies = [message.text for message in shown.messages if message.role == "assistant"]
    results = [say(env, reply) for reply in replies]
    assert results[-1].reward == pytest.approx(1 - 0.9 * len(replies) / env._world.max_steps)
    assert (results[-1].terminated, results[-1].success) == (True, True)


def test_what_is_no_action_moves_nothing_is_told_counted_and_costs_a_step():
    env = BabyAI(max_steps=3)
    opening = env.reset(env.sample_task(0, "train"))
    first, second, third = say(env, "fly"), say(env, ""), say(env, "left or right")
    assert first.observation.state_key == opening.state_key
    assert (
        first.observation.messages[0].content[0].text.startswith("Error: 'fly' is no action. Answer with one of: left,")
    )
    assert [result.reward_parts for result in (first, second, third)] == [{"invalid_actions": 1.0}] * 3
    assert (third.truncated, third.terminated, third.success, third.reward) == (True, False, False, 0.0)


def test_no_layout_is_in_two_splits():
    env = BabyAI(levels=("BabyAI-GoToObjS4-v0",))
    ids = {split: {env.sample_task(seed, split).id for seed in range(60)} for split in ("train", "val", "test")}
    assert len(ids["train"]) > 20
    assert not ids["train"] & ids["val"]
    assert not ids["train"] & ids["test"]
    assert not ids["val"] & ids["test"]


def test_drawing_a_task_does_not_disturb_the_running_episode():
    env = BabyAI()
    env.reset(env.sample_task(0, "train"))
    before = say(env, "left").observation
    env.sample_task(1, "train")
    env.demonstrate(env.sample_task(2, "train"))
    say(env, "right")
    assert say(env, "left").observation == before


@pytest.mark.parametrize(("image", "size"), [("view", (56, 56)), ("full", (48, 48))])
def test_images_are_pngs_of_what_is_there(image, size):
    env = MiniGrid(levels=("MiniGrid-DoorKey-6x6-v0",), image=image)
    observation = env.reset(env.sample_task(0, "train"))
    (part,) = [part for part in observation.messages[0].content if isinstance(part, ImagePart)]
    shown = Image.open(io.BytesIO(part.data))
    assert (shown.size, shown.mode) == (size, "RGB")
    frame = env._world.get_frame(tile_size=8, agent_pov=image == "view", highlight=image == "full")
    assert shown.tobytes() == frame.tobytes()


def test_numbers_for_value_functions():
    env = BabyAI(array=True)
    opening = env.reset(env.sample_task(0, "train"))
    assert len(opening.array) == 7 * 7 * 3 + 4
    assert sum(opening.array[-4:]) == 1.0
    assert opening.actions == ACTIONS
    assert say(env, "left").observation.array[-4:] != opening.array[-4:]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("MiniGrid", {"levels": ["CartPole-v1"]}, r"env.init_args.levels must be names of levels, such as MiniGrid-"),
        ("BabyAI", {"levels": ["MiniGrid-DoorKey-6x6-v0"]}, r"env.init_args.levels must be names .* such as BabyAI-"),
        ("BabyAI", {"levels": []}, r"env.init_args.levels"),
        ("BabyAI", {"max_steps": 0}, r"env.init_args.max_steps must be at least 1"),
        ("BabyAI", {"tile_pixels": 0}, r"env.init_args.tile_pixels must be at least 1"),
        ("BabyAI", {"image": "all"}, r"env.init_args.image"),
    ],
)
def test_bad_input(name, options, message):
    with pytest.raises(ValueError, match=message):
        EnvSpec(class_path=name, init_args=options).build()


def test_a_level_with_one_layout_is_refused_at_its_first_task():
    with pytest.raises(ValueError, match=r"env.init_args.levels: none of 1000 draws .* 1 different ones"):
        MiniGrid(levels=("MiniGrid-Empty-5x5-v0",)).sample_task(0, "val")


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(BabyAI, "requires", {"no_such_module": REQUIRES["minigrid"]})
    with pytest.raises(ValueError, match=r"pip install 'lit_agentrl\[games\]'$"):
        EnvSpec(class_path="BabyAI").check()
