"""Live variables: whether the value that a variable has at some place of a function may be read later, found in the syntax. Code
that a compile-time test excludes counts as if it ran."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

from spirograd.lang.frontend.syntax_facts import parts_of

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PARTLY_EVALUATED = (*_COMPREHENSIONS, ast.BoolOp, ast.IfExp)


class _Exits(NamedTuple):
    """Whether the value is read after control has left some statements: at their end, by `break`, by `continue`, by `return`."""

    end: bool = False
    broken: bool = False
    continued: bool = False
    returned: bool = False


def reads_first(statements: Sequence[ast.stmt], name: str) -> bool:
    """Return whether ``statements`` may read the value that ``name`` has before them."""
    return _before(statements, name, _Exits())


def read_after(name: str, loop: ast.For, tree: ast.FunctionDef, kept: bool = False) -> bool:
    """Return whether the value that ``name`` has after ``loop`` may be read. ``kept``: it is at the end of the function. True if the loop
    is not in the function."""
    return _after(tree.body, loop, name, _Exits(end=kept, returned=kept)) is not False


def _before(statements: Sequence[ast.stmt], name: str, exits: _Exits) -> bool:
    """Return whether the value before ``statements`` is live."""
    live = exits.end
    for statement in reversed(statements):
        live = _before_one(statement, name, exits._replace(end=live))
    return live


def _before_one(node: ast.stmt, name: str, exits: _Exits) -> bool:
    if isinstance(node, ast.Break):
        return exits.broken
    if isinstance(node, ast.Continue):
        return exits.continued
    if isinstance(node, ast.Return):
        return _reads(node.value, name) or exits.returned
    if isinstance(node, ast.If):
        sides = [_before(side, name, exits) for side in (node.body, node.orelse)]
        return _reads(node.test, name) or (any(sides) and not _binds(node.test, name))
    if isinstance(node, ast.With):
        return any(_reads(item, name) for item in node.items) or _before(node.body, name, exits)
    if isinstance(node, (ast.For, ast.While)):
        return (isinstance(node, ast.For) and _reads(node.iter, name)) or _before_iteration(node, name, exits)
    if isinstance(node, ast.AugAssign) and _is(node.target, name):
        return True
    return _reads(node, name) or (exits.end and not _binds(node, name))


def _before_iteration(loop: ast.For | ast.While, name: str, exits: _Exits) -> bool:
    """Return whether the value is live where ``loop`` goes on to its next iteration or ends. ``exits``: of the loop."""
    ends = exits.end
    if isinstance(loop, ast.While):
        if _reads(loop.test, name) or _binds(loop.test, name):
            return _reads(loop.test, name)
        ends = ends and not (isinstance(loop.test, ast.Constant) and bool(loop.test.value))
    elif any(_is(part, name) for part in parts_of(loop.target)):
        return ends
    return ends or _before(loop.body, name, _Exits(ends, exits.end, ends, exits.returned))


def _after(statements: Sequence[ast.stmt], loop: ast.For, name: str, exits: _Exits) -> bool | None:
    """Return whether the value after ``loop`` is live; None if it is not among the statements."""
    for k, statement in enumerate(statements):
        if all(node is not loop for node in ast.walk(statement)):
            continue
        inside = exits._replace(end=_before(statements[k + 1 :], name, exits))
        if statement is loop:
            return inside.end
        if isinstance(statement, (ast.For, ast.While)):
            again = _before_iteration(statement, name, inside)
            inside = _Exits(again, inside.end, again, exits.returned)
        sides = [_after(getattr(statement, block, ()), loop, name, inside) for block in ("body", "orelse")]
        return sides[1] if sides[0] is None else sides[0]
    return None


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _reads(node: ast.AST | None, name: str) -> bool:
    """Return whether ``node`` reads the variable; to assign to a part of it keeps the rest. The targets of comprehensions are their own."""
    if node is None:
        return False
    if isinstance(node, ast.Name):
        return node.id == name and isinstance(node.ctx, ast.Load)
    if isinstance(node, _COMPREHENSIONS) and any(_is(part, name) for g in node.generators for part in parts_of(g.target)):
        return _reads(node.generators[0].iter, name)
    return any(_reads(child, name) for child in ast.iter_child_nodes(node))


def _binds(node: ast.AST, name: str) -> bool:
    """Return whether ``node`` surely gives the whole variable another value."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.NamedExpr) or (isinstance(node, ast.AnnAssign) and node.value is not None):
        targets = [node.target]
    if any(_is(part, name) for target in targets for part in parts_of(target)):
        return True
    return not isinstance(node, _PARTLY_EVALUATED) and any(_binds(child, name) for child in ast.iter_child_nodes(node))
