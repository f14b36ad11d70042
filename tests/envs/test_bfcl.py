"""BFCL multi-turn: right calls solve it, our verdict is the benchmark's, and no text of a model is evaluated."""

import dataclasses
import itertools
import json
import sys

import pytest

from lit_agentrl.envs.bfcl import BFCLMultiTurn
from lit_agentrl.envs.bfcl_api import (
    CATEGORIES,
    Dispatcher,
    dialogues,
    make_instances,
    needs_what_is_held_out,
    story_groups,
)
from lit_agentrl.envs.reasoning import GraderError
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.testing import check_environment
from lit_agentrl.types import Action, Message, Task, ToolCall


def task_of(dialogue, num_turns=None):
    data = {"dialogue": dialogue.id, "category": dialogue.category, "num_turns": num_turns or len(dialogue.turns)}
    return Task(id=dialogue.id, family="bfcl", split="train", seed=0, data=data)


def dialogue_of(category, number):
    return next(entry for entry in dialogues(category) if entry.scenario == number)


def calls(*named):
    made = tuple(
        ToolCall(id=f"c{place}", name=name, arguments=arguments) for place, (name, arguments) in enumerate(named)
    )
    return Action(message=Message.of("assistant", "", tool_calls=made))


def say(text="Done."):
    return Action(message=Message.of("assistant", text))


def replay(env, task, replies):
    env.reset(task)
    for reply in replies:
        result = env.step(Action(message=reply))
        if result.terminated:
            return result
    raise AssertionError("the episode did not end")


@pytest.fixture(scope="module")
def env():
    return BFCLMultiTurn(categories=CATEGORIES)


def test_it_keeps_the_contract():
    check_environment(lambda: BFCLMultiTurn(categories=CATEGORIES), seeds=range(40))
    check_environment(lambda: BFCLMultiTurn(max_user_turns=1, classes=("GorillaFileSystem",), turn_weight=0.5))


def test_the_right_calls_solve_every_dialogue(env):
    solved, left_out = 0, []
    for dialogue in itertools.chain.from_iterable(map(dialogues, CATEGORIES)):
        if needs_what_is_held_out(dialogue):
            left_out.append(dialogue.id)
            continue
        task = task_of(dialogue)
        shown = env.demonstrate(task)
        result = replay(env, task, [message for message in shown.messages if message.role == "assistant"])
        assert (result.success, result.reward) == (True, 1.0), dialogue.id
        solved += 1
    assert (solved, left_out) == (799, ["multi_turn_miss_func_49"])


