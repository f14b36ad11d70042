"""Errors about arguments name the key and what is accepted."""

import pytest

from lit_agentrl.envs.arguments import check_at_least, check_some


def test_some_of_the_names_are_fine():
    check_some("games", ["b"], ["a", "b"])
    check_some("games", (), {"a": 1}, or_none=True)
    check_some("games", ["b", "b"], ["a", "b"])


@pytest.mark.parametrize(("given", "options"), [(["a", "c"], {}), ([], {}), (["a", "a"], {"each_once": True})])
def test_other_names_are_not(given, options):
    with pytest.raises(ValueError, match=r"env\.init_args\.games must be some of a, b.*, got \["):
        check_some("games", given, ["a", "b"], **options)


def test_numbers_have_a_least_value():
    check_at_least(1, max_steps=1, other=None)
    with pytest.raises(ValueError, match=r"env\.init_args\.other must be at least 0, got -1"):
        check_at_least(0, max_steps=3, other=-1)
    with pytest.raises(ValueError, match=r"got nan"):
        check_at_least(0, rate=float("nan"))
