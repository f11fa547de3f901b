"""Dependences between the iterations of a loop at the top of a kernel through variables from outside, found in the syntax: whether the
iterations may run in parallel."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from spirograd.base.records import dataclass
from spirograd.lang.frontend.syntax_facts import ATOMIC_UPDATES, References, base_of, parts_of

# What iterations do with a variable. PRIVATE: each has its own. SHARED: it lives in memory, and updates are atomic. ORDERED: one iteration
# needs what an earlier one left, or what follows the loop needs what the last one left, so the loop cannot be parallel.
PRIVATE, SHARED, ORDERED = "private", "shared", "ordered"
_NONE, READ, _WRITTEN = "none", "read", "written"
# Whether a call is an atomic operation, which changes its first argument.
IsAtomic = Callable[[ast.Call], bool]


@dataclass(slots=True)
class _Uses:
    """Which kinds of use occur: ``reads``, whole assignments, assignments to parts, atomic updates."""

    reads: bool = False
    assigns: bool = False
    parts: bool = False
    updates: bool = False


def sharing(name: str, loop: ast.For, tree: ast.FunctionDef, kept: bool, references: References, is_atomic: IsAtomic) -> str:
    """PRIVATE, SHARED or ORDERED. ``kept``: the variable outlives the function (a parameter taken by reference)."""
    uses = _Uses()
    for statement in loop.body:
        _collect(statement, name, uses, references, is_atomic)
    live = _after(tree.body, loop, name)
    needed = kept if live == _NONE else live != _WRITTEN
    if first_use(loop.body, name) == READ:
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
                    whole = isinstance(part, ast.Name)
                    uses.assigns |= whole
                    uses.parts |= not whole
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
    """The index expressions on the way from a target to its variable."""
    out: list[ast.expr] = []
    while isinstance(target, (ast.Subscript, ast.Attribute, ast.Starred)):
        if isinstance(target, ast.Subscript):
            out.append(target.slice)
        target = target.value
    return out


# --- what comes first ----------------------------------------------------------------------------------------------------


def _reads(node: ast.AST | None, name: str) -> bool:
    return node is not None and any(_is(n, name) and isinstance(n.ctx, ast.Load) for n in ast.walk(node) if isinstance(n, ast.Name))


def first_use(statements: Sequence[ast.stmt], name: str) -> str:
    """Whether the value that ``name`` has before the statements may be read; or is surely replaced first; or neither."""
    for statement in statements:
        use = _use(statement, name)
        if use != _NONE:
            return use
    return _NONE


def _use(node: ast.stmt, name: str) -> str:
    if isinstance(node, ast.Assign):
        parts = [part for target in node.targets for part in parts_of(target)]
        if _reads(node.value, name) or any(_reads(p, name) for p in parts):
            return READ  # assigning to a part keeps the rest
        return _WRITTEN if any(_is(p, name) for p in parts) else _NONE
    if isinstance(node, ast.AnnAssign):
        return READ if _reads(node.value, name) else _WRITTEN if _is(node.target, name) else _NONE
    if isinstance(node, ast.AugAssign):
        return READ if _is(base_of(node.target), name) or _reads(node.value, name) or _reads(node.target, name) else _NONE
    if isinstance(node, ast.If):
        sides = {first_use(node.body, name), first_use(node.orelse, name)}
        return READ if _reads(node.test, name) or READ in sides else _WRITTEN if sides == {_WRITTEN} else _NONE
    if isinstance(node, ast.For):
        own = any(_is(t, name) for t in parts_of(node.target))
        return READ if _reads(node.iter, name) or (not own and first_use(node.body, name) == READ) else _NONE
    if isinstance(node, ast.While):
        return READ if _reads(node.test, name) or first_use(node.body, name) == READ else _NONE
    return READ if _reads(node, name) else _NONE


def read_after(name: str, loop: ast.For, tree: ast.FunctionDef) -> bool:
    """Whether what follows ``loop`` in the function may read the value that ``name`` has then."""
    return _after(tree.body, loop, name) not in (_NONE, _WRITTEN)


def _after(statements: Sequence[ast.stmt], loop: ast.For, name: str) -> str:
    """`first_use` of what may run after ``loop``; "unknown" if it is not among the statements."""
    for k, statement in enumerate(statements):
        if statement is loop:
            return first_use(statements[k + 1 :], name)
        for block in (getattr(statement, "body", None), getattr(statement, "orelse", None)):
            inside = _after(block, loop, name) if block else "unknown"
            if inside == "unknown":
                continue
            if inside == _NONE and isinstance(statement, (ast.For, ast.While)):
                inside = _next_iteration(statement, name)
            return inside if inside != _NONE else first_use(statements[k + 1 :], name)
    return "unknown"


def _next_iteration(loop: ast.For | ast.While, name: str) -> str:
    """`first_use` of the next iteration of ``loop``. A `for` gives its index a value, and does not evaluate its range again."""
    if isinstance(loop, ast.While):
        return _use(loop, name)
    own = any(_is(part, name) for part in parts_of(loop.target))
    return READ if not own and first_use(loop.body, name) == READ else _NONE