def benchmark_says(dialogue, turns, name):
    """The verdict of the benchmark's own checker, which evaluates source text."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    written = [
        [[f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" for name, arguments in turn]]
        for turn in turns
    ]
    record = {"id": dialogue.id, "initial_config": dialogue.config, "involved_classes": list(dialogue.classes)}
    gold = [list(turn) for turn in dialogue.gold]
    return multi_turn_checker(written, gold, record, dialogue.category, name)["valid"]


def changes_of(turns):
    """The right calls, and four ways of getting them wrong or doing more than asked."""
    yield "right", turns
    yield "last call left out", [*turns[:-1], turns[-1][:-1]]
    yield "first call left out", [turns[0][1:], *turns[1:]]
    yield "everything twice", [turn + turn for turn in turns]
    name, arguments = turns[-1][-1] if turns[-1] else ("", {})
    spoilt = {key: f"{value}x" if isinstance(value, str) else value for key, value in arguments.items()}
    yield "other words", [*turns[:-1], [*turns[-1][:-1], (name, spoilt)] if name else []]


def test_our_verdict_is_that_of_the_benchmark(env):
    verdicts = []
    for dialogue in [entry for category in ("base", "miss_param") for entry in dialogues(category)[::10]]:
        dispatcher = Dispatcher(make_instances(dialogue))
        right = [[dispatcher.named(source) for source in turn] for turn in dialogue.gold]
        for what, turns in changes_of(right):
            # The benchmark asks for calls wherever there are right ones, and never minds them elsewhere; so do we.
            env.reset(task_of(dialogue))
            result = None
            for turn in turns:
                if turn:
                    env.step(calls(*turn))
                result = env.step(say())
                if result.terminated:
                    break
            theirs = benchmark_says(dialogue, turns, f"model_{what.replace(' ', '_')}")
            assert result.success == theirs, (dialogue.id, what)
            verdicts.append(theirs)
    assert len(verdicts) == 200
    assert 60 < sum(verdicts) < 140  # both verdicts occur often, or nothing was compared


def test_the_turn_is_checked_when_the_user_is_answered(env):
    dialogue = dialogue_of("base", 2)
    opening = env.reset(task_of(dialogue))
    assert opening.messages[0].text.startswith("Go into document folder")
    went = env.step(calls(("cd", {"folder": "documents"}), ("touch", {"file_name": "TeamNotes.txt"})))
    assert [message.text for message in went.observation.messages] == [
        '{"current_working_directory": "documents"}',
        "None",
    ]
    assert [message.tool_call_id for message in went.observation.messages] == ["c0", "c1"]
    spoken = env.step(say())
    assert spoken.observation.messages[0].text.startswith("We've gathered")
    assert (spoken.reward, spoken.success) == (0.0, None)
    wrong = env.step(say())  # nothing was written into the file
    assert (wrong.terminated, wrong.success, wrong.reward) == (True, False, 0.0)
    assert wrong.reward_parts == {"solved": 0.0, "turns": 1 / 5, "invalid_actions": 0.0}


def test_turns_can_be_paid():
    env = BFCLMultiTurn(turn_weight=0.5)
    env.reset(task_of(dialogue_of("base", 2)))
    env.step(calls(("cd", {"folder": "documents"}), ("touch", {"file_name": "TeamNotes.txt"})))
    env.step(say())
    assert env.step(say()).reward == 0.5 * 1 / 5


def test_held_out_functions_are_handed_over_in_their_turn(env):
    dialogue = dialogue_of("miss_func", 2)
    opening = env.reset(task_of(dialogue))
    offered = {tool.name for tool in opening.tools}
    assert {"cd", "touch"} <= offered
    assert not {"cp", "cat", "rm"} & offered  # the last is excluded for good
    refused = env.step(calls(("cp", {"source": "a", "destination": "b"})))
    assert refused.observation.messages[0].text == "Error: there is no function 'cp'"
    shown = env.demonstrate(task_of(dialogue))
    handed = next(message.text for message in shown.messages if message.text.endswith("What about now?"))
    assert [doc["name"] for doc in json.loads(handed.splitlines()[0])] == ["cp", "cat"]


def test_a_turn_without_end_is_wrong():
    env = BFCLMultiTurn(max_steps_per_turn=3)
    env.reset(task_of(dialogue_of("base", 2)))
    results = [env.step(calls(("ls", {}))) for _ in range(4)]
    assert [result.terminated for result in results] == [False, False, False, True]
    assert results[-1].success is False


HOSTILE = [
    "__import__('os').system('touch {path}')",
    "os.system('touch {path}')",
    "cd(folder=open('{path}', 'w'))",
    "_load_scenario",
    "__class__",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_looked_up_and_never_evaluated(env, tmp_path, name):
    path = tmp_path / "written"
    env.reset(task_of(dialogue_of("base", 2)))
    text = env.step(calls((name.format(path=path), {}))).observation.messages[0].text
    assert text.startswith("Error: there is no function")
    assert not path.exists()
    for value in (f"__import__('os').system('touch {path}')", {"__class__": "x"}, ["a"], None, 7):
        env.step(calls(("cd", {"folder": value})))
    assert not path.exists()


def test_wrong_arguments_are_told(env):
    env.reset(task_of(dialogue_of("base", 2)))
    for arguments in ({}, {"folder": 1, "self": 2}, {"nonsense": 1}):
        text = env.step(calls(("cd", arguments))).observation.messages[0].text
        assert text.startswith("Error during execution: ")
    unreadable = ToolCall(id="c0", name="cd", error="the arguments are no JSON object")
    result = env.step(Action(message=Message.of("assistant", "", tool_calls=(unreadable,))))
    assert result.observation.messages[0].text == "Error: the arguments are no JSON object"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("power", {"base": 9, "exponent": 9**9}),
        ("logarithm", {"value": 2, "base": 3, "precision": 10**9}),
        ("square_root", {"number": 2, "precision": 10**9}),
    ],
)
def test_arithmetic_that_would_never_end_is_refused(env, name, arguments):
    dialogue = next(entry for entry in dialogues("base") if "MathAPI" in entry.classes)
    env.reset(task_of(dialogue))
    text = env.step(calls((name, arguments))).observation.messages[0].text
    assert "must be at most" in text


def test_precision_does_not_leak_into_other_calls():
    dialogue = next(entry for entry in dialogues("base") if "MathAPI" in entry.classes)
    dispatcher = Dispatcher(make_instances(dialogue))
    before = dispatcher.call("logarithm", {"value": 2, "base": 3, "precision": 15})
    dispatcher.call("square_root", {"number": 2, "precision": 900})
    dispatcher.call("logarithm", {"value": 2, "base": 3, "precision": 900})
    dispatcher.call("add", {"a": 1, "b": 2})
    import decimal

    import mpmath

    assert (decimal.getcontext().prec, mpmath.mp.dps) == (28, 15)
    assert dispatcher.call("logarithm", {"value": 2, "base": 3, "precision": 15}) == before


def test_a_message_does_not_change_with_the_state(env):
    task = task_of(dialogue_of("base", 90))  # it posts a list of names and adds to that list later
    shown = env.demonstrate(task)
    posted = next(call for message in shown.messages for call in message.tool_calls if call.name == "post_tweet")
    assert posted.arguments["mentions"] == ["@TravelBuddy"]


def test_a_folder_copied_into_itself_is_a_wrong_answer_and_no_crash(env):
    env.reset(task_of(dialogue_of("base", 2)))
    cycle = ("cp", {"source": "documents", "destination": "documents"})
    found = env.step(calls(cycle, ("find", {"path": ".", "name": "x"}))).observation.messages[1].text
    assert found.startswith("Error during execution: maximum recursion depth")
    env.step(calls(("cd", {"folder": "documents"}), ("touch", {"file_name": "TeamNotes.txt"})))
    assert env.step(say()).success is False


def test_a_check_that_crashes_is_no_wrong_answer(env, monkeypatch):
    env.reset(task_of(dialogue_of("base", 2)))
    env.step(calls(("cd", {"folder": "documents"})))
    monkeypatch.setattr("lit_agentrl.envs.bfcl.turn_is_right", lambda *_: 1 / 0)
    with pytest.raises(GraderError, match="multi_turn_base_2 raised ZeroDivisionError"):
        env.step(say())


def test_the_four_forms_of_a_story_are_in_one_split():
    env = BFCLMultiTurn(categories=CATEGORIES)
    stories = {}
    for split, names in env._ids.items():
        stories[split] = {story_groups()[int(name.rpartition("_")[2])] for name in names}
    assert {split: len(numbers) for split, numbers in stories.items()} == {"train": 138, "val": 30, "test": 30}
    assert not stories["train"] & stories["val"]
    assert not stories["train"] & stories["test"]
    assert not stories["val"] & stories["test"]
    assert story_groups()[43] == 40  # they share a user's message
    assert story_groups()[148] == 102


def test_options_choose_dialogues():
    env = BFCLMultiTurn(classes=("TradingBot",), max_user_turns=2)
    for seed in range(20):
        task = env.sample_task(seed, "train")
        assert dialogue_of("base", int(task.data["dialogue"].rpartition("_")[2])).classes == ("TradingBot",)
        assert task.data["num_turns"] <= 2
    spoken = {message.text for message in env.demonstrate(task).messages if message.role == "user"}
    assert len(spoken) <= 2


def test_tools_are_json_schemas(env):
    text = json.dumps([tool.parameters for tool in env.reset(env.sample_task(0, "train")).tools])
    assert '"type": "object"' in text
    assert '"type": "dict"' not in text
    assert '"type": "float"' not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"categories": ("basic",)}, r"env\.init_args\.categories must be some of base, miss_func"),
        ({"categories": ()}, r"env\.init_args\.categories"),
        ({"classes": ("Gorilla",)}, r"env\.init_args\.classes must be some of GorillaFileSystem"),
        ({"max_user_turns": 0}, r"env\.init_args\.max_user_turns must be at least 1, got 0"),
        ({"max_steps_per_turn": 0}, r"env\.init_args\.max_steps_per_turn must be at least 1"),
    ],
)
def test_wrong_arguments_name_their_key(arguments, message):
    with pytest.raises(ValueError, match=message):
        BFCLMultiTurn(**arguments)


def test_an_empty_split_says_so():
    env = BFCLMultiTurn(classes=("MathAPI",))
    with pytest.raises(ValueError, match=r"env\.init_args\.classes: no dialogue is left for split 'train' \(train 0"):
        env.sample_task(0, "train")


def test_an_unknown_dialogue_is_told(env):
    task = dataclasses.replace(env.sample_task(0, "train"), id="x", data={"dialogue": "x", "category": "base"})
    with pytest.raises(ValueError, match="the installed bfcl-eval has no 'x'"):
        env.reset(task)


@pytest.mark.parametrize("class_path", ["BFCLMultiTurn", "BFCLMemory"])
def test_a_missing_package_is_one_line_that_says_what_to_install(class_path, monkeypatch):
    from lit_agentrl.envs import extras

    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"env\.class_path: BFCL\w+ needs the package 'bfcl_eval'; install it"
    ) as caught:
        EnvSpec(class_path=class_path).check()
    assert "\n" not in str(caught.value)


def test_a_damaged_file_names_its_line(monkeypatch, tmp_path):
    from lit_agentrl.envs import bfcl_api

    (tmp_path / "broken.json").write_text('{"id": "a"}\n{"id"')
    monkeypatch.setattr(bfcl_api, "data_folder", lambda: tmp_path)
    with pytest.raises(ValueError, match=r"broken\.json, line 2"):
        bfcl_api.read_lines("broken.json")


def test_workers_do_not_import_torch():
    import subprocess

    program = (
        "import sys; from lit_agentrl.envs.bfcl import BFCLMultiTurn; e = BFCLMultiTurn();"
        "e.demonstrate(e.sample_task(0, 'train')); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
