"""Small bugs in Python source, as people make them: one operator, constant or condition is another."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
_MAX_CONSTANT = 10**6


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutation:
    """One bug."""

    kind: str
    function: str
    """Qualified name of the function that it is in."""
    line: int
    source: str
    """The whole file with it."""


def mutations(source: str) -> list[Mutation]:
    """Return the bugs that can be made in functions of a file, each another program, in the order of the lines."""
    tree = ast.parse(source)
    found: list[Mutation] = []
    seen = {ast.dump(tree)}
    for function, node in _places(tree, ()):
        for kind, changed in _changes(node):
            text = _replaced(source, node, ast.unparse(changed))
            try:
                form = ast.dump(ast.parse(text))
            except (SyntaxError, ValueError):
                continue
            if form not in seen:
                seen.add(form)
                found.append(Mutation(kind=kind, function=function, line=node.lineno, source=text))
    return found


def _places(node: ast.AST, names: tuple[str, ...], *, inside: bool = False) -> Iterator[tuple[str, ast.expr]]:
    """Yield expressions inside of functions; annotations, decorators and f-strings are left alone."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                continue
            path, within = names, inside
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                path = (*names, child.name)
                within = inside or not isinstance(child, ast.ClassDef)
            if within and isinstance(child, ast.expr):
                yield ".".join(path), child
            yield from _places(child, path, inside=within)


def _changes(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    changed = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            changed.ops = [_COMPARISONS[type(operator)]()]
            yield "comparison", changed
        case ast.BinOp(op=operator, left=left) if type(operator) in _OPERATORS and not _is_text(left):
            changed.op = _OPERATORS[type(operator)]()
            yield "operator", changed
        case ast.BoolOp(op=operator):
            changed.op = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "and_or", changed
        case ast.UnaryOp(op=ast.Not()):
            yield "not", changed.operand
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(value=not value)
        case ast.Constant(value=int(value)) if abs(value) < _MAX_CONSTANT:
            yield "constant", ast.Constant(value=value + 1)
        case ast.IfExp():
            changed.body, changed.orelse = changed.orelse, changed.body
            yield "branches", changed
        case ast.Call(args=[first, second, *_]) if not any(isinstance(a, ast.Starred) for a in (first, second)):
            changed.args[0], changed.args[1] = second, first
            yield "arguments", changed


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _replaced(source: str, node: ast.expr, text: str) -> str:
    """Put another text in the place of a node; the columns of the syntax tree count bytes."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    data = source.encode()
    return (data[:begin] + text.encode() + data[end:]).decode()
