"""P33: a tool output of 10 MB, binary or not UTF-8, is cut with a marker and flagged."""

import pytest

from lit_agentrl.agents.tools.base import ToolBox


def call(value, max_chars=20):
    def give() -> object:
        """Give it."""
        return value

    return ToolBox([give]).call("give", {}, max_chars=max_chars)


def test_ten_megabytes_are_cut_with_a_marker():
    output = call("x" * 10_485_760)
    assert output.text == "x" * 20 + "\n[... cut, 10485760 characters in all]"
    assert output.cut
    assert not output.error


def test_an_output_of_just_the_allowed_length_is_left_alone():
    output = call("x" * 20)
    assert (output.text, output.cut) == ("x" * 20, False)


@pytest.mark.parametrize("data", [b"\xff\xfe\x00\x01", bytearray(b"\x89PNG\r\n\x1a\n"), memoryview(b"\x80")])
def test_binary_output_is_replaced_by_a_marker(data):
    output = call(data)
    assert output.text == f"[... cut, {len(data)} bytes that are not text]"
    assert output.cut


def test_bytes_that_are_utf8_are_text():
    output = call("naïve".encode())
    assert (output.text, output.cut) == ("naïve", False)


def test_characters_that_utf8_cannot_hold_are_replaced_and_counted():
    output = call("a\udcffb\x00c", max_chars=100)  # a lone surrogate, as from os.fsdecode, and a NUL
    assert output.text == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c\n" + (
        "[... 2 characters that are not text were replaced]"
    )
    assert output.cut
    output.text.encode()


def test_line_breaks_and_tabs_are_text():
    assert call("a\tb\r\nc").cut is False


def test_a_large_nested_value_is_cut_like_text():
    output = call({"rows": list(range(100_000))})
    assert output.cut
    assert output.text.startswith('{"rows": [0, 1, 2, 3')
