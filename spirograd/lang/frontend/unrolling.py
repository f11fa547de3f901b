"""Unrolled loops: over items that are known while compiling, the body traced once for each."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable
from typing import Any

from spirograd.base.errors import render
from spirograd.lang.frontend.call_effects import is_static
from spirograd.lang.frontend.control import block
from spirograd.lang.frontend.frames import LoopScope
from spirograd.lang.frontend.loop_spaces import RunTimeRange
from spirograd.lang.frontend.nondeterminism import watched
from spirograd.lang.frontend.tracer import Tracer
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value, describe, type_error

MAX_UNROLLED = 100_000


class StaticBreak(Exception):
    """`break` in an unrolled loop."""


class StaticContinue(Exception):
    """`continue` in an unrolled loop."""


def unroll(t: Tracer, node: ast.For) -> None:
    items = static_items(t, node.iter)
    _warn_of_copies(t, node, len(items))
    t.frame.loops.append(LoopScope("static", t.b.depth, len(items)))
    try:
        for item in items:
            bind_static(t, node.target, item)
            try:
                block(t, node.body)
            except StaticContinue:
                continue
            except StaticBreak:
                break
    finally:
        t.frame.loops.pop()


def _warn_of_copies(t: Tracer, node: ast.For, items: int) -> None:
    """Warn, once for each loop of the source, if this loop brings the copies of its body above the option `unrolling_limit`."""
    around, limit = math.prod(scope.copies for scope in t.frame.loops), t.trace.options.unrolling_limit
    if not 0 < limit < around * items or around > limit:
        return
    loc = t.frame.loc(node)
    nested = f", {items} times in each of {around} copies of the loops around it" if around > 1 else ""
    text = f"this loop is unrolled {around * items} times{nested}: compiling takes long; the option `unrolling_limit` is {limit}"
    t.trace.warn(("unrolled", loc.file, loc.line, loc.col), render(text, loc, "omit `sg.static` to loop at run time"))


def static_items(t: Tracer, node: ast.expr) -> list[object]:
    """Return the items of what an unrolled loop or a comprehension goes over."""
    if isinstance(node, ast.Call) and is_static(t, node) and len(node.args) == 1:
        with t.within_static():  # its argument alone: the entries of a vector may be run-time values, their number is known
            return _items_of(t, node, t.expression(node.args[0]))
    return _items_of(t, node, t.expression(node))


def _items_of(t: Tracer, node: ast.expr, space: Any) -> list[object]:
    t.at(node)
    if isinstance(space, (RunTimeRange, Value)):
        raise type_error(
            f"an unrolled loop needs bounds that are known while compiling, got {describe(space)}",
            "omit `sg.static` to loop at run time",
        )
    try:
        with watched(t, list, (space,)):
            items = list(space)
    except TypeError:
        raise type_error(f"cannot loop over {describe(space)} while compiling") from None
    if len(items) > MAX_UNROLLED:
        raise type_error(f"this loop would be unrolled {len(items)} times", "omit `sg.static` to loop at run time")
    return items


def bind_static(t: Tracer, target: ast.expr, item: object) -> None:
    """Bind a loop target to a compile-time object, as it is."""
    if isinstance(target, ast.Name):
        t.frame.variables[target.id] = item
        return
    if not isinstance(target, (ast.Tuple, ast.List)):
        raise t.syntax_error("the target of a loop must be a name or a tuple of names", target)
    if not isinstance(item, (Matrix, Iterable)):
        raise t.syntax_error(f"cannot unpack {describe(item)} into {len(target.elts)} names", target)
    items = list(item.entries) if isinstance(item, Matrix) else list(item)
    if len(items) != len(target.elts):
        raise t.syntax_error(f"cannot unpack {len(items)} values into {len(target.elts)} names", target)
    for element, value in zip(target.elts, items):
        bind_static(t, element, value)
