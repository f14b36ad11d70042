import json
import os
import signal
from collections import Counter

import pytest

from lit_agentrl.agents.tools.base import tool_spec
from lit_agentrl.agents.tools.calculator import calculator
from lit_agentrl.envs.mathematics import LEVELS, AimeLadder, MathProblems
from lit_agentrl.envs.splits import held_out_seed
from lit_agentrl.metrics import AvgAtK, PassAtK
from lit_agentrl.rewards.grading import GraderError
from lit_agentrl.testing import check_environment
from lit_agentrl.types import Action, Message, Trajectory


def reply(text):
    return Action(message=Message.of("assistant", text))


def write(path, records):
    path.write_text("\n".join(json.dumps(record) for record in records))
    return str(path)


@pytest.fixture
def aime(tmp_path):
    numbers = range(60)
    return write(tmp_path / "aime.jsonl", [{"problem": f"What is {n} + {n}?", "answer": 2 * n} for n in numbers])


@pytest.fixture
def expressions(tmp_path):
    answers = [r"\frac{1}{2}", "x+1", r"\text{even}", r"2\sqrt{3}", "(1,2)"]
    records = [{"problem": f"Problem {n}?", "answer": answers[n % 5]} for n in range(60)]
    return write(tmp_path / "expressions.jsonl", records)


def test_files_keep_the_contract(aime, expressions):
    check_environment(lambda: MathProblems([aime]))
    check_environment(lambda: MathProblems([expressions], answers="expression", answer_format="tag"), seeds=range(4))


def test_the_ladder_keeps_the_contract():
    check_environment(AimeLadder, seeds=range(12))


def solve(env, task, text):
    env.reset(task)
    return env.step(reply(text))


def test_an_integer_in_a_box_is_graded(aime):
    env = MathProblems([aime], answer_weight=2.0, format_weight=0.5)
    task = env.sample_task(0, "train")
    right = task.data["answer"]
    assert solve(env, task, f"So \\boxed{{{right}}}.").reward == 2.5
    assert solve(env, task, f"So \\boxed{{{int(right):03d}}}").success is True
    assert solve(env, task, "So \\boxed{777}").reward == 0.5
    for text in (right, "", f"\\boxed{{{right}}} or \\boxed{{1}}", f"\\boxed{{{right} or 1}}", "\\boxed{}"):
        assert solve(env, task, text).success is False, text


def test_an_expression_is_graded_by_value(expressions):
    env = MathProblems([expressions], answers="expression")
    seen = set()
    equal = {r"\frac{1}{2}": "0.5", "x+1": "1+x", r"\text{even}": "Even", r"2\sqrt{3}": r"\sqrt{12}", "(1,2)": "(1, 2)"}
    for seed in range(30):
        task = env.sample_task(seed, "train")
        gold = task.data["answer"]
        if gold not in seen:
            assert solve(env, task, f"\\boxed{{{equal[gold]}}}").success is True, gold
            assert solve(env, task, "\\boxed{77}").success is False, gold
        seen.add(gold)
    assert len(seen) == 5
    env.close()


@pytest.fixture
def halves(tmp_path):
    env = MathProblems(
        {"train": [write(tmp_path / "a.jsonl", [{"problem": "Half of one?", "answer": "1/2"}])]},
        answers="expression",
        grader_timeout_s=1.5,
    )
    yield env
    env.close()


def test_a_grader_that_loops_is_no_wrong_answer(halves):
    task = halves.sample_task(0, "train")
    with pytest.raises(GraderError, match=r"did not answer within 1\.5 s and was killed"):
        solve(halves, task, "\\boxed{9^{9^{9}}}")
    assert solve(halves, task, "\\boxed{0.5}").success is True  # with another process


def test_a_grader_that_dies_is_no_wrong_answer(halves):
    task = halves.sample_task(0, "train")
    solve(halves, task, "\\boxed{1}")
    os.kill(halves._grader.pid, signal.SIGKILL)
    with pytest.raises(GraderError, match="process died"):
        solve(halves, task, "\\boxed{0.5}")
    assert solve(halves, task, "\\boxed{0.5}").success is True


def test_a_gold_answer_that_cannot_be_read_is_no_wrong_answer(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"problem": "x?", "answer": "}{"}])
    env = MathProblems({"train": [path]}, answers="expression")
    with pytest.raises(GraderError, match="cannot read the gold answer"):
        solve(env, env.sample_task(0, "train"), "\\boxed{1}")
    env.close()


def test_closing_ends_the_graders_process(halves):
    solve(halves, halves.sample_task(0, "train"), "\\boxed{1}")
    pid = halves._grader.pid
    halves.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_list_of_files_is_divided_by_content(aime):
    env = MathProblems([aime])
    ids = {split: {env.sample_task(seed, split).id for seed in range(600)} for split in ("train", "val", "test")}
    assert len(ids["train"] | ids["val"] | ids["test"]) == sum(map(len, ids.values())) == 60


def test_named_splits_are_kept_and_must_not_share_a_problem(tmp_path):
    first = write(tmp_path / "a.jsonl", [{"problem": "One?", "answer": 1}])
    second = write(tmp_path / "b.jsonl", [{"problem": "Two?", "answer": 2}])
    env = MathProblems({"train": [first], "test": [second]})
    assert env.sample_task(5, "train").family == "a"
    assert env.sample_task(5, "test").data["question"] == "Two?"
    with pytest.raises(ValueError, match=r"no problem for split 'val' \(train 1, val 0, test 1\)"):
        env.sample_task(0, "val")
    with pytest.raises(
        ValueError, match=r"the problem of .*a\.jsonl, line 1 \(test\) is in .*a\.jsonl, line 1 \(train"
    ):
        MathProblems({"train": [first], "test": [first]})


