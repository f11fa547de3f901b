"""Ranges of integers: bounds of a value that follow from the operations that compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import NamedTuple

from spirograd.base.dtypes import DType, i32
from spirograd.ir import ops
from spirograd.ir.nodes import Op
from spirograd.ir.ops import OpCode

_DEPTH = 24  # The depth of operands to which ranges are computed.


class Range(NamedTuple):
    """The integers from ``low`` to ``high``, both included."""

    low: int
    high: int

    def within(self, low: int, high: int) -> bool:
        """Return whether the range lies between ``low`` and ``high``."""
        return low <= self.low and self.high <= high


def type_range(t: DType) -> Range:
    """Return the range of the integer type ``t``."""
    return Range(int(t.min), int(t.max))


def range_of(value: Op, known: MutableMapping[Op, Range], depth: int = _DEPTH) -> Range:
    """Return the range of ``value``, an integer. ``known``: ranges computed earlier, such as those of parameters; new ranges are added.

    Results that do not fit into the type wrap around, and have the range of the type.
    """
    cached = known.get(value)
    if cached is not None:
        return cached
    assert isinstance(value.type, DType)
    limits = type_range(value.type)
    if value.code is ops.const:
        return Range(int(value.attr), int(value.attr))
    rule = _RULES.get(value.code)
    operands = value.args[1:] if value.code is ops.select else value.args
    if rule is None or not depth or not all(isinstance(a.type, DType) and not a.type.is_float for a in operands):
        return limits
    result = rule(*(range_of(a, known, depth - 1) for a in operands))
    known[value] = result if result is not None and result.within(*limits) else limits
    return known[value]


def unlimited(code: OpCode, a: Range, b: Range) -> Range:
    """Return the range of a sum, difference or product that does not wrap around."""
    result = _RULES[code](a, b)
    assert result is not None
    return result


def _mul(a: Range, b: Range) -> Range:
    products = [x * y for x in a for y in b]
    return Range(min(products), max(products))


def _quotient(a: Range, b: Range) -> Range | None:
    """Return the range of a division that rounds to 0 or down, by numbers that are not negative. A division by 0 gives 0."""
    if b.low < 0:
        return None
    if b.low == b.high > 0:
        return Range(a.low // b.low, max(a.high // b.low, 0))
    return Range(min(a.low, 0), max(a.high, 0))


def _remainder(a: Range, b: Range) -> Range | None:
    """Return the range of a remainder with the sign of the dividend, by numbers that are not negative. A division by 0 leaves 0."""
    if b.low < 0:
        return None
    most = max(b.high - 1, 0)
    if b.low == b.high and a.within(0, most):
        return a
    return Range(max(a.low, -most) if a.low < 0 else 0, min(a.high, most) if a.high > 0 else 0)


def _modulus(a: Range, b: Range) -> Range | None:
    """Return the range of a remainder with the sign of the divisor, numbers that are not negative. A division by 0 leaves 0."""
    if b.low < 0:
        return None
    most = max(b.high - 1, 0)
    return a if b.low == b.high and a.within(0, most) else Range(0, most)


def _and(a: Range, b: Range) -> Range | None:
    bounds = [r.high for r in (a, b) if r.low >= 0]
    return Range(0, min(bounds)) if bounds else None


_RULES: Mapping[OpCode, Callable[..., Range | None]] = {
    ops.add: lambda a, b: Range(a.low + b.low, a.high + b.high),
    ops.sub: lambda a, b: Range(a.low - b.high, a.high - b.low),
    ops.mul: _mul,
    ops.min_: lambda a, b: Range(min(a.low, b.low), min(a.high, b.high)),
    ops.max_: lambda a, b: Range(max(a.low, b.low), max(a.high, b.high)),
    ops.idiv: _quotient,
    ops.floordiv: _quotient,
    ops.irem: _remainder,
    ops.floormod: _modulus,
    ops.and_: _and,
    ops.select: lambda a, b: Range(min(a.low, b.low), max(a.high, b.high)),
    ops.cast: lambda a: a,
    ops.shape: lambda: Range(0, int(i32.max)),
}
