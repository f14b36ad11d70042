import pytest

from lit_agentrl.rewards.code import code_instruction, extract_code, write_code

ADD = "def add(a, b):\n    return a + b"


def test_what_is_written_is_read():
    assert "```python" in code_instruction()
    assert extract_code(write_code(ADD), "add") == ADD


@pytest.mark.parametrize(
    "text",
    [
        ADD,
        f"Sure:\n```python\n{ADD}\n```\nIt adds.",
        f"```\n{ADD}\n```",
        f"```py\n{ADD}\n```\nTry it:\n```python\nadd(1, 2)\n```",  # only one block defines it
        f"```python\n{ADD}\n```\nOnce more:\n```python\n{ADD}\n```",
    ],
)
def test_the_one_block_that_defines_the_function_is_the_program(text):
    assert extract_code(text, "add") == ADD


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I do not know.",
        "```python\nadd(1, 2)\n```",
        f"```python\n{ADD}",  # not closed
        f"```python\n{ADD}\n```\nor\n```python\n{ADD} + 0\n```",  # two different ones
        "```python\nadd = lambda a, b: a + b\n```",
        "```python\ndef add_all(a):\n    return sum(a)\n```",
        "```python\nclass A:\n    def add(self, a):\n        return a\n```",
        f"{ADD}\n```\nx\n```",  # outside of the block
    ],
)
def test_anything_else_is_no_program(text):
    assert extract_code(text, "add") is None


def test_other_functions_and_imports_belong_to_the_program():
    program = "import math\n\n\ndef half(a):\n    return a / 2\n\n\ndef add(a, b):\n    return half(2 * (a + b))"
    assert extract_code(f"```python\n{program}\n```", "add") == program
