"""Blocks and `if`: statements in order; jumps become branches, and flags that guard what follows."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from typing import cast

from spirograd.lang import scalar
from spirograd.lang.frontend.branches import branch
from spirograd.lang.frontend.call_effects import is_static
from spirograd.lang.frontend.runtime_values import is_runtime
from spirograd.lang.frontend.syntax_facts import RETURNED, always_jumps, jumps, serializes
from spirograd.lang.frontend.tracer import Tracer
from spirograd.lang.scalar import Value


def block(t: Tracer, statements: Sequence[ast.stmt]) -> None:
    """Trace statements in order, up to a jump that is always taken."""
    for k, node in enumerate(statements):
        rest = statements[k + 1 :]
        t.reached(node)
        if isinstance(node, ast.If):
            test = condition(t, node.test)
            if not isinstance(test, Value):
                if not (test or node.orelse):
                    t.reached(node, skipped=True)
                block(t, [*(node.body if test else node.orelse), *rest])
                return
            if jumps([node]):
                _jumping_if(t, node, test, rest)
                return
            _plain_if(t, node, test)
            continue
        t.statement(node)
        if isinstance(node, (ast.Break, ast.Continue, ast.Return)):
            return
        if isinstance(node, (ast.For, ast.While)) and RETURNED in jumps([node]) and rest:
            _unless(t, [RETURNED], rest)
            return


def block_where(t: Tracer, test: Value | None, statements: Sequence[ast.stmt]) -> None:
    """Trace the statements of an iteration of a loop, under a condition if there is one."""
    if test is None:
        block(t, statements)
    else:
        branch(t, test, lambda: block(t, statements), lambda: None)


def condition(t: Tracer, node: ast.expr) -> Value | bool:
    """Return a test: a Python bool if it is known while compiling, else a value of type u1."""
    value = t.expression(node)
    t.at(node)
    return scalar.truth(value) if is_runtime(value) or scalar.is_number(value) else bool(value)


def at_top_level(t: Tracer) -> bool:
    """Return whether a loop here would be parallel."""
    return t.b.depth == 1


def _plain_if(t: Tracer, node: ast.If, test: Value) -> None:
    branch(t, test, lambda: block(t, node.body), lambda: _otherwise(t, node, node.orelse))


def _otherwise(t: Tracer, node: ast.If, statements: Sequence[ast.stmt]) -> None:
    """Trace what runs where the test of an `if` is false."""
    if not node.orelse:
        t.reached(node, skipped=True)
    block(t, statements)


def _jumping_if(t: Tracer, node: ast.If, test: Value, rest: Sequence[ast.stmt]) -> None:
    """Trace an `if` that may jump: what follows it goes into the branch that does not, or is guarded by the flags."""
    body, orelse = list(node.body), list(node.orelse)
    body_jumps, else_jumps = always_jumps(body), always_jumps(orelse)
    _refuse_parallel_loops(t, node, rest)
    if body_jumps or else_jumps:
        body += [] if body_jumps else rest
        orelse += [] if else_jumps else rest
        branch(t, test, lambda: block(t, body), lambda: _otherwise(t, node, orelse))
        return
    _plain_if(t, node, test)
    if rest:
        _unless(t, sorted(jumps([node])), rest)


def _refuse_parallel_loops(t: Tracer, node: ast.If, rest: Sequence[ast.stmt]) -> None:
    """Raise SpirogradSyntaxError for a parallel loop after a conditional jump: it would be under a condition."""
    pairs = zip([None, *rest], rest)
    loops = [s for before, s in pairs if isinstance(s, ast.For) and not _is_unrolled(t, s) and not serializes(before)]
    if at_top_level(t) and loops:
        hint = "let the loop test the condition instead"
        what = "a kernel"
        if not t.frame.is_kernel:
            hint += ", or put `sg.loop_config(serialize=True)` before it: at the top of a kernel it is parallel"
            what = f"function `{t.frame.source.name}`, called at the top of a kernel,"
        raise t.syntax_error(f"{what} cannot return under a run-time condition before a parallel loop", node, hint)


def _is_unrolled(t: Tracer, node: ast.For) -> bool:
    """Return whether a loop and those in it are unrolled."""
    return all(is_static(t, n.iter) for n in ast.walk(node) if isinstance(n, ast.For))


def _unless(t: Tracer, flags: Sequence[str], rest: Sequence[ast.stmt]) -> None:
    """Trace ``rest`` under the condition that none of the flags is set."""
    conditions = cast("list[scalar.Scalar]", [t.frame.variables[name] for name in flags])
    stopped = functools.reduce(scalar.bit_or, conditions)
    go = scalar.known(scalar.logical_not(stopped))
    if go is True:
        block(t, rest)
    elif isinstance(go, scalar.Value):
        branch(t, go, lambda: block(t, rest), lambda: None)
