"""Bounds of the absolute values of floats, from the operations that make them: where arguments of sines are known not to be large."""

from __future__ import annotations

import math
from collections.abc import Callable

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op
from spirograd.ir.ops import OpCode

_DEPTH = 32  # of operations that are looked at
# By operation: a bound of the result, from those of the operands.
_BOUNDS: dict[OpCode, Callable[..., float]] = {
    ops.neg: lambda a: a,
    ops.abs_: lambda a: a,
    ops.add: lambda a, b: a + b,
    ops.sub: lambda a, b: a + b,
    ops.mul: lambda a, b: a * b,
    ops.fma: lambda a, b, c: a * b + c,
    ops.min_: max,
    ops.max_: max,
}


class Magnitudes:
    """``most(value)``: what the absolute value of a float does not exceed, but for rounding and overflow, unless it is NaN; infinity if
    nothing is known. Values that have overflowed may be infinite, or NaN, where the bound is finite.

    Sines and cosines count as at most 1, infinity as one of their arguments included: NaN is what they must give then."""

    def __init__(self) -> None:
        self._known: dict[Op, tuple[int, float]] = {}  # to which depth operations were looked at, and the bound

    def most(self, value: Op, depth: int = _DEPTH) -> float:
        """See `Magnitudes`."""
        known, found = self._known.get(value, (0, math.inf))
        if known < depth and found == math.inf:
            found = self._found(value, depth)
            self._known[value] = depth, found
        return found

    def _found(self, value: Op, depth: int) -> float:
        if not isinstance(value.type, DType) or not value.type.is_float or not depth:
            return math.inf
        if value.code is ops.const:
            return math.inf if math.isnan(value.attr) else abs(float(value.attr))
        if value.code in (ops.sin, ops.cos):
            return 1.0
        rule = _BOUNDS.get(value.code)
        if rule is None:
            return math.inf
        bounds = []
        for a in value.args:
            bounds.append(self.most(a, depth - 1))
            if bounds[-1] == math.inf:
                return math.inf
        return rule(*bounds)
