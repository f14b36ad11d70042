from collections import Counter

import pytest

from lit_agentrl.envs.splits import choose, content_digest, draw_until, held_out_seed, split_of


def test_questions_are_shared_out_80_10_10():
    counts = Counter(split_of(f"{number}+1=") for number in range(10_000))
    # binomial standard deviation is 40 and 30: five of them
    assert abs(counts["train"] - 8000) < 200
    assert abs(counts["val"] - 1000) < 150
    assert abs(counts["test"] - 1000) < 150


def test_the_split_of_a_question_never_changes():
    # Pinned: a change would leak the test questions of older runs into training.
    assert [split_of(f"{number}+1=") for number in range(12)] == (
        ["val"] + ["train"] * 6 + ["test"] * 3 + ["train"] * 2
    )
    assert content_digest("1+1=") == "fa62b51bb5be8ff8"


def test_the_amount_of_whitespace_does_not_matter():
    assert content_digest("a  b\n") == content_digest("a b")


def test_draws_go_on_until_one_fits():
    wanted = next(number for number in range(100) if split_of(str(number)) == "val")
    assert wanted > 0
    assert draw_until(lambda n: n, str, split="val", max_draws=100, key="key") == wanted


def test_too_few_different_questions_are_an_error_that_names_the_key():
    split = "val" if split_of("always the same") == "train" else "train"
    with pytest.raises(ValueError, match=r"env\.init_args\.x: none of 50 draws .* they were 1 different"):
        draw_until(lambda n: n, lambda n: "always the same", split=split, max_draws=50, key="env.init_args.x")


def test_held_out_seeds_go_through_a_finite_set_in_order():
    seeds = [held_out_seed("test", number) for number in range(12)]
    assert [choose(seed, 5, split="test", purpose="x") for seed in seeds] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert [choose(seed, 5, split="val", purpose="x") for seed in seeds] != [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_other_seeds_draw_evenly():
    counts = Counter(choose(seed, 5, split="train", purpose="x") for seed in range(5000))
    # 1000 each, standard deviation 28: five of them
    assert all(abs(counts[index] - 1000) < 140 for index in range(5))
