"""Parallel loops: which loops can be, and what their iterations do with variables from outside."""

from __future__ import annotations

import ast
import functools
from typing import SupportsInt

from spirograd.base.dtypes import VOID
from spirograd.ir import ops as ir
from spirograd.ir.nodes import Label, LoopAttr
from spirograd.lang import groups, scalar
from spirograd.lang.frontend.call_effects import changed_arguments, changed_names, static_callee
from spirograd.lang.frontend.call_targets import is_atomic
from spirograd.lang.frontend.control import block_where
from spirograd.lang.frontend.loop_dependences import ORDERED, PRIVATE, SHARED, sharing
from spirograd.lang.frontend.random_streams import RandomStream
from spirograd.lang.frontend.runtime_values import is_runtime, leaves
from spirograd.lang.frontend.serial_loops import INDEX, LOOP_LOCAL, Bind
from spirograd.lang.frontend.syntax_facts import BREAK, CONTINUE, RETURNED, RNG, jumps, names_in
from spirograd.lang.frontend.tracer import Tracer
from spirograd.lang.frontend.variables import MemoryVariable, end_scope, move_to_memory
from spirograd.lang.scalar import Value


def parallel_loop(t: Tracer, node: ast.For, begin: Value, end: Value, bind: Bind, options: dict[str, object]) -> None:
    """Emit a parallel `for` operation, from ``begin`` to below ``end``; ``bind`` gives the targets their values."""
    _refuse_jumps(t, node)
    b, random_stream, threads = t.b, t.random_stream, options.get("block_dim") or 0
    assert isinstance(threads, SupportsInt)
    memory = {name: held for name, held in t.frame.variables.items() if isinstance(held, MemoryVariable)}
    _share_variables(t, node)
    before, loc = dict(t.frame.variables) | memory, b.loc
    t.parallel_loops += 1
    (index,) = b.begin(begin.op.type)
    if random_stream is not None:
        t.random_stream = RandomStream(b, t.parallel_loops, index)
        t.frame.variables[RNG] = t.random_stream.first
    t.trace.group = scope = groups.enter(index, begin, end, int(threads))
    runs = bind(Value(index))
    if t.trace.options.detect_races:
        _label_iteration(t, node)
    t.frame.variables[CONTINUE] = scalar.constant(False)
    block_where(t, runs, node.body)
    region = b.end()
    t.trace.group = None
    end_scope(t, before, LOOP_LOCAL, node.body)
    t.frame.out_of_scope |= {name: INDEX for name in names_in(node.target) if name not in before}
    t.random_stream = random_stream
    size = scope.size if scope.used else int(threads)
    attr = LoopAttr(True, str(options.get("name") or ""), size, t.trace.options.unfused_by, scope.used)
    b.loc = loc
    b.emit(ir.for_, begin.op, end.op, attr=attr, type=(), regions=(region,))


def _label_iteration(t: Tracer, node: ast.For) -> None:
    """Say which index the iteration has, for reports of races."""
    names = [target.id for target in ast.walk(node.target) if isinstance(target, ast.Name)]
    index = [v.op for name in names for v in leaves(t.frame.variables[name])]
    t.b.emit(ir.label, *index, attr=Label(), type=VOID)


def _refuse_jumps(t: Tracer, node: ast.For) -> None:
    """Raise SpirogradSyntaxError for a jump out of a parallel loop."""
    taken = jumps(node.body)
    if BREAK in taken:
        raise t.syntax_error(
            "`break` cannot leave a parallel loop",
            _find(node, ast.Break),
            "put `sg.loop_config(serialize=True)` before the loop, or loop in an inner loop",
        )
    if RETURNED in taken:
        raise t.syntax_error(
            "a parallel loop cannot return from the kernel", _find(node, ast.Return), "store the result, and return it after the loop"
        )


def _find(node: ast.AST, kind: type[ast.AST]) -> ast.AST:
    return next(n for n in ast.walk(node) if isinstance(n, kind))


def needs_order(t: Tracer, node: ast.For, begin: Value, end: Value) -> bool:
    """Return whether a loop that could be parallel must run in order all the same.

    A function may leave its loops early; and the iterations of any loop may hand on values in variables.
    """
    if not t.frame.is_kernel and jumps(node.body) & {BREAK, RETURNED}:
        return True
    for name, use in _outer_variables(t, node):
        if use == ORDERED:
            if not _at_most_one(begin, end):
                t.trace.warn(
                    ("order", str(t.b.loc), name),
                    f"{t.b.loc}: this loop runs in order, not in parallel: `{name}` carries a value from one iteration to the next or "
                    "to what follows. If the order does not matter, update it with `+=` or `sg.atomic_max(...)`; "
                    "`sg.loop_config(serialize=True)` silences this.",
                )
            return True
    return False


def _at_most_one(begin: Value, end: Value) -> bool:
    """Return whether a loop is known to run once at most, as ``for _ in range(1)``, which makes what is inside run in order."""
    first, last = scalar.known(begin), scalar.known(end)
    return isinstance(first, int) and isinstance(last, int) and last - first <= 1


def _outer_variables(t: Tracer, node: ast.For) -> list[tuple[str, str]]:
    """Return variables from outside that a parallel loop may change, and how its iterations use them."""
    frame = t.frame
    changed = (name for name in sorted(changed_names(t, node.body) - names_in(node.target)) if not name.startswith("%"))
    names = [name for name in changed if is_runtime(frame.variables.get(name)) or isinstance(frame.variables.get(name), MemoryVariable)]
    references = functools.partial(changed_arguments, t)

    def calls_atomic(call: ast.Call) -> bool:
        return is_atomic(static_callee(t, call.func))

    return [(name, sharing(name, node, frame.source.tree, name in frame.by_reference, references, calls_atomic)) for name in names]


def _share_variables(t: Tracer, node: ast.For) -> None:
    """Move variables from outside to memory that the iterations update together; each iteration gets a copy of a private one."""
    for name, use in _outer_variables(t, node):
        held = t.frame.variables[name]
        if use == SHARED and not isinstance(held, MemoryVariable):
            move_to_memory(t, name)
        elif use == PRIVATE and isinstance(held, MemoryVariable):
            t.frame.variables[name] = held.lvalue.load()
