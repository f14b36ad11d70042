"""DiscoveryWorld: scripts solve the small skills, rewards sum to the scorecard's score, and a seed says it all."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from extras_support import needs_discoveryworld

from lit_agentrl.envs.discoveryworld import DiscoveryWorld
from lit_agentrl.envs.discoveryworld_game import (
    COMMANDS,
    SCENARIOS,
    SMALL_SKILLS,
    TERRAIN,
    CommandError,
    Game,
    describe,
    parse_command,
    valid_commands,
)
from lit_agentrl.envs.discoveryworld_solvers import SOLVERS
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.envs.splits import held_out_seed
from lit_agentrl.testing import check_environment
from lit_agentrl.types import Action, ImagePart, Message, Task

ROOT = Path(__file__).parents[2]


def task(scenario, seed=1, split="train"):
    data = {"scenario": scenario, "seed": seed}
    return Task(id=f"{scenario}-{seed}", family=f"discovery_{scenario}", split=split, seed=0, data=data)


def give(env, text):
    return env.step(Action(message=Message.of("assistant", text)))


def play(env, scenario, *commands, seed=1):
    env.reset(task(scenario, seed))
    return [give(env, command) for command in commands]


@needs_discoveryworld
def test_the_contract():
    spec = EnvSpec(class_path="DiscoveryWorld", init_args={"scenarios": ["pick_and_give", "search"]})
    check_environment(spec, seeds=range(1), max_steps=3, tools=())


@needs_discoveryworld
def test_our_names_are_all_of_the_librarys_scenarios_and_actions():
    from discoveryworld.ActionHistory import getActionDescriptions
    from discoveryworld.ScenarioMaker import SCENARIO_INFOS, getInternalScenarioName

    theirs = {(name, level) for name, info in SCENARIO_INFOS.items() for level in info["difficulty"]}
    assert set(SCENARIOS.values()) == theirs - {("Tutorial", "Normal")}
    assert all(getInternalScenarioName(*pair) for pair in SCENARIOS.values())
    assert {name.lower() for name in getActionDescriptions()} == set(COMMANDS)
    assert (len(SCENARIOS), len(SMALL_SKILLS)) == (34, 10)


@needs_discoveryworld
@pytest.mark.parametrize("scenario", SOLVERS)
def test_scripts_solve_the_small_skills(scenario):
    env = DiscoveryWorld(scenarios=(scenario,))
    for seed in (10_000,) if scenario != "search" else (10_000, 20_000):  # furniture stands around the first flag
        shown = env.demonstrate(task(scenario, seed))
        replies = [message.text for message in shown.messages if message.role == "assistant"]
        results = play(env, scenario, *replies, seed=seed)
        assert [result.success for result in results] == [None] * (len(results) - 1) + [True]
        assert sum(result.reward for result in results) == pytest.approx(1.0)


@needs_discoveryworld
def test_rewards_follow_the_scorecard_which_is_not_shown():
    env = DiscoveryWorld()
    opening = env.reset(task("pick_and_place"))
    thing, pot = env._game.task.objectToMove, env._game.task.destinationContainer
    assert f"pick up the `{thing.name}` and place it in the `{pot.name}`" in opening.messages[0].text
    said = [opening.messages[0].text]
    earned = []
    for command in (f"teleport_to_object {thing.uuid}", f"pickup {thing.uuid}", f"teleport_to_object {pot.uuid}"):
        result = give(env, command)
        earned.append(result.reward)
        said.append(result.observation.messages[0].text)
    assert earned == [0.0, 0.5, 0.0]
    assert f"I picked up the {thing.name}." in said[2]
    last = give(env, f"put {thing.uuid} {pot.uuid}")
    assert (last.reward, last.terminated, last.success) == (0.5, True, True)
    assert not any("score" in text.lower() for text in said)
    with pytest.raises(RuntimeError, match="call reset first"):
        give(env, "drop 1")


@needs_discoveryworld
def test_a_task_that_is_over_without_success_keeps_what_was_earned():
    env = DiscoveryWorld()
    env.reset(task("house"))  # the flag that is carried has to be dropped in a room; here it falls at the door
    results = [give(env, f"drop {env._game.task.flag.uuid}")]
    assert [(result.terminated, result.success, result.reward) for result in results] == [(True, False, 0.0)]


@needs_discoveryworld
@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("", "Error: the reply is empty."),
        ("fly north", "Error: there is no command 'fly'; there are: pickup"),
        ("pickup", "Error: pickup takes OBJ"),
        ("pickup the shovel", "Error: pickup takes OBJ"),
        ("put 1", "Error: put takes OBJ and OBJ"),
        ("move_direction up", "Error: move_direction takes DIRECTION"),
        ("teleport_to_location", "Error: teleport_to_location takes PLACE"),
        ("discovery_feed_get_updates 3", "Error: discovery_feed_get_updates takes nothing"),
        ("say yes", "Error: say takes the number of an answer"),
        ("say 1", "Error: 'say 1' is not possible now; talk to somebody first."),
        ('{"action": "DANCE"}', "Error: there is no command 'dance'"),
        ("{}", "Error: there is no command ''"),
        ("{", "Error: this is no JSON."),
        ("pickup 99999", "arg1: Could not find object with UUID '99999'"),
    ],
)
def test_what_cannot_be_done_is_told_counted_and_costs_a_step(command, answer):
    env = DiscoveryWorld(max_steps=2)
    first, last = play(env, "search", command, command)
    assert answer in first.observation.messages[0].text
    assert (first.reward_parts, first.reward) == ({"invalid_actions": 1.0}, 0.0)
    assert (last.truncated, last.terminated, last.success) == (True, False, False)


@needs_discoveryworld
def test_what_the_world_refuses_is_an_action():
    env = DiscoveryWorld()
    (result,) = play(env, "search", "teleport_to_location nowhere")
    assert "That's not a known teleport location" in result.observation.messages[0].text
    assert result.reward_parts == {"invalid_actions": 0.0}


def test_commands_and_the_librarys_json_are_read_alike():
    assert parse_command("PUT #5 7") == {"action": "PUT", "arg1": 5, "arg2": 7}
    assert parse_command('{"action": "USE", "arg1": 5, "arg2": "7"}') == {"action": "USE", "arg1": 5, "arg2": 7}
    assert parse_command("teleport_to_location science lab") == {
        "action": "TELEPORT_TO_LOCATION",
        "arg1": "science lab",
    }
    assert parse_command('{"chosen_dialog_option_int": 2}') == parse_command("say 2")
    for wrong in ('{"action": ["PUT"], "arg1": {}}', '{"chosen_dialog_option_int": null}', "[" * 5, "{" * 180):
        with pytest.raises(CommandError):
            parse_command(wrong)


@needs_discoveryworld
def test_a_dialog_offers_answers_and_nothing_else():
    env = DiscoveryWorld(actions="offered")
    env.reset(task("dialog"))
    who = env._game.task.scoringInfo["agentToTalkTo"].uuid
    give(env, f"teleport_to_object {who}")
    asked = give(env, f"talk {who}").observation
    assert asked.actions == tuple(f"say {number}" for number in range(1, 10))
    assert "You are told: I'd like you to select the option that says" in asked.messages[0].content[-1].text
    away = give(env, "move_direction north")
    assert "is not possible now; choose an answer" in away.observation.messages[0].text
    assert give(env, "say 9").reward_parts == {"invalid_actions": 0.0}


@needs_discoveryworld
def test_offered_commands_name_what_is_there():
    game = Game("pick_and_place", 1)
    offered = valid_commands(game)
    assert len(set(offered)) == len(offered)
    for command in offered:
        parse_command(command)
    near = [entry for entries in game.view["nearbyObjects"]["objects"].values() for entry in entries]
    named = describe(game.view)
    for entry in near:
        if entry["name"] not in TERRAIN and entry["name"] != "agent":
            assert f"teleport_to_object {entry['uuid']}" in offered
            assert str(entry["uuid"]) in named


@needs_discoveryworld
def test_the_librarys_own_view_and_a_picture():
    env = DiscoveryWorld(view="json", image=True)
    (message,) = env.reset(task("doors")).messages
    assert json.loads(message.content[-1].text)["agentLocation"]["faceDirection"] == "south"
    (picture,) = [part for part in message.content if isinstance(part, ImagePart)]
    assert picture.data.startswith(b"\x89PNG")
    assert (int.from_bytes(picture.data[16:20]), int.from_bytes(picture.data[20:24])) == (768, 512)
    assert len(picture.data) > 5000  # all of one colour it would be 2,000 bytes


@needs_discoveryworld
def test_states_are_equal_by_what_was_done_or_by_what_is_seen():
    wait = ["discovery_feed_get_updates"] * 4  # until the welcome is no news any more
    there_and_back = ("move_direction south", "move_direction north")
    for kind, equal in (("history", False), ("seen", True)):
        env = DiscoveryWorld(state_key=kind)
        start = play(env, "search", *wait, "rotate_direction north")[-1]
        back = play(env, "search", *wait, "rotate_direction north", *there_and_back)[-1]
        assert (start.observation.state_key == back.observation.state_key) is equal


STORY = """
import sys
from lit_agentrl.envs.discoveryworld_game import Game, describe, parse_command, valid_commands
import random
for scenario in sys.argv[1:]:
    game, draws = Game(scenario, 3), random.Random(5)
    for _ in range(12):
        game.act(parse_command(draws.choice(valid_commands(game))))
        print(describe(game.view))
