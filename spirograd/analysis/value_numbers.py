"""Value numbering: operations that compute the same from the same operands have the same number, in every region.

Indices are split into a numbered value and a constant, their affine form. B. Alpern, M. N. Wegman and F. K. Zadeck, Detecting Equality of
Variables in Programs, 1988.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import NamedTuple

from spirograd.ir import ops
from spirograd.ir.nodes import Op, Ref

_SUMS = frozenset((ops.add, ops.sub))


class Affine(NamedTuple):
    """The affine form of an index: the sum of a value and a constant. ``number``: the number of the value, or -1 if the sum is the constant
    alone, without ``value``."""

    number: int
    offset: int
    value: Op | None


class ValueNumbers:
    """A numbering of values. ``same``: parameters that count as others, such as the indices of two loops. ``steady``: memory that is not
    written meanwhile, so that loads with the same indices are equal."""

    def __init__(self, same: Mapping[Op, Op] | None = None, steady: Collection[Ref] = ()) -> None:
        self._same = same or {}
        self._steady = steady
        self._numbers: dict[Op, int] = {}
        self._known: dict[Hashable, int] = {}

    def __call__(self, op: Op) -> int:
        number = self._numbers.get(op)
        if number is None:
            number = self._numbers[op] = self._known.setdefault(self._key(op), len(self._known))
        return number

    def _key(self, op: Op) -> Hashable:
        if op.code is ops.const:
            return (op.code, op.type, repr(op.attr))  # The text distinguishes -0.0 from 0.0, and NaN equals itself.
        computed = op.code.effect == "pure" and op.code is not ops.result
        if not computed and not (op.code is ops.load and op.attr in self._steady):
            return self._same.get(op, op)
        operands = [self(a) for a in op.args]
        return (op.code, op.type, op.attr, *(sorted(operands) if op.code.commutative else operands))

    def all(self, values: Iterable[Op]) -> tuple[int, ...]:
        """Return the numbers of several values."""
        return tuple([self(value) for value in values])

    def affine(self, op: Op) -> Affine:
        """Return the affine form of ``op``, which wraps around as its type does."""
        value, offset = affine(op)
        return Affine(-1 if value is None else self(value), offset, value)


def affine(op: Op) -> tuple[Op | None, int]:
    """Return ``op`` as the sum of a value, None if there is none, and a constant."""
    offset = 0
    while op.code in _SUMS:
        a, b = op.args
        if a.code is ops.const and op.code is ops.add:
            a, b = b, a
        if b.code is not ops.const:
            return op, offset
        offset += int(b.attr) if op.code is ops.add else -int(b.attr)
        op = a
    return (None, offset + int(op.attr)) if op.code is ops.const else (op, offset)
