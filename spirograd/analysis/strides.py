"""Strides of integers: their growth from one iteration of a loop to the next, where it is constant."""

from __future__ import annotations

from spirograd.ir import ops
from spirograd.ir.nodes import Op


def stride(op: Op, known: dict[Op, int | None]) -> int | None:
    """Return the growth of ``op`` per iteration if it is constant, else None."""
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
