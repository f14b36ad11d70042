import pytest

from lit_agentrl.rewards.maths import aime_answer, aime_match, is_checkable, is_word, math_verify_match, word_match


@pytest.mark.parametrize(("text", "value"), [("42", 42), ("042", 42), (" $ 7 $. ", 7), ("0", 0), ("999", 999)])
def test_integers_are_read(text, value):
    assert aime_answer(text) == value


@pytest.mark.parametrize("text", [None, "", "1000", "-3", "4.0", "42 or 43", "x=42", "\\frac{84}{2}", "٤٢", "4 2"])
def test_anything_else_is_no_aime_answer(text):
    assert aime_answer(text) is None


def test_a_wrong_gold_answer_is_a_fault_of_the_data():
    with pytest.raises(ValueError, match="gold answer '1000' is not an integer from 0 to 999"):
        aime_match("5", "1000")
    assert aime_match("025", "25")
    assert not aime_match("25", "26")


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("0.5", r"\frac{1}{2}"),
        (r"\frac{2}{4}", "1/2"),
        ("1+x", "x+1"),
        (r"1+\sqrt{12}", r"2\sqrt{3}+1"),
        ("x=42", "42"),
        ("(1, 2)", "(1,2)"),
        (r"\{2,1\}", r"\{1,2\}"),
        (r"\pi/4", r"\frac{\pi}{4}"),
        ("12,345", "12345"),
        ("$42$", "42"),
    ],
)
def test_equal_expressions_match(answer, gold):
    assert is_checkable(answer, gold)
    assert math_verify_match(answer, gold)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("43", "42"),
        ("41, 42", "42"),
        ("42, 43", "42"),
        ("42 43", "42"),
        ("41 or 42", "42"),
        (r"42 \text{ or } 41", "42"),
        (r"\{41,42\}", "42"),
        (r"\pm 42", "42"),
        ("the answer is 42 or 41", "42"),
        ("41 = 42", "42"),
        ("x = 41 = 42", "42"),
        ("(2, 1)", "(1, 2)"),
        ("", "42"),
        ("1<42", "42"),
        ("nan", "42"),
        ("y^2", "x^2"),
    ],
)
def test_hedges_and_wrong_answers_do_not(answer, gold):
    assert not (is_checkable(answer, gold) and math_verify_match(answer, gold))


@pytest.mark.parametrize(
    "answer",
    ["9^{9^{9^{9}}}", "9**9**9**9", "2^{99999}", "99999!", "3!!", "1e99999", "7" * 501, "__import__('os').system('x')"],
)
def test_what_would_take_for_ever_is_wrong_before_it_is_tried(answer):
    assert not is_checkable(answer, "42")


def test_nothing_is_evaluated_as_python(tmp_path):
    path = tmp_path / "written"
    for text in (f"open('{path}','w')", f"(lambda:open('{path}','w'))()", f"exec(\"open('{path}','w')\")"):
        math_verify_match(text, "42")  # without the guards, which stop it
    assert not path.exists()


def test_words_match_as_text():
    assert is_word(r"\text{even}")
    assert is_word("Evelyn")
    assert not is_word(r"2\sqrt{3}")
    assert not is_word("x+y")
    assert word_match("Even", r"\text{even}")
    assert not word_match("odd or even", "even")


def test_a_gold_answer_that_cannot_be_read_is_told():
    with pytest.raises(ValueError, match="cannot read the gold answer"):
        math_verify_match("42", "}{")


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
        ("12", r"12 \text{ inches}"),
    ],
)
def test_frames_and_units_are_no_words_of_the_answer(answer, gold):
    assert not is_word(gold)
    assert is_checkable(answer, gold)
    assert math_verify_match(answer, gold)