"""


@needs_discoveryworld
def test_a_seed_says_it_all():
    """In processes of their own, with other hashes of strings and other places in memory."""
    told = {
        subprocess.run(
            [sys.executable, "-c", STORY, "space_sick-normal", "moving_agents", "combinatorial_chemistry-easy"],
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert len(told.pop()) > 10_000


@needs_discoveryworld
def test_random_numbers_and_output_of_this_process_are_left_alone(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random.seed(4)
    before = random.getstate()
    game = Game("moving_agents", 2)
    game.act(parse_command("move_direction north"))
    assert random.getstate() == before
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []  # the library would make a folder of pictures
    assert game.world.worldHistory == []


@needs_discoveryworld
def test_evaluations_meet_all_scenarios_in_turn_in_worlds_of_their_own():
    env = DiscoveryWorld(scenarios=tuple(SCENARIOS))
    drawn = [env.sample_task(held_out_seed("test", number), "test").data for number in range(2 * len(SCENARIOS))]
    assert [one["scenario"] for one in drawn] == 2 * list(SCENARIOS)
    assert [one["seed"] for one in drawn] == [0] * len(SCENARIOS) + [1] * len(SCENARIOS)
    assert 20_000 <= env.sample_task(7, "train").data["seed"] < 21_000


@needs_discoveryworld
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scenarios": ["chemistry"]}, r"env\.init_args\.scenarios must be some of combinatorial_chemistry-easy, .*"),
        ({"scenarios": []}, r"env\.init_args\.scenarios must be some of"),
        ({"max_steps": 0}, r"env\.init_args\.max_steps must be at least 1, got 0"),
        ({"scenarios": ["search", "search"]}, r"env\.init_args\.scenarios must be some of .*, each once, got"),
        ({"view": "pixels"}, r"env\.init_args\.view"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        EnvSpec(class_path="DiscoveryWorld", init_args=options).build()


@needs_discoveryworld
def test_themes_have_no_demonstrations():
    with pytest.raises(ValueError, match=r"no solution of 'proteomics-easy'; for a warm start choose from dialog, "):
        DiscoveryWorld().demonstrate(task("proteomics-easy"))


def test_a_missing_package_is_named_with_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the package 'discoveryworld'; install it with: pip install --no-deps"):
        EnvSpec(class_path="lit_agentrl.envs.discoveryworld.DiscoveryWorld").check()
