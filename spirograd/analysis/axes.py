"""The axes of the index space of a parallel loop with a flat index, and the values of the body that are coordinates on them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from spirograd.analysis.value_numbers import affine
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import Op

# A product of a constant and of other values.
_Product = tuple[int, tuple[Op, ...]]
_ONE: _Product = (1, ())


class Bound(NamedTuple):
    """The bound of an axis: ``base`` + ``offset``, or the offset alone if ``base`` is None."""

    base: Op | None
    offset: int

    def minus(self, other: Bound) -> int | None:
        """Return the difference of two bounds, or None if it is not known."""
        return self.offset - other.offset if self.base is other.base else None


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of an index space. ``place``: the coordinate, a value of the body from ``begin`` to below ``end``. ``digit``: ``place`` less
    ``begin``, below ``extent``. The flat index of the loop is the sum of the digits, each times the extents of the axes after it. In a loop
    over one axis the coordinate is the index, and there is no digit."""

    place: Op
    begin: Bound
    end: Bound
    digit: Op | None = None
    extent: Bound = Bound(None, 0)


def bound(value: Op) -> Bound:
    """Return ``value`` as a bound."""
    base, offset = affine(value)
    return Bound(None if base is None else _extent(base), offset)


def _extent(value: Op) -> Op:
    """Return ``value`` without the maximum with 0 if it is the extent of an array."""
    for extent, other in (value.args, reversed(value.args)) if value.code is ops.max_ else ():
        if extent.code is ops.shape and other.code is ops.const and other.attr <= 0:
            return extent
    return value


class Digit(NamedTuple):
    """A digit of a flat index: ``value`` = index of the loop / ``divisor`` % ``extent``, or without the remainder if there is no extent.
    ``place`` = value + ``begin``, if there is one."""

    place: Op
    value: Op
    divisor: _Product
    extent: _Product | None = None
    begin: Op | None = None

    def axis(self, extent: Bound) -> Axis | None:
        """Return the axis with ``extent`` coordinates, or None if its end is not known."""
        if self.begin is None:
            return Axis(self.place, Bound(None, 0), extent, self.value, extent)
        difference = extent.base
        if difference is None or extent.offset or difference.code is not ops.sub or difference.args[1] is not self.begin:
            return None
        return Axis(self.place, bound(self.begin), bound(difference.args[0]), self.value, extent)


class Digits:
    """The digits of a flat index from 0, computed by division: (index / divisor) % extent. The outermost one needs no remainder. No extent
    is negative, and their product does not wrap around: the index space guarantees this for extents that are not constants."""

    def __init__(self, index: Op, bounds: Sequence[Op], invariant: Container[Op]) -> None:
        self.index = index
        self.bounds = bounds
        self.invariant = invariant

    def axes(self, places: Iterable[Op]) -> tuple[Axis, ...] | None:
        """Return the axes, outermost first, or None unless ``places`` are all their coordinates."""
        begin, end = self.bounds
        if begin.code is not ops.const or begin.attr != 0 or not _of_a_space(end):
            return None
        digits: dict[_Product, Digit] = {}
        for place in places:
            digit = self.of(place)
            if digit is None or digit.divisor in digits:
                return None
            digits[digit.divisor] = digit
        out: list[Axis] = []
        divisor = _ONE
        while divisor in digits:
            digit = digits.pop(divisor)
            extent = _quotient(_product(end), divisor) if digit.extent is None else _single(digit.extent)
            axis = None if extent is None else digit.axis(extent)
            if axis is None:
                return None
            out.insert(0, axis)
            divisor = _times(divisor, _product_of(axis.extent))
        return tuple(out) if out and not digits and divisor == _product(end) else None

    def of(self, place: Op) -> Digit | None:
        """Return ``place`` as a digit, or as the sum of a digit and the begin of its axis, or None if it is neither."""
        digit = self._digit(place)
        if digit is None and place.code is ops.add:
            for inner, begin in (place.args, reversed(place.args)):
                digit = self._digit(inner) if begin in self.invariant and begin.code is not ops.const else None
                if digit is not None:
                    return Digit(place, digit.value, digit.divisor, digit.extent, begin)
        return digit

    def _digit(self, value: Op) -> Digit | None:
        if value.code is ops.irem and value.args[1] in self.invariant:
            divisor = self._divisor(value.args[0])
            return None if divisor is None else Digit(value, value, divisor, _product(value.args[1]))
        divisor = self._divisor(value)
        return None if divisor is None else Digit(value, value, divisor)

    def _divisor(self, value: Op) -> _Product | None:
        divisor = _ONE
        while value.code is ops.idiv and value.args[1] in self.invariant:
            divisor = _times(divisor, _product(value.args[1]))
            value = value.args[0]
        return divisor if value is self.index else None


def _of_a_space(end: Op) -> bool:
    """Return whether ``end`` is a constant or the number of iterations of an index space, and not a product that the program computes."""
    return end.code is not ops.mul or (end.attr == "wrap" and all(_of_a_space(factor) for factor in end.args))


def _product(value: Op) -> _Product:
    if value.code is ops.const:
        return int(value.attr), ()
    if value.code is ops.mul:
        return _times(_product(value.args[0]), _product(value.args[1]))
    return 1, (_extent(value),)


def _times(a: _Product, b: _Product) -> _Product:
    return a[0] * b[0], tuple(sorted((*a[1], *b[1]), key=id))


def _quotient(a: _Product, b: _Product) -> Bound | None:
    """Return a / b if that leaves no remainder and is one number, else None."""
    left = list(a[1])
    for factor in b[1]:
        if factor not in left:
            return None
        left.remove(factor)
    return _single((a[0] // b[0], tuple(left))) if b[0] and a[0] % b[0] == 0 else None


def _single(a: _Product) -> Bound | None:
    if a[0] <= 0:
        return None
    if not a[1]:
        return Bound(None, a[0])
    return Bound(a[1][0], 0) if len(a[1]) == 1 and a[0] == 1 else None


def _product_of(number: Bound) -> _Product:
    return (number.offset, ()) if number.base is None else (1, (number.base,))
