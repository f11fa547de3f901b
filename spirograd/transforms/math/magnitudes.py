"""Bounds of the absolute values of floats, from the operations that compute them. They prove that arguments of sines are not large."""

from __future__ import annotations

import math
from collections.abc import Callable

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op
from spirograd.ir.ops import OpCode

_DEPTH = 32  # The depth of operands that is examined.
# Operation -> a function from bounds of the operands to a bound of the result.
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
    """Bounds of magnitudes. ``most(value)``: an upper bound of the absolute value of a float, apart from rounding and overflow, unless it
    is NaN; infinity if no bound is known. Values that have overflowed may be infinite, or NaN, where the bound is finite.

    Sines and cosines are at most 1, also for infinite arguments, whose result is NaN."""

    def __init__(self) -> None:
        self._known: dict[Op, tuple[int, float]] = {}  # the depth of operands that was examined, and the bound

    def most(self, value: Op, depth: int = _DEPTH) -> float:
        """Return the bound of ``value``, see `Magnitudes`."""
        known, bound = self._known.get(value, (0, math.inf))
        if known < depth and bound == math.inf:
            bound = self._bound(value, depth)
            self._known[value] = depth, bound
        return bound

    def _bound(self, value: Op, depth: int) -> float:
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
