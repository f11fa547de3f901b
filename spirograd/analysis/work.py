"""The work of an iteration of a task, as far as its IR determines it: bytes of loads and stores, floating-point operations."""

from __future__ import annotations

from spirograd.base.artifact import Work
from spirograd.base.dtypes import DType, Vec
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Op, Region, TempRef, ref_of

_MEMORY = (FieldRef, ArrayRef, TempRef)
_MOVED = (
    ops.cast, ops.bitcast, ops.select, ops.stop_grad, ops.recall, ops.with_partial, ops.opaque, ops.vec, ops.extract, ops.insert, ops.call,
    ops.result,
)  # fmt: skip
# Operations that compute -> how many operations count for each float of the result.
_COMPUTING = {code: 2 if code is ops.fma else 1 for code in ops.ALL if code.effect == "pure" and code.arity != 0 and code not in _MOVED}
# Accesses to memory -> how many times they move their element.
_MOVES = {ops.load: 1, ops.store: 1, ops.atomic: 2, ops.cas: 2, ops.claim: 2}
_CALLS = (ops.call, ops.call_memory)


def work_of(region: Region) -> Work:
    """Return the work of running ``region`` once. Loads from an element that is the same in each iteration do not count. For an `if`, the
    larger numbers of both branches count. A loop whose bounds are not constants counts once, and makes the result a lower bound, as calls
    do."""
    moved = computed = 0
    exact = True
    for op in region.ops:
        code = op.code
        if code in _COMPUTING:
            t, lanes = (op.type.elem, op.type.n) if isinstance(op.type, Vec) else (op.type, 1)
            if isinstance(t, DType) and t.is_float:
                computed += lanes * _COMPUTING[code]
        elif code in _MOVES:
            moved += _bytes(op)
        elif op.regions:
            inner = _of_control(op)
            moved, computed, exact = moved + inner.nbytes, computed + inner.operations, exact and inner.exact
        elif code in _CALLS:
            exact = False
    return Work(moved, computed, exact)


def _of_control(op: Op) -> Work:
    parts = [work_of(region) for region in op.regions]
    exact = all(part.exact for part in parts)
    if op.code is ops.if_:
        return Work(max(part.nbytes for part in parts), max(part.operations for part in parts), exact)
    known = op.code is ops.for_ and op.args[0].code is ops.const and op.args[1].code is ops.const
    times = max(int(op.args[1].attr) - int(op.args[0].attr), 0) if known else 1
    return Work(times * sum(part.nbytes for part in parts), times * sum(part.operations for part in parts), exact and known)


def _bytes(op: Op) -> int:
    ref = ref_of(op)
    if not isinstance(ref, _MEMORY) or (op.code is ops.load and all(a.code is ops.const for a in op.args)):
        return 0
    return _MOVES[op.code] * ref.dtype.size
