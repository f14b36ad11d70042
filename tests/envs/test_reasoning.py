import json
import math

import pytest

from lit_agentrl.agents.tools.base import ToolBox, tool_spec
from lit_agentrl.agents.tools.calculator import calculator
from lit_agentrl.envs.reasoning import GraderError, ReasoningGym
from lit_agentrl.envs.reasoning_families import EXCLUDED, SLOW, WITHOUT_GOLD
from lit_agentrl.testing import check_environment
from lit_agentrl.types import Action, Message

SPLITS = ("train", "val", "test")
TOOLS = (tool_spec(calculator),)


def reply(text):
    return Action(message=Message.of("assistant", text))


@pytest.fixture(scope="module")
def env():
    return ReasoningGym()


@pytest.mark.parametrize("answer_format", ["line", "tag", "boxed"])
def test_the_default_mix_keeps_the_contract(answer_format):
    check_environment(lambda: ReasoningGym(answer_format=answer_format), seeds=range(8))


def test_families_of_other_kinds_keep_the_contract():
    families = ["word_sorting", "knights_knaves", "number_sequence", "fraction_simplification", "leg_counting"]
    check_environment(lambda: ReasoningGym(families), seeds=range(8))


def test_the_question_ends_with_a_short_instruction(env):
    task = env.sample_task(3, "train")
    (message,) = env.reset(task).messages
    assert message.role == "user"
    assert message.text == f'{task.data["question"]}\nEnd with "Answer:" and the result.'


def test_the_right_answer_is_paid_and_a_wrong_one_is_not(env):
    task = env.sample_task(3, "train")
    env.reset(task)
    right = env.step(reply(f"Easy.\nAnswer: {task.data['answer']}"))
    assert (right.reward, right.success, right.terminated) == (1.0, True, True)
    assert right.reward_parts == {"answer": 1.0, "format": 1.0}
    env.reset(task)
    wrong = env.step(reply("Answer: 1"))
    assert (wrong.reward, wrong.success, wrong.reward_parts) == (0.0, False, {"answer": 0.0, "format": 1.0})


def test_reward_parts_are_weighted():
    env = ReasoningGym(answer_weight=2.0, format_weight=0.5)
    task = env.sample_task(0, "train")
    env.reset(task)
    assert env.step(reply(f"Answer: {task.data['answer']}")).reward == 2.5
    env.reset(task)
    assert env.step(reply("Answer: -1")).reward == 0.5
    env.reset(task)
    assert env.step(reply(task.data["answer"])).reward == 0.0  # right, but not marked as the answer


def _composite(env):
    """Return a prime_factorization task whose number is no prime itself."""
    return next(task for task in (env.sample_task(seed, "train") for seed in range(50)) if "×" in task.data["answer"])  # noqa: RUF001


def test_partial_credit_is_the_graders_score():
    env = ReasoningGym(["prime_factorization"], partial_credit=True)
    task = _composite(env)
    number = math.prod(int(factor) for factor in task.data["answer"].split("×"))  # noqa: RUF001
    env.reset(task)
    result = env.step(reply(f"Answer: {number}"))  # the product is right, the factors are not prime
    assert (result.reward, result.success) == (0.5, False)


def test_the_threshold_decides_success_without_partial_credit():
    env = ReasoningGym(["prime_factorization"], success_threshold=0.5)
    task = _composite(env)
    number = math.prod(int(factor) for factor in task.data["answer"].split("×"))  # noqa: RUF001
    env.reset(task)
    result = env.step(reply(f"Answer: {number}"))
    assert (result.reward, result.success) == (1.0, True)


def test_splits_share_no_question_even_in_a_tiny_family():
    # 2 terms of 1 digit and 2 signs: 200 questions
    env = ReasoningGym({"chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}})
    ids = {split: {env.sample_task(seed, split).id for seed in range(300)} for split in SPLITS}
    assert not ids["train"] & ids["val"]
    assert not ids["train"] & ids["test"]
    assert not ids["val"] & ids["test"]
    assert len(ids["train"]) > 100


def test_a_family_with_too_few_questions_names_itself_and_the_key():
    # two numbers out of 1 and 2: four questions at most
    env = ReasoningGym({"gcd": {"min_value": 1, "max_value": 2}})
    with pytest.raises(ValueError, match=r"env\.init_args\.families\.gcd: none of 200 draws .* [1-4] different"):
        [env.sample_task(seed, split) for split in SPLITS for seed in range(3)]


def test_tasks_are_the_same_in_every_instance(env):
    assert [env.sample_task(seed, "val") for seed in range(20)] == [
        ReasoningGym().sample_task(seed, "val") for seed in range(20)
    ]


def test_weights_decide_how_often_a_family_is_drawn():
    env = ReasoningGym(["gcd", "lcm", "chain_sum"], weights={"gcd": 0.0, "lcm": 3.0})
    drawn = [env.sample_task(seed, "train").family for seed in range(400)]
    assert "gcd" not in drawn
    assert abs(drawn.count("lcm") - 300) < 45  # 3 of 4; five standard deviations


def test_a_task_can_be_graded_by_an_instance_with_other_families():
    task = ReasoningGym({"gcd": {"max_value": 50}}).sample_task(0, "train")
    other = ReasoningGym()
    other.reset(json.loads(json.dumps(task.data)) and task)
    assert other.step(reply(f"Answer: {task.data['answer']}")).success is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"families": ["chain_sun"]}, r"env\.init_args\.families: unknown family 'chain_sun'; closest: chain_sum"),
        ({"families": []}, r"env\.init_args\.families: name at least one family"),
        ({"families": ["game_of_life_halting"]}, "excluded: its grader gives full marks to any text"),
        ({"families": {"chain_sum": {"min_term": 2}}}, r"families\.chain_sum\.min_term: .* accepted: .*min_terms"),
        ({"families": {"chain_sum": {"min_terms": 9}}}, r"families\.chain_sum: .*max_terms must be >= min_terms"),
        ({"families": {"chain_sum": {"seed": 9}}}, r"families\.chain_sum\.seed: no such option"),
        ({"weights": {"gcd": 1.0}}, r"env\.init_args\.weights\.gcd: not among the families chain_sum"),
        ({"weights": {"products": -1.0}}, r"env\.init_args\.weights\.products must be a number of at least 0"),
        ({"weights": dict.fromkeys(["products", "chain_sum", "basic_arithmetic"], 0.0)}, "needs a weight above 0"),
        ({"answer_format": "xml"}, r"env\.init_args\.answer_format must be one of line, tag, boxed, got 'xml'"),
        ({"success_threshold": 0.0}, r"env\.init_args\.success_threshold must be in \(0, 1\], got 0"),
    ],
)
def test_wrong_arguments_name_their_key(arguments, message):
    with pytest.raises(ValueError, match=message):
        ReasoningGym(**arguments)


