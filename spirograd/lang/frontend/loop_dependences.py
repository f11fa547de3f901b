"""Dependences between the iterations of a loop at the top of a kernel through variables from outside, found in the syntax: whether the
iterations may run in parallel."""

from __future__ import annotations

import ast
from collections.abc import Callable

from spirograd.base.records import dataclass
from spirograd.lang.frontend.live_variables import read_after, reads_first
from spirograd.lang.frontend.syntax_facts import ATOMIC_UPDATES, References, base_of, parts_of

# What iterations do with a variable. PRIVATE: each has its own. SHARED: it lives in memory, and updates are atomic. ORDERED: one iteration
# needs what an earlier one left, or what follows the loop needs what the last one left, so the loop cannot be parallel.
PRIVATE, SHARED, ORDERED = "private", "shared", "ordered"
# Whether a call is an atomic operation, which changes its first argument.
IsAtomic = Callable[[ast.Call], bool]


@dataclass(slots=True)
class _Uses:
    """The kinds of use that occur: ``reads``, whole assignments, assignments to parts, atomic updates."""

    reads: bool = False
    assigns: bool = False
    parts: bool = False
    updates: bool = False


def sharing(name: str, loop: ast.For, tree: ast.FunctionDef, kept: bool, references: References, is_atomic: IsAtomic) -> str:
    """Return PRIVATE, SHARED or ORDERED. ``kept``: the variable outlives the function (a parameter taken by reference)."""
    uses = _Uses()
    for statement in loop.body:
        _collect(statement, name, uses, references, is_atomic)
    needed = read_after(name, loop, tree, kept)
    if reads_first(loop.body, name):
        if uses.assigns or (uses.parts and uses.reads):
            return ORDERED
        return SHARED
    if not needed:
        return PRIVATE
    return ORDERED if uses.reads or uses.updates else SHARED


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _collect(node: ast.AST, name: str, uses: _Uses, references: References, is_atomic: IsAtomic) -> None:
    """Record the uses of ``name`` in ``node``."""

    def inner(*children: ast.AST) -> None:
        for child in children:
            _collect(child, name, uses, references, is_atomic)

    if isinstance(node, ast.AugAssign) and _is(base_of(node.target), name):
        if type(node.op) in ATOMIC_UPDATES:
            uses.updates = True
        else:
            uses.assigns = uses.reads = True
        inner(node.value, *_indices(node.target))
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            for part in parts_of(target):
                if _is(base_of(part), name):
                    is_name = isinstance(part, ast.Name)
                    uses.assigns |= is_name
                    uses.parts |= not is_name
                    inner(*_indices(part))
                else:
                    inner(part)
        inner(node.value)
    elif isinstance(node, ast.Call) and node.args and is_atomic(node) and _is(base_of(node.args[0]), name):
        uses.updates = True
        inner(*_indices(node.args[0]), *node.args[1:])
    elif isinstance(node, ast.Call) and any(_is(base_of(a), name) for a in references(node)):
        uses.assigns = uses.reads = True
    elif isinstance(node, ast.For) and any(_is(t, name) for t in parts_of(node.target)):
        inner(node.iter)  # in its body the name is another variable
    elif isinstance(node, ast.Name) and node.id == name:
        if isinstance(node.ctx, ast.Load):
            uses.reads = True
        else:
            uses.assigns = True
    else:
        inner(*ast.iter_child_nodes(node))


def _indices(target: ast.expr) -> list[ast.expr]:
    """Return the index expressions on the way from a target to its variable."""
    out: list[ast.expr] = []
    while isinstance(target, (ast.Subscript, ast.Attribute, ast.Starred)):
        if isinstance(target, ast.Subscript):
            out.append(target.slice)
        target = target.value
    return out
