import pytest

from lit_agentrl.envs.reasoning import ReasoningGym
from lit_agentrl.envs.reasoning_guards import is_gradable
from lit_agentrl.types import Action, Message


def gradable(answer, *, family="knights_knaves", gold="Zoey is a knave", question="Who is Zoey?"):
    return is_gradable(answer, family=family, question=question, gold=gold)


@pytest.mark.parametrize("answer", ["Zoey is a knave", "zoey  is a knave.", "Zoey is a knight", "(Zoey is a knave)"])
def test_single_answers_go_to_the_grader(answer):
    assert gradable(answer)


@pytest.mark.parametrize(
    "answer",
    ["Zoey is a knave or Zoey is a knight", "Zoey is a knight, Zoey is a knave", "Who is Zoey? Zoey is a knave"],
)
def test_the_right_answer_among_others_does_not(answer):
    assert not gradable(answer)


def test_the_gold_answer_inside_a_longer_word_or_number_is_no_hedge():
    assert gradable("13+4", gold="3+4")
    assert gradable("16.90", gold="16.9")


def test_one_number_is_due_where_the_gold_answer_is_one():
    assert gradable("x is 42 or so", gold="17")
    assert not gradable("41 42", gold="17")


@pytest.mark.parametrize(
    ("family", "answer"),
    [
        ("binary_matrix", "9**9**9"),
        ("n_queens", "__import__('os')"),
        ("spiral_matrix", "().__class__"),
        ("string_insertion", "open('/etc/passwd')"),
        ("countdown", "9**9**9"),
        ("puzzle24", "exp(9)"),
        ("polynomial_multiplication", "1e999999"),
        ("polynomial_multiplication", "(9**9)**9"),
        ("polynomial_multiplication", "2**99999"),
        ("polynomial_multiplication", "x.__class__"),
        ("simple_integration", "factorial(99999)"),
        ("intermediate_integration", "exp(exp(exp(x)))"),
        ("complex_arithmetic", "nan"),
        ("countdown", "1+" * 600 + "1"),
    ],
)
def test_answers_that_would_be_evaluated_are_arithmetic_or_wrong(family, answer):
    assert not gradable(answer, family=family, gold=None)


@pytest.mark.parametrize(
    ("family", "answer"),
    [
        ("binary_matrix", "[[0, 1], [1, 0]]"),
        ("countdown", "49*(85 - 1)/14 - 42"),
        ("polynomial_multiplication", "120*z**7 + 64*z**6 - y**2*x"),
        ("intermediate_integration", "3*exp(2*x)*sin(x) + x**(-1) + C"),
        ("complex_arithmetic", "-5.0 + 20.0i"),
    ],
)
def test_honest_answers_of_those_families_are_gradable(family, answer):
    assert gradable(answer, family=family, gold=None)


def test_a_hostile_answer_is_just_wrong():
    env = ReasoningGym(["n_queens"])
    env.reset(env.sample_task(0, "train"))
    result = env.step(Action(message=Message.of("assistant", "Answer: [print('run')]")))
    assert (result.success, result.reward) == (False, 0.0)