def test_slow_families_are_announced():
    with pytest.warns(UserWarning, match="puzzle24 take 30 ms to 1 s"):
        ReasoningGym(["puzzle24"])


def test_a_crashed_grader_fails_the_episode_and_is_no_wrong_answer(env, monkeypatch):
    task = env.sample_task(0, "train")
    env.reset(task)
    dataset = next(dataset for key, dataset in env._datasets.items() if key.startswith(task.family))
    monkeypatch.setattr(dataset, "score_answer", lambda answer, entry: 1 / 0)
    with pytest.raises(GraderError, match=f"grader of {task.family} raised ZeroDivisionError"):
        env.step(reply("Answer: 5"))


def test_a_grader_that_gives_nan_fails_the_episode(env, monkeypatch):
    task = env.sample_task(0, "train")
    env.reset(task)
    dataset = next(dataset for key, dataset in env._datasets.items() if key.startswith(task.family))
    monkeypatch.setattr(dataset, "score_answer", lambda answer, entry: float("nan"))
    with pytest.raises(GraderError, match=f"grader of {task.family} gave nan"):
        env.step(reply("Answer: 5"))


def test_a_malformed_answer_is_wrong_where_the_grader_is_known_to_raise():
    env = ReasoningGym(["prime_factorization"])
    env.reset(env.sample_task(0, "train"))
    result = env.step(reply("Answer: banana"))
    assert (result.success, result.reward) == (False, 0.0)


def test_demonstrations_call_the_calculator_and_repeat_its_output(env):
    task = next(t for t in (env.sample_task(s, "train") for s in range(50)) if t.family == "products")
    question, call, output, answer = env.demonstrate(task, TOOLS).messages
    assert (question,) == env.reset(task).messages
    expression = call.tool_calls[0].arguments["expression"]
    assert expression in task.data["question"]
    assert (
        call.text
        == f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'
    )
    assert output.text == ToolBox([calculator]).call("calculator", {"expression": expression}, max_chars=1000).text
    assert answer.text == f"Answer: {output.text}"


@pytest.mark.parametrize(
    "family",
    ["basic_arithmetic", "chain_sum", "decimal_arithmetic", "decimal_chain_sum", "gcd", "lcm", "products"],
)
def test_the_calculator_solves_the_arithmetic_families(family):
    env = ReasoningGym([family])
    with_tool = [len(env.demonstrate(env.sample_task(seed, "train"), TOOLS).messages) == 4 for seed in range(50)]
    assert sum(with_tool) >= 49  # basic_arithmetic has one item in a hundred that rounds in its own way


def test_without_a_calculator_the_answer_is_stated(env):
    task = env.sample_task(0, "train")
    messages = env.demonstrate(task, ()).messages
    assert [message.text for message in messages[1:]] == [f"Answer: {task.data['answer']}"]


def test_a_family_without_gold_answers_cannot_be_demonstrated():
    env = ReasoningGym(["rush_hour"])
    with pytest.raises(ValueError, match=r"env\.init_args\.families: 'rush_hour' has no gold answers"):
        env.demonstrate(env.sample_task(0, "train"), TOOLS)


def test_every_usable_family_accepts_its_own_gold_answer_and_no_clueless_one():
    from reasoning_gym.factory import DATASETS

    for family in sorted(set(DATASETS) - set(EXCLUDED) - SLOW):
        env = ReasoningGym([family], answer_format="tag")
        task = env.sample_task(1, "train")
        json.dumps(task.data)
        env.reset(task)
        assert env.step(reply("<answer>I do not know</answer>")).success is False, family
        if family in WITHOUT_GOLD:
            assert task.data["answer"] is None, family
            continue
        env.reset(task)
        assert env.step(Action(message=env.demonstrate(task, ()).messages[-1])).success is True, family
