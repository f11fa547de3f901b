"""Branches: both sides are traced, and the variables that they leave with different values become results of one `if` operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spirograd.base.dtypes import DType, promote
from spirograd.ir import ops as ir
from spirograd.ir.nodes import Op, Region
from spirograd.lang import scalar
from spirograd.lang.frontend.runtime_values import is_runtime, leaves, pack_tuple, rebuild, same_structure, settle, unpack_tuple
from spirograd.lang.frontend.syntax_facts import CHOSEN, RESULT, RETURNED
from spirograd.lang.frontend.tracer import Tracer
from spirograd.lang.frontend.variables import MemoryVariable, bind
from spirograd.lang.matrix import Matrix, make
from spirograd.lang.scalar import Value, describe, type_error

ONE_BRANCH = "it is assigned in only one branch of an `if`; assign it before the `if`"
DIFFERENT_KINDS = "the branches of an `if` assign different kinds of things to it"
# How many operations the sides of a conditional may have to be run both, without a branch.
_MAX_SPECULATED = 16
# A branch that was traced: its region, suspended, and the variables at its end.
_Side = tuple[tuple[tuple[Op, ...], list[Op]], dict[str, object]]


def branch(t: Tracer, condition: Value, then: Callable[[], None], orelse: Callable[[], None]) -> None:
    """Emit an `if` operation; variables that either side changes become its results."""
    before, out_of_scope = t.frame.variables, dict(t.frame.out_of_scope)
    sides = _trace_sides(t, then, orelse)
    t.frame.out_of_scope = out_of_scope
    (_, a), (_, b) = sides
    _join(t, condition, sides, sorted(name for name in {*a, *b} if not a.get(name) is before.get(name) is b.get(name)))


def choose(t: Tracer, condition: object, then: Callable[[], object], orelse: Callable[[], object]) -> object:
    """Return ``then()`` or ``orelse()``; only the one chosen runs, unless running both has the same effect."""
    if not isinstance(condition, Value):
        return then() if condition else orelse()

    def kept(side: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            value = side()
            value = pack_tuple(value) if isinstance(value, tuple) else settle(value)
            t.frame.variables[CHOSEN] = value

        return run

    sides = _trace_sides(t, kept(then), kept(orelse))
    (first, then_vars), (second, else_vars) = sides
    a, b = then_vars[CHOSEN], else_vars[CHOSEN]
    a, b = then_vars[CHOSEN], else_vars[CHOSEN] = _broadcast(a, b), _broadcast(b, a)
    if not (is_runtime(a) and is_runtime(b) and same_structure(a, b)):
        raise type_error(
            f"the two sides of a conditional are {describe(unpack_tuple(a))} and {describe(unpack_tuple(b))}",
            "use an `if` statement, or give both sides one type",
        )
    changed = [name for name in sorted({*then_vars, *else_vars}) if name == CHOSEN or then_vars.get(name) is not else_vars.get(name)]
    if changed == [CHOSEN] and _is_cheap(first[1]) and _is_cheap(second[1]):
        for op in (*first[1], *second[1]):
            t.b.append(op)
        pairs = [(x, y, _common(x.dtype, y.dtype)) for x, y in zip(leaves(a), leaves(b))]
        return unpack_tuple(rebuild(a, [scalar.emit_select(condition, scalar.cast(x, to), scalar.cast(y, to)) for x, y, to in pairs]))
    _join(t, condition, sides, changed)
    return unpack_tuple(t.frame.variables.pop(CHOSEN))


def _trace_sides(t: Tracer, *sides: Callable[[], None]) -> list[_Side]:
    """Trace the sides of a branch, and leave variables and source location as they were."""
    before, loc = t.frame.variables, t.b.loc
    traced: list[_Side] = []
    for side in sides:
        t.frame.variables = dict(before)
        t.b.begin()
        with t.trace.guarded():
            side()
        traced.append((t.b.suspend(), t.frame.variables))
    t.frame.variables = dict(before)
    t.b.loc = loc
    return traced


def _join(t: Tracer, condition: Value, sides: Sequence[_Side], candidates: Sequence[str]) -> None:
    """Emit an `if` operation of two suspended regions; names of ``candidates`` that they leave with different values become its results."""
    (_, then_vars), (_, else_vars) = sides
    merged = _merge(t, candidates, then_vars, else_vars)
    regions: list[Region] = []
    for region, variables in sides:
        t.b.resume(region)
        results: list[Op] = []
        for name, types in merged.items():
            values = leaves(variables[name]) if name in variables else [scalar.constant(0, to) for to in types]
            results += [scalar.cast(v, to).op for v, to in zip(values, types)]
        regions.append(t.b.end(results))
    bind(t, list(merged), {**else_vars, **then_vars}, t.b.if_(condition.op, *regions))


def _merge(t: Tracer, candidates: Sequence[str], a: dict[str, object], b: dict[str, object]) -> dict[str, list[DType]]:
    """Return names that become results, with the types of their scalars; the others keep their meaning or go out of scope."""
    merged: dict[str, list[DType]] = {}
    for name in candidates:
        x, y = a.get(name), b.get(name)
        if x is y or isinstance(x, MemoryVariable):
            if x is not None:
                t.frame.variables[name] = x
            continue
        value = y if x is None else x
        if name == RESULT and RETURNED in t.frame.variables and (x is None or y is None) and is_runtime(value):
            merged[name] = [v.dtype for v in leaves(value)]  # the other side has not returned
            continue
        if is_runtime(x) and is_runtime(y) and same_structure(x, y):
            merged[name] = [_common(p.dtype, q.dtype) for p, q in zip(leaves(x), leaves(y))]
            continue
        t.frame.variables.pop(name, None)
        t.frame.out_of_scope[name] = ONE_BRANCH if x is None or y is None else DIFFERENT_KINDS
    return merged


def _common(a: DType, b: DType) -> DType:
    return a if a is b else promote(a, b)


def _broadcast(a: object, b: object) -> object:
    return make([a] * len(b.entries), b.shape) if isinstance(a, Value) and isinstance(b, Matrix) else a


def _is_cheap(ops: list[Op]) -> bool:
    """Return whether operations may run though their values are not needed; calls might not return."""
    return len(ops) <= _MAX_SPECULATED and all(op.code.effect == "pure" and op.code is not ir.call for op in ops)
