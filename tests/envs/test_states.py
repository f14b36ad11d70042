"""State keys: what makes two of them equal."""

from lit_agentrl.envs.states import History, digest
from lit_agentrl.types import ToolCall


def test_keys_depend_on_what_happened_and_where_it_was_cut():
    assert History("a", "b").add("c") == History("a").add("b", "c") == digest("a", "b", "c")
    assert digest("ab", "c") != digest("a", "bc")


def test_asking_for_the_key_changes_nothing():
    history = History("a")
    assert history.key == history.key == digest("a")


def test_half_a_character_has_a_key():
    assert digest("\ud800") != digest("?")


def test_calls_count_with_their_arguments_and_answers_but_not_their_ids():
    def key(call_id="1", name="look", output="a", **arguments):
        return History("t").add_calls([(ToolCall(id=call_id, name=name, arguments=arguments), output)])

    assert key(x=1, y=2) == key(y=2, x=1) == key(call_id="2", x=1, y=2)
    assert len({key(), key(name="see"), key(output="b"), key(x=1), key(x=2)}) == 5
