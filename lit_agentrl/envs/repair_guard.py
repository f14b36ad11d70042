"""Edits that a repair never needs: reaching for the interpreter, the test runner or other processes."""

from __future__ import annotations

import ast

_NAMES = frozenset(
    [
        "__import__",
        "__builtins__",
        "__subclasses__",
        "__globals__",
        "__code__",
        "__closure__",
        "__bases__",
        "__mro__",
        "__loader__",
        "__spec__",
        "exec",
        "eval",
        "compile",
        "globals",
        "locals",
        "vars",
        "breakpoint",
        "open",
        "input",
        "exit",
        "quit",
        "_getframe",
        "_current_frames",
        "modules",
        "meta_path",
        "settrace",
        "setprofile",
        "gc",
        "inspect",
        "ctypes",
        "importlib",
        "pytest",
        "_pytest",
        "unittest",
        "doctest",
        "pluggy",
        "atexit",
        "signal",
        "threading",
        "multiprocessing",
        "subprocess",
        "_exit",
        "abort",
        "kill",
        "fork",
        "forkpty",
        "execv",
        "system",
        "popen",
        "posix",
        "co_consts",
        "f_back",
        "f_globals",
        "f_locals",
        "tb_frame",
    ]
)


def objection(before: str, after: str) -> str | None:
    """Return why a changed file is not accepted; `None` if it is.

    Args:
        before: The file as the task gave it.
        after: The file with the edit.
    """
    try:
        tree = ast.parse(after)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"the file would not be valid Python any more: {error}"
    old_imports, old_names = _mentions(ast.parse(before))
    imports, names = _mentions(tree)
    if imports - old_imports:
        return f"a repair imports nothing new: {', '.join(sorted(imports - old_imports))}"
    if (names - old_names) & _NAMES:
        return f"a repair does not need {', '.join(sorted((names - old_names) & _NAMES))}"
    return None


def _mentions(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Return the imported modules, and all names, attributes and identifiers in texts."""
    imports: set[str] = set()
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                imports |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                imports |= {f"{node.module or '.'}.{alias.name}" for alias in node.names}
            case ast.Name():
                names.add(node.id)
            case ast.Attribute():
                names.add(node.attr)
            case ast.Constant(value=str(text)) if text.isidentifier():  # as getattr would take it
                names.add(text)
    return imports, names
