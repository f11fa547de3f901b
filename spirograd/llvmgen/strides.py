"""Whether a parallel loop is better left to the SLP vectoriser: bodies that work on small matrices stored element after element.

LLVM combines accesses of neighbouring iterations that are up to 8 elements apart; beyond that it gathers element by element, which its cost
model underrates (matrices of 4x4: 66 ns against 9 ns each without).
"""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region

_WIDEST_INTERLEAVED = 8
# A gathered access costs about as much as vectorising this many arithmetic operations gains.
_OPERATIONS_PER_ACCESS = 4
_FREE = frozenset((ops.const, ops.result, ops.slot, ops.cast, ops.bitcast, ops.yield_))


def prefers_scalar_iterations(body: Region, invariant: Sequence[Op] = ()) -> bool:
    """Whether the loop over ``body`` (index: its first parameter) should not be vectorised across iterations.

    ``invariant``: values from outside, the same in all iterations.
    """
    strides: dict[Op, int | None] = {body.params[0]: 1, **dict.fromkeys(invariant, 0)}
    wide = arithmetic = 0
    for op in body.walk():
        if op.code in (ops.for_, ops.while_):
            return False  # only innermost loops are vectorised: there is nothing to prevent
        if op.code in (ops.load, ops.store):
            step = stride(op.args[0], strides)
            wide += step is not None and abs(step) > _WIDEST_INTERLEAVED
        elif op.code not in _FREE:
            arithmetic += op.attr != "nsw"
    return wide * _OPERATIONS_PER_ACCESS > arithmetic


def stride(op: Op, known: dict[Op, int | None]) -> int | None:
    """How much ``op`` grows per iteration if that is a constant, else None."""
    if op not in known:
        known[op] = _compute(op, known)
    return known[op]


def _compute(op: Op, known: dict[Op, int | None]) -> int | None:
    if op.code in (ops.const, ops.slot):
        return 0
    if op.code is ops.cast:
        return stride(op.args[0], known)
    if op.code not in (ops.add, ops.sub, ops.mul):
        return None
    a, b = (stride(arg, known) for arg in op.args)
    if a is None or b is None:
        return None
    if op.code is ops.mul:
        left, right = op.args
        if a == b == 0:
            return 0
        if right.code is ops.const:
            return a * int(right.attr)
        return b * int(left.attr) if left.code is ops.const else None
    return a + b if op.code is ops.add else a - b
