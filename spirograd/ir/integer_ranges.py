"""Ranges of integers, from the operations that make them: what is surely neither below nor above which number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import NamedTuple

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op
from spirograd.ir.ops import OpCode

_DEPTH = 24  # of operations that are looked at


class Range(NamedTuple):
    """All integers from ``low`` to ``high``, both included."""

    low: int
    high: int

    def within(self, low: int, high: int) -> bool:
        """Whether all of them are from ``low`` to ``high``."""
        return low <= self.low and self.high <= high


def type_range(t: DType) -> Range:
    """What a value of integer type ``t`` may be."""
    return Range(int(t.min), int(t.max))


def range_of(value: Op, known: MutableMapping[Op, Range], depth: int = _DEPTH) -> Range:
    """The range of ``value``, an integer. ``known``: ranges found earlier, such as those of parameters; what is found is added.

    Results that do not fit into the type wrap around, and have the range of the type.
    """
    found = known.get(value)
    if found is not None:
        return found
    assert isinstance(value.type, DType)
    whole = type_range(value.type)
    if value.code is ops.const:
        return Range(int(value.attr), int(value.attr))
    rule = _RULES.get(value.code)
    operands = value.args[1:] if value.code is ops.select else value.args
    if rule is None or not depth or not all(isinstance(a.type, DType) and not a.type.is_float for a in operands):
        return whole
    made = rule(*(range_of(a, known, depth - 1) for a in operands))
    known[value] = made if made is not None and made.within(*whole) else whole
    return known[value]


def unlimited(code: OpCode, a: Range, b: Range) -> Range:
    """The range of a sum, difference or product that does not wrap around."""
    made = _RULES[code](a, b)
    assert made is not None
    return made


def _mul(a: Range, b: Range) -> Range:
    products = [x * y for x in a for y in b]
    return Range(min(products), max(products))


def _quotient(a: Range, b: Range) -> Range | None:
    """Of a division that rounds to 0 or down, by one number above 0."""
    if b.low != b.high or b.low < 1:
        return None
    return Range(a.low // b.low, max(a.high // b.low, 0))


def _remainder(a: Range, b: Range) -> Range | None:
    """Of a remainder with the sign of the dividend, by one number above 0."""
    if b.low != b.high or b.low < 1:
        return None
    most = b.low - 1
    if a.within(0, most):
        return a
    return Range(max(a.low, -most) if a.low < 0 else 0, min(a.high, most) if a.high > 0 else 0)


def _modulus(a: Range, b: Range) -> Range | None:
    """Of a remainder with the sign of the divisor, one number above 0."""
    if b.low != b.high or b.low < 1:
        return None
    return a if a.within(0, b.low - 1) else Range(0, b.low - 1)


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
}
