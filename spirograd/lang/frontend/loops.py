"""`for` statements: unrolled, or over a range or an index space at run time; parallel at the outermost level of a kernel."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import numpy as np

from spirograd.base.wording import counted
from spirograd.lang import forms, scalar
from spirograd.lang.frontend.call_effects import is_static
from spirograd.lang.frontend.control import at_top_level
from spirograd.lang.frontend.frames import LoopScope
from spirograd.lang.frontend.live_variables import read_after
from spirograd.lang.frontend.loop_spaces import RunTimeRange, loop_space
from spirograd.lang.frontend.parallel_loops import needs_order, parallel_loop
from spirograd.lang.frontend.serial_loops import Bind, refuse_else, serial_loop
from spirograd.lang.frontend.syntax_facts import names_in
from spirograd.lang.frontend.tracer import Handler, Tracer
from spirograd.lang.frontend.trip_counts import range_number, range_type, strided
from spirograd.lang.frontend.unrolling import bind_static, unroll
from spirograd.lang.matrix import make
from spirograd.lang.scalar import Value, describe, type_error


def _for(t: Tracer, node: ast.For) -> None:
    refuse_else(t, node)
    options, t.loop_options = t.loop_options, {}
    if is_static(t, node.iter):
        unroll(t, node)
        return
    space = t.expression(node.iter)
    t.at(node.iter)
    grouped = isinstance(space, forms.grouped)
    inner = space.space if isinstance(space, forms.grouped) else space
    if isinstance(inner, (range, RunTimeRange)):
        if grouped:
            raise type_error("`grouped` takes a field, an array or an ndrange, not a range", "write `for i in range(...)`")
        _range_loop(t, node, inner, options)
    else:
        _space_loop(t, node, inner, grouped, options)


def _space_loop(t: Tracer, node: ast.For, space: object, grouped: bool, options: dict[str, object]) -> None:
    """Trace a loop over an index space. ``grouped``: its indices are one vector."""
    points = loop_space(t, space)
    if points is None:
        hint = "to loop over a list or a vector while compiling: `for x in sg.static(...)`" if hasattr(space, "__iter__") else ""
        hint = "write `range(...)`" if scalar.is_scalar(space) else hint
        hint = "annotate the argument that it is `sg.types.NDArray`" if isinstance(space, np.ndarray) else hint
        raise type_error(f"cannot loop over {describe(space)}", hint)

    def bind(index: Value) -> Value | None:
        indices = points.decode(index)
        _bind_indices(t, node.target, indices, grouped)
        return None if points.is_active is None else points.is_active(index, indices)

    around = t.visited
    _run_time_loop(t, node, scalar.constant(0, points.size.dtype), points.size, bind, options)
    t.visited = around


def _bind_indices(t: Tracer, target: ast.expr, indices: Sequence[Value], grouped: bool) -> None:
    if isinstance(target, ast.Name):
        if grouped:
            t.frame.variables[target.id] = make(list(indices), (len(indices),))  # of a 0-d space: no indices
            return
        if len(indices) == 1:
            t.frame.variables[target.id] = indices[0]
            return
        raise t.syntax_error(
            f"this loop has {len(indices)} indices, and one name",
            target,
            f"name them all, or write `for {target.id} in sg.grouped(...)`",
        )
    if grouped:
        raise t.syntax_error("`grouped` gives one vector of indices", target, "write `for I in sg.grouped(...)`")
    if isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) != len(indices):
        message = f"this loop has {counted(len(indices), 'index', 'indices')}, and {counted(len(target.elts), 'name')}"
        raise t.syntax_error(message, target)
    bind_static(t, target, list(indices))


def _range_loop(t: Tracer, node: ast.For, space: range | RunTimeRange, options: dict[str, object]) -> None:
    if not isinstance(node.target, ast.Name):
        several = isinstance(node.target, ast.Tuple)
        hint = "loop over several axes with `sg.ndrange(n, m)`, or over a field or array" if several else ""
        raise t.syntax_error("a loop over a range has one index, which is a name", node.target, hint)
    name = node.target.id
    begin, end, step = (space.start, space.stop, space.step) if isinstance(space, range) else (space.begin, space.end, space.step)
    step = scalar.known(step)
    if scalar.is_number(step) and step == 0:
        raise type_error("the step of a range cannot be 0", "use a `while` loop")
    counting = range_type(begin, end, step)
    low, high, value = strided(range_number(begin, counting), range_number(end, counting), step)

    def bind(index: Value) -> None:
        t.frame.variables[name] = value(index)

    _run_time_loop(t, node, low, high, bind, options)


def _run_time_loop(t: Tracer, node: ast.For, begin: Value, end: Value, bind: Bind, options: dict[str, object]) -> None:
    """Trace a loop from ``begin`` to below ``end``; ``bind`` gives its targets their values."""
    _refuse_hidden(t, node)
    parallel = at_top_level(t) and not options.get("serialize", False) and not needs_order(t, node, begin, end)
    t.frame.loops.append(LoopScope("parallel" if parallel else "serial", t.b.depth + 1))
    try:
        if parallel:
            parallel_loop(t, node, begin, end, bind, options)
        else:
            serial_loop(t, node, begin, end, bind)
    finally:
        t.frame.loops.pop()


def _refuse_hidden(t: Tracer, node: ast.For) -> None:
    """Raise SpirogradSyntaxError if an index hides a variable that is read after the loop: Python would leave the last index in it."""
    for name in sorted(names_in(node.target)):
        if name in t.frame.variables and read_after(name, node, t.frame.source.tree):
            raise t.syntax_error(
                f"the index `{name}` of this loop hides the variable `{name}`, which is read after the loop",
                node.target,
                "give the index another name; an index ends with its loop, so assign to the variable in the loop what it is to hold then",
            )


HANDLERS: dict[type[ast.AST], Handler] = {ast.For: _for}
