"""Serial loops: `for` and `while` operations, whose loop-carried values are the variables that the body changes."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence

from spirograd.base.dtypes import Type, u1, u32
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region
from spirograd.lang import scalar
from spirograd.lang.frontend.call_effects import changed_arguments, changed_names
from spirograd.lang.frontend.control import block_where, condition
from spirograd.lang.frontend.frames import LoopScope
from spirograd.lang.frontend.graph_blocks import refuse_graph_loop
from spirograd.lang.frontend.runtime_values import is_runtime, leaves
from spirograd.lang.frontend.syntax_facts import BREAK, CONTINUE, RESULT, RETURNED, RNG, assigned, jumps, names_in
from spirograd.lang.frontend.tracer import Handler, Tracer
from spirograd.lang.frontend.variables import bind, end_scope, runtime_variables, scalars_of
from spirograd.lang.scalar import Value

LOOP_LOCAL = "it is assigned inside a loop; assign it before the loop to use it afterwards"
INDEX = "it is the index of a loop, and ends with it; keep it in a variable that is assigned before the loop"
# Gives the loop's targets their values, from the index of the flat loop. The result is the condition under which the body runs, None if it
# runs for each index.
Bind = Callable[[Value], "Value | None"]


def refuse_else(t: Tracer, node: ast.For | ast.While) -> None:
    """Raise SpirogradSyntaxError for a loop with an `else`."""
    if node.orelse:
        word = "while" if isinstance(node, ast.While) else "for"
        raise t.syntax_error(f"`else` of a `{word}` loop is not supported in kernels", node.orelse[0], "use a flag")


# --- while -------------------------------------------------------------------------------------------------------------------


def _while(t: Tracer, node: ast.While) -> None:
    refuse_else(t, node)
    refuse_graph_loop(t, node)

    def test() -> Value:
        value = condition(t, node.test)
        return value if isinstance(value, Value) else scalar.constant(value)

    t.frame.loops.append(LoopScope("serial", t.b.depth + 1))
    try:
        assigns = bool(assigned([ast.Expr(node.test)], functools.partial(changed_arguments, t)))
        if assigns or not _loop_with_jumps(t, test, node.body, read=[ast.Expr(node.test)]):
            _loop_with_jumps(t, lambda: scalar.constant(True), [_leave_unless(node.test), *node.body])
    finally:
        t.frame.loops.pop()


def _leave_unless(test: ast.expr) -> ast.If:
    """Return ``if not test: break``, at the source location of ``test``."""
    stop = ast.copy_location(ast.Break(), test)
    return ast.copy_location(ast.If(ast.copy_location(ast.UnaryOp(ast.Not(), test), test), [stop], []), test)


def _loop_with_jumps(
    t: Tracer,
    test: Callable[[], Value],
    body: Sequence[ast.stmt],
    counter: str | None = None,
    start: Callable[[], Value | None] = lambda: None,
    step: Callable[[], None] = lambda: None,
    read: Sequence[ast.stmt] = (),
) -> bool:
    """Emit a `while` operation around ``body``, left early by its jumps; ``start`` and ``step`` begin and end each iteration, ``counter``
    is the variable that they use. ``read``: what is evaluated before the body. Returns False, and emits nothing, if ``test`` draws random
    numbers: the region of a condition cannot pass on how many."""
    taken = jumps(body)
    changed = changed_names(t, body) | ({counter} if counter else set())
    saved = {name: t.frame.variables.get(name) for name in (BREAK, CONTINUE)}
    if BREAK in taken:
        t.frame.variables[BREAK] = scalar.constant(False)
        changed.add(BREAK)
    flags = [f for f in (BREAK, RETURNED) if f in taken]

    def go_on() -> Value:
        value = test()
        for flag in flags:
            value = scalar.bit_and(scalar.logical_not(t.frame.variables[flag]), value)
        return value

    def once() -> None:
        t.frame.variables[CONTINUE] = scalar.constant(False)
        block_where(t, start(), body)
        step()

    emitted = _while_op(t, go_on, once, runtime_variables(t, changed - {CONTINUE, RESULT}), [*read, *body])
    for name, value in saved.items():
        t.frame.variables.pop(name, None)
        if value is not None:
            t.frame.variables[name] = value
    return emitted


def _while_op(t: Tracer, test: Callable[[], Value], body: Callable[[], None], carried: list[str], statements: Sequence[ast.stmt]) -> bool:
    """Emit a `while` operation with the loop-carried variables ``carried``. ``statements``: those that ``test`` and ``body`` trace. Returns
    False, and emits nothing, if ``test`` draws random numbers."""
    b, before, loc = t.b, dict(t.frame.variables), t.b.loc
    initial = scalars_of(t, carried)
    bind(t, carried, before, _begin(t, carried, before))
    condition = test().op
    if t.frame.variables.get(RNG) is not before.get(RNG):
        b.suspend()
        t.frame.variables = before
        return False
    test_region = b.end([condition])
    t.frame.variables = dict(before)
    params = _begin(t, carried, before)
    with t.trace.guarded():
        body_region, more = _body_region(t, carried, before, params, body)
    test_region = Region((*test_region.params, *[Op(ops.param, v.type, loc=loc) for v in more]), test_region.ops)
    end_scope(t, before, LOOP_LOCAL, statements)
    b.loc = loc
    bind(t, carried, before, b.while_([*initial, *more], test_region, body_region))
    return True


# --- for ---------------------------------------------------------------------------------------------------------------------


def serial_loop(t: Tracer, node: ast.For, begin: Value, end: Value, bind_targets: Bind) -> None:
    """Trace a `for` statement whose iterations run in order, from ``begin`` to below ``end``."""
    taken, targets, variables = jumps(node.body), names_in(node.target), t.frame.variables
    hidden = {name: variables.pop(name) for name in targets if name in variables}
    if BREAK not in taken and RETURNED not in taken:

        def body(index: Value) -> None:
            runs = bind_targets(index)
            t.frame.variables[CONTINUE] = scalar.constant(False)
            block_where(t, runs, node.body)

        _for_op(t, begin.op, end.op, body, changed_names(t, node.body) - targets, node.body)
    else:
        _serial_loop_with_jumps(t, node, begin, end, bind_targets)
    t.frame.out_of_scope |= dict.fromkeys(targets, INDEX)
    t.frame.variables.update(hidden)


def _serial_loop_with_jumps(t: Tracer, node: ast.For, begin: Value, end: Value, bind_targets: Bind) -> None:
    """Emit the loop as a `while` operation over a counter."""
    counter = f"%index{len(t.frame.loops)}"
    t.frame.variables[counter] = begin

    def test() -> Value:
        return scalar.cast(scalar.less(scalar.as_value(t.frame.variables[counter]), end), u1)

    def start() -> Value | None:
        return bind_targets(scalar.as_value(t.frame.variables[counter]))

    def step() -> None:
        t.frame.variables[counter] = scalar.as_value(t.frame.variables[counter]) + 1

    _loop_with_jumps(t, test, node.body, counter, start, step)
    del t.frame.variables[counter]


def _for_op(t: Tracer, begin: Op, end: Op, body: Callable[[Value], None], changed: set[str], statements: Sequence[ast.stmt]) -> None:
    """Emit a serial `for` operation; ``body`` gets the index, and traces ``statements``."""
    b, carried = t.b, runtime_variables(t, changed)
    before, loc = dict(t.frame.variables), b.loc
    initial = scalars_of(t, carried)
    index, *params = _begin(t, carried, before, begin.type)
    with t.trace.guarded(not (begin.code is ops.const and end.code is ops.const and begin.attr < end.attr)):
        region, more = _body_region(t, carried, before, params, lambda: body(Value(index)))
    end_scope(t, before, LOOP_LOCAL, statements)
    b.loc = loc
    bind(t, carried, before, b.for_(begin, end, [*initial, *more], region))


# --- regions -----------------------------------------------------------------------------------------------------------------


def _begin(t: Tracer, carried: Sequence[str], models: dict[str, object], *index: Type) -> tuple[Op, ...]:
    """Open a region of a loop. Its parameters: an index, if ``index`` is the type of one, and the scalars of loop-carried variables."""
    types = [leaf.dtype for name in carried for leaf in leaves(models[name])]
    return t.b.begin(*index, *types, names=_names_of_scalars(carried, models))


def _body_region(
    t: Tracer, carried: list[str], models: dict[str, object], params: Sequence[Op], body: Callable[[], None]
) -> tuple[Region, list[Op]]:
    """Close the region that `_begin` opened, with what ``body`` traces. ``params``: for the variables ``carried``.

    If the body draws random numbers or returns, RNG and RESULT are added to ``carried`` and ``models``; the result has their initial
    values. Only draws read RNG, and an iteration does not depend on a RESULT before, so that the parameters can be made afterwards.
    """
    bind(t, carried, models, params)
    counter, more = Value(Op(ops.param, u32, loc=t.b.loc)), list[Op]()
    if RNG in models:
        t.frame.variables[RNG] = counter
    t.frame.variables.pop(RESULT, None)
    body()
    if RNG in models and t.frame.variables[RNG] is not counter:
        carried.append(RNG)
        t.b.add_param(counter.op)
        more.append(scalar.as_value(models[RNG]).op)
    result = t.frame.variables.get(RESULT)
    types = [v.dtype for v in leaves(result)] if is_runtime(result) else []
    if types:
        carried.append(RESULT)
        models[RESULT] = result
        for dtype in types:
            t.b.add_param(Op(ops.param, dtype, loc=t.b.loc))
    region = t.b.end(_next_values(t, carried, models))
    return region, [*more, *[scalar.constant(0, dtype).op for dtype in types]]


def _next_values(t: Tracer, carried: Sequence[str], models: dict[str, object]) -> list[Op]:
    """Return the loop-carried values for the next iteration."""
    out: list[Op] = []
    for name in carried:
        out += [scalar.cast(v, m.dtype).op for v, m in zip(leaves(t.frame.variables[name]), leaves(models[name]))]
    return out


def _names_of_scalars(carried: Sequence[str], models: dict[str, object]) -> list[str | None]:
    """Return what the source calls each loop-carried scalar; None for what only the compiler has."""
    names: list[str | None] = []
    for name in carried:
        parts = leaves(models[name])
        for k in range(len(parts)):
            names.append(None if name.startswith("%") else name if len(parts) == 1 else f"{name}[{k}]")
    return names


HANDLERS: dict[type[ast.AST], Handler] = {ast.While: _while}
