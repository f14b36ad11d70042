from fractions import Fraction

import pytest

from lit_agentrl.rewards.answers import (
    answer_instruction,
    exact_match,
    extract_answer,
    numeric_match,
    parse_number,
    word_f1,
    write_answer,
)


@pytest.mark.parametrize("answer_format", ["line", "tag", "boxed"])
def test_written_answers_are_read_back(answer_format):
    text = f"First I add.\n{write_answer('1/2', answer_format)}"
    assert extract_answer(text, answer_format) == "1/2"


@pytest.mark.parametrize("answer_format", ["line", "tag", "boxed"])
def test_the_instruction_shows_the_marker_and_is_short(answer_format):
    marker = write_answer("", answer_format).strip("} ").split("</")[0]
    assert marker in answer_instruction(answer_format)
    assert len(answer_instruction(answer_format)) < 40


def test_everything_after_the_last_answer_line_counts():
    assert extract_answer("Answer:\n1 2\n3 4", "line") == "1 2\n3 4"


def test_the_marker_has_to_start_its_line():
    assert extract_answer("the Answer: 5", "line") is None


def test_an_answer_given_twice_alike_counts_once():
    assert extract_answer("Answer: 5\nAnswer:  5", "line") == "5"


def test_boxes_may_hold_braces():
    assert extract_answer(r"so \boxed{\frac{1}{2}}.", "boxed") == r"\frac{1}{2}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", Fraction(42)),
        (" -1,234.50 ", Fraction(-2469, 2)),
        ("3/4", Fraction(3, 4)),
        (".5", Fraction(1, 2)),
        ("2e3", Fraction(2000)),
        ("5.", Fraction(5)),
    ],
)
def test_numbers_are_parsed_exactly(text, value):
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text", ["", "9" * 5000, "-", ".", "e3", "E7", "1,2", "1 2", "x5", "1/0", "1/2/3", "inf", "nan", "0x1", "1_000"]
)
def test_what_is_not_one_number_is_none(text):
    assert parse_number(text) is None


def test_exact_match_ignores_case_and_spacing_only():
    assert exact_match(" Blue  Car", "blue car")
    assert not exact_match("blue cars", "blue car")


def test_numeric_match_compares_values_not_texts():
    assert numeric_match("0.50", "1/2")
    assert not numeric_match("0.51", "1/2")


def test_numeric_match_takes_an_absolute_tolerance():
    assert numeric_match("0.51", "1/2", tolerance=0.0101)
    assert not numeric_match("0.52", "1/2", tolerance=0.0101)


def test_a_gold_answer_that_is_no_number_is_a_fault_of_the_data():
    with pytest.raises(ValueError, match="gold answer 'blue' is not a number"):
        numeric_match("3", "blue")


def test_f1_counts_words_as_often_as_they_are_said():
    assert word_f1("red red red", "red kayak") == pytest.approx(2 * 1 / (3 + 2))
    assert word_f1("The red, kayak!", "a red kayak") == 1.0
    assert word_f1("", "red") == 0.0
    assert word_f1("blue", "red") == 0.0
