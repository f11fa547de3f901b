"""Lower and upper limits of symbolic sizes, by interval arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from spirograd.base.sizes.linear import total
from spirograd.base.sizes.size_nodes import Add, Binary, Element, Extent, FloorDiv, IfLess, Max, MaxOver, Min, Mod, Mul, Size, Sub, Variable

# The least and the largest possible value: integers, or infinite.
Limits = tuple[float, float]
UNLIMITED: Limits = (-math.inf, math.inf)


class Scope:
    """The limits of the variables of the ranges around a size."""

    def __init__(self, ranges: Mapping[int, Limits] | None = None) -> None:
        self.ranges = ranges or {}

    def within(self, loop: MaxOver) -> Scope:
        """Return the scope of the body of ``loop``."""
        low, high = self.limits(loop.begin)[0], self.limits(loop.end)[1] - 1
        return Scope({**self.ranges, loop.variable: (low, high) if low <= high else UNLIMITED})

    def limits(self, size: Size) -> Limits:
        """Return the limits of ``size``."""
        if isinstance(size, int):
            return size, size
        if isinstance(size, Binary):
            return _RULES[type(size)](self.limits(size.a), self.limits(size.b))
        rule = _LEAVES.get(type(size))
        return UNLIMITED if rule is None else rule(self, size)

    def difference(self, a: Size, b: Size) -> Limits:
        """Return the limits of a - b."""
        return self.limits(total([(a, 1), (b, -1)]))


def _of_condition(scope: Scope, size: IfLess) -> Limits:
    low, high = scope.limits(size.value)
    return min(low, 0), max(high, 0)


_LEAVES: dict[type, Callable[[Scope, Any], Limits]] = {
    Variable: lambda scope, size: scope.ranges.get(size.number, UNLIMITED),
    Extent: lambda scope, size: (0, math.inf),
    Element: lambda scope, size: (min(int(size.dtype.min), 0), int(size.dtype.max)),
    IfLess: _of_condition,
    MaxOver: lambda scope, size: (0, max(scope.within(size).limits(size.body)[1], 0)),
}


def _of_product(a: Limits, b: Limits) -> Limits:
    corners = [0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(corners), max(corners)


def _of_quotient(a: Limits, b: Limits) -> Limits:
    if b[0] > 0 and b[1] < math.inf and math.inf not in (-a[0], a[1]):
        return min(a[0] // b[0], a[0] // b[1]), max(a[1] // b[0], a[1] // b[1])
    # The quotient is no larger than the dividend, and of its sign if the divisor is positive.
    most = max(-a[0], a[1])
    return (min(a[0], 0), max(a[1], 0)) if b[0] >= 0 else (-most, most)


_RULES: dict[type[Binary], Callable[[Limits, Limits], Limits]] = {
    Add: lambda a, b: (a[0] + b[0], a[1] + b[1]),
    Sub: lambda a, b: (a[0] - b[1], a[1] - b[0]),
    Mul: _of_product,
    Min: lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    Max: lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    FloorDiv: _of_quotient,
    Mod: lambda a, b: (min(b[0] + 1, 0), max(b[1] - 1, 0)),  # between 0 and the divisor
}