def test_repeated_problems_count_once_and_must_agree(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"problem": "One?", "answer": 1}, {"problem": " One? ", "answer": 1}])
    assert len(MathProblems({"train": [path]})._problems["train"]) == 1
    path = write(tmp_path / "b.jsonl", [{"problem": "One?", "answer": 1}, {"problem": "One?", "answer": 2}])
    with pytest.raises(ValueError, match=r"line 1 and .*line 2 give the same problem the answers '1' and '2'"):
        MathProblems({"train": [path]})


def test_an_aime_answer_out_of_range_names_its_line(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"problem": "One?", "answer": 1}, {"problem": "Big?", "answer": 1000}])
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: the answer '1000' is no integer from 0 to 999"):
        MathProblems([path])


def test_an_evaluation_tries_every_problem_equally_often_for_avg_at_k_and_pass_at_k(tmp_path):
    path = write(tmp_path / "aime.jsonl", [{"problem": f"{n}?", "answer": n} for n in range(30)])
    env = MathProblems({"test": [path]})
    tasks = [env.sample_task(held_out_seed("test", number), "test") for number in range(30)]
    assert [task.data["answer"] for task in tasks] == [str(number) for number in range(30)]
    average, chance = AvgAtK(), PassAtK(2)
    for task in tasks:
        for sample in range(4):
            # problem n is solved in n % 5 of 4 samples
            right = sample < int(task.data["answer"]) % 5
            result = solve(env, task, f"\\boxed{{{task.data['answer'] if right else 777}}}")
            trajectory = Trajectory(task=task, group=0, sample=sample, success=result.success)
            average.update([trajectory])
            chance.update([trajectory])
    assert average.compute()["avg_at_k"].item() == pytest.approx((0 + 1 + 2 + 3 + 4) / 5 / 4)
    # C(4-c, 2)/C(4, 2) for c = 0..4: 1, 1/2, 1/6, 0, 0
    assert chance.compute()["pass_at_2"].item() == pytest.approx(1 - (1 + 1 / 2 + 1 / 6) / 5)


def test_ladder_answers_are_integers_from_0_to_999_and_levels_are_even():
    env = AimeLadder()
    tasks = [env.sample_task(seed, "train") for seed in range(300)]
    assert all(0 <= int(task.data["answer"]) <= 999 for task in tasks)
    levels = Counter(task.family for task in tasks)
    assert len(levels) == 5
    assert min(levels.values()) > 35  # 60 expected, standard deviation 7
    assert AimeLadder((2,)).sample_task(0, "test").family == "aime_level_2"


def test_ladder_answers_are_right():
    env = AimeLadder((1, 2, 3, 4))
    checked = 0
    for seed in range(200):
        task = env.sample_task(seed, "val")
        if task.data["expression"] is not None:
            assert calculator(task.data["expression"]) == task.data["answer"], task.data
            checked += 1
    assert checked > 100


def test_the_top_of_the_ladder_puts_two_problems_together():
    task = AimeLadder((5,)).sample_task(1, "train")
    assert task.data["question"].startswith("Let a be the result of the first problem")
    assert task.data["question"].endswith("Give the remainder when ab + a + b is divided by 1000.")


def test_every_family_of_the_ladder_occurs():
    env = AimeLadder()
    for level, families in LEVELS.items():
        for seed in range(60):
            env._item(level, seed)
        assert {family for at, family in env._datasets if at == level} == set(families)


def test_the_calculator_is_shown_where_it_is_offered():
    env = AimeLadder((3,))
    task = next(task for task in (env.sample_task(seed, "train") for seed in range(20)) if task.data["expression"])
    shown = env.demonstrate(task, (tool_spec(calculator),))
    assert [message.role for message in shown.messages] == ["user", "assistant", "tool", "assistant"]
    assert shown.messages[2].text == task.data["answer"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"answers": "integer"}, r"env\.init_args\.answers must be one of aime, expression"),
        ({"answer_format": "xml"}, r"env\.init_args\.answer_format must be one of line, tag, boxed"),
        ({"grader_timeout_s": 0}, r"env\.init_args\.grader_timeout_s must be above 0"),
        ({"files": []}, r"env\.init_args\.files: name at least one file"),
        ({"files": {"dev": ["a.jsonl"]}}, r"env\.init_args\.files must be a list or name splits train, val, test"),
    ],
)
def test_wrong_arguments_name_their_key(aime, arguments, message):
    with pytest.raises(ValueError, match=message):
        MathProblems(**({"files": [aime]} | arguments))


@pytest.mark.parametrize("levels", [(), (0,), (6,)])
def test_wrong_levels_name_their_key(levels):
    with pytest.raises(ValueError, match=r"env\.init_args\.levels must be some of 1 to 5"):
        AimeLadder(levels)


def test_a_missing_package_is_one_line_that_says_what_to_install(aime, monkeypatch):
    from lit_agentrl.envs import extras

    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    MathProblems([aime])  # integers need none
    with pytest.raises(ValueError, match=r"answers: expression needs the package 'math_verify'; install it with: pip"):
        MathProblems([aime], answers="expression")
