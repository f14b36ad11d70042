from typing import Literal

import pytest

from lit_agentrl.agents.tools.base import ToolBox, resolve_tool, tool_spec

CALCULATOR = "lit_agentrl.agents.tools.calculator.calculator"


def search(
    query: str, limit: int = 3, order: Literal["new", "old"] = "new", tags: list[str] | None = None
) -> list[str]:
    """Search the notes.

    This paragraph costs tokens and is left out.

    Args:
        query: What to look
            for.
        limit: How many.
    """
    return [query] * limit


def test_the_schema_comes_from_signature_and_docstring():
    spec = tool_spec(search)
    assert (spec.name, spec.description) == ("search", "Search the notes.")
    assert spec.parameters == {
        "type": "object",
        "required": ["query"],
        "properties": {
            "query": {"type": "string", "description": "What to look for."},
            "limit": {"type": "integer", "default": 3, "description": "How many."},
            "order": {"type": "string", "enum": ["new", "old"], "default": "new"},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
        },
    }


def test_a_tool_without_arguments_has_an_object_schema():
    def now() -> str:
        """Tell the time."""
        return "noon"

    assert tool_spec(now).parameters == {"type": "object", "properties": {}}
    assert ToolBox([now]).call("now", {}, max_chars=10).text == "noon"


def test_argument_names_that_pydantic_reserves_are_fine():
    def odd(schema: str, model_config: int = 0, _x: int = 1) -> str:
        """Take odd names."""
        return f"{schema}{model_config}{_x}"

    assert ToolBox([odd]).call("odd", {"schema": "a", "_x": 5}, max_chars=10).text == "a05"


def test_a_tool_needs_a_summary_line():
    def silent(x: int) -> int:
        return x

    with pytest.raises(ValueError, match=r"agent\.init_args\.tools: .*silent.* docstring"):
        tool_spec(silent)


def test_positional_only_parameters_are_refused():
    def positional(x: int, /) -> int:
        """Take a position."""
        return x

    with pytest.raises(ValueError, match=r"agent\.init_args\.tools: .*'x' cannot be passed by name"):
        tool_spec(positional)


def test_tools_are_named_by_import_path_and_keep_their_order():
    box = ToolBox([search, CALCULATOR])
    assert [spec.name for spec in box.specs] == ["search", "calculator"]
    assert box.call("calculator", {"expression": "6*7"}, max_chars=100).text == "42"


@pytest.mark.parametrize(
    "path",
    [
        "calculator",
        "lit_agentrl.agents.tools.calculater.calculator",
        "lit_agentrl.agents.tools.calculator.calc",
        "a.b",
    ],
)
def test_wrong_import_paths_name_the_key_and_the_closest_tool(path):
    with pytest.raises(ValueError, match=rf"agent\.init_args\.tools: .*closest: .*{CALCULATOR}"):
        resolve_tool(path)


def test_an_empty_import_path_is_told():
    with pytest.raises(ValueError, match=r"agent\.init_args\.tools: '' is not the import path .*closest: lit_agentrl"):
        resolve_tool("")


def test_a_missing_dependency_of_a_tool_is_told_apart_from_a_wrong_path(tmp_path, monkeypatch):
    (tmp_path / "tool_with_dependency.py").write_text("import there_is_no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="cannot be imported: No module named 'there_is_no_such_library'"):
        resolve_tool("tool_with_dependency.tool")


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two tools are named 'search'"):
        ToolBox([search, search])


@pytest.mark.parametrize(
    ("value", "text"), [(3, "3"), (None, "null"), ({"a": [1, True]}, '{"a": [1, true]}'), ({1}, "{1}")]
)
def test_values_other_than_text_become_json_where_possible(value, text):
    def give() -> object:
        """Give it."""
        return value

    assert ToolBox([give]).call("give", {}, max_chars=100).text == text


def test_importing_tools_brings_in_neither_torch_nor_reasoning_gym():
    import subprocess
    import sys

    code = (
        "import sys, lit_agentrl.testing, lit_agentrl.envs.reasoning, lit_agentrl.envs.arithmetic\n"
        "assert not {'torch', 'reasoning_gym'} & set(sys.modules)\n"
        "lit_agentrl.envs.reasoning.ReasoningGym().sample_task(0, 'train')\n"
        "assert 'reasoning_gym' in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
