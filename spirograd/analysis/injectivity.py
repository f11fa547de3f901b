"""Injective indices: whether the indices of an access determine the iteration of a loop. Then accesses of different iterations do not
alias. The analysis grows the set of values that the indices determine until it contains the index of the loop, or no longer grows."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from spirograd.analysis.value_numbers import ValueNumbers
from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op

# (x, d) stands for x / d, truncated.
_Quotient = tuple[Op, int]


def determines(indices: Iterable[Op], index: Op, invariant: Container[Op], bounds: Sequence[Op] = ()) -> bool:
    """Return whether the values ``indices`` together determine the value of ``index``, given those in ``invariant`` (the same in every
    iteration).

    ``bounds``: the begin and end of the loop, if known. The analysis handles sums with invariants, negation and bitwise not, exclusive or
    with invariants, widening casts, quotients and remainders, as flat loops over several axes compute them, and (if the index is never
    negative) sums of digits, as nested fields compute them. If it does not know, it returns False.
    """
    return _Knowledge(index, invariant, bounds).grows_from(indices)


class _Knowledge:
    """The determined values, ``values``, and ``quotients`` by constants. ``remainders`` are pending: x / d is determined by (x / d) % m and
    x / (d * m)."""

    def __init__(self, index: Op, invariant: Container[Op], bounds: Sequence[Op]) -> None:
        self.index = index
        self.invariant = invariant
        self.natural = bool(bounds) and bounds[0].code is ops.const and bounds[0].attr >= 0
        # The loop has no iterations if one of these is zero. They are numbers, because a task has its bounds in another region.
        self.number = ValueNumbers()
        self.factors = {self.number(factor) for factor in _factors(bounds[1])} if self.natural else set()
        self.values: set[Op] = set()
        self.waiting: list[Op] = []
        self.divided: dict[tuple[Op, int], set[object]] = {}
        self.quotients: set[_Quotient] = set()
        self.remainders: dict[_Quotient, set[_Quotient]] = {}

    def grows_from(self, values: Iterable[Op]) -> bool:
        self._know(values)
        while self.waiting:
            op = self.waiting.pop()
            self._know(self._implied(op))
            self._know_quotient(_quotient(op))
        return self.index in self.values

    def _know(self, values: Iterable[Op]) -> None:
        for value in values:
            if value not in self.values:
                self.values.add(value)
                self.waiting.append(value)

    def _know_quotient(self, quotient: _Quotient) -> None:
        if quotient in self.quotients:
            return
        self.quotients.add(quotient)
        if quotient[1] == 1:
            self._know((quotient[0],))
        for smaller in self.remainders.get(quotient, ()):
            self._know_quotient(smaller)

    def _implied(self, op: Op) -> list[Op]:
        """Return the values that ``op`` determines."""
        if op.code in (ops.idiv, ops.irem):
            return self._divided(op)
        if op.code in (ops.neg, ops.not_):
            return [op.args[0]]
        if op.code in (ops.add, ops.sub, ops.xor):
            a, b = op.args
            digits = self._digits(a, b) if op.code is ops.add else []
            return digits or [x for x, other in ((a, b), (b, a)) if other in self.invariant or other.code is ops.const]
        if op.code is ops.cast and op.type.is_int and op.type.bits >= op.args[0].type.bits:  # type: ignore[union-attr]
            return [op.args[0]]
        return []

    def _divided(self, op: Op) -> list[Op]:
        dividend, divisor = op.args
        if divisor.code is ops.const:
            if op.code is ops.irem and divisor.attr > 0:
                x, d = _quotient(dividend)
                larger = (x, d * int(divisor.attr))
                self.remainders.setdefault(larger, set()).add((x, d))
                if larger in self.quotients:
                    self._know_quotient((x, d))
            return []
        parts = self.divided.setdefault((dividend, self.number(divisor)), set())
        parts.add(op.code)
        return [dividend] if len(parts) == 2 and divisor in self.invariant and self._is_extent(divisor) else []

    def _is_extent(self, divisor: Op) -> bool:
        """Return whether ``divisor`` is not zero in any iteration. Quotients and remainders by zero are zero for every dividend."""
        return bool(self.factors) and self.number(divisor) in self.factors

    def _digits(self, a: Op, b: Op) -> list[Op]:
        """Return both digits of ``y * m + x % m``, where neither x nor y is negative and nothing wraps."""
        for high, low in ((a, b), (b, a)):
            if high.code is not ops.mul or low.code is not ops.irem or self._limit(low) is None:
                continue
            digit, scale = high.args if high.args[1].code is ops.const else reversed(high.args)
            limit = self._limit(digit)
            if scale.code is ops.const and scale.attr == low.args[1].attr and limit is not None and limit * scale.attr <= _most(self.index):
                return [low, digit]
        return []

    def _limit(self, op: Op) -> int | None:
        """Return an upper bound of ``op`` if it is computed from the index by division and is never negative, else None."""
        if op is self.index:
            return _most(op) if self.natural else None
        if op.code not in (ops.idiv, ops.irem) or op.args[1].code is not ops.const or op.args[1].attr <= 0:
            return None
        limit, divisor = self._limit(op.args[0]), int(op.args[1].attr)
        if limit is None:
            return None
        return limit // divisor if op.code is ops.idiv else divisor - 1


def _factors(end: Op) -> list[Op]:
    """Return values of which none is zero unless ``end`` is."""
    if end.code is ops.mul:
        return [end, *_factors(end.args[0]), *_factors(end.args[1])]
    return [end]


def _most(op: Op) -> int:
    assert isinstance(op.type, DType)
    return int(op.type.max)


def _quotient(op: Op) -> _Quotient:
    """Return ``op`` as a quotient by a constant (1 for any other operation). Two truncations equal one, by the product."""
    divisor = 1
    while op.code is ops.idiv and op.args[1].code is ops.const and op.args[1].attr > 0:
        divisor *= int(op.args[1].attr)
        op = op.args[0]
    return op, divisor
