"""Division of sums by constants: the quotient ``(4 * b + a) / 4`` is ``b``, and the remainder is ``a``, if a is from 0 to 3.

The indices of a loop over blocks are such sums: the index of the block times its extent, plus the index in the block. Accesses divide them
again. After division part by part, the terms of the block are invariant for its elements, and the other terms follow the loop.

Sums are divided only if ranges show that they do not wrap around and are not negative, so that rounding down and rounding towards 0 agree.
If a quotient rounds towards 0, its sum may also be from -(n - 1) to -1, where the quotient is 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.integer_ranges import Range, range_of, type_range, unlimited
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

_QUOTIENTS = frozenset((ops.idiv, ops.floordiv))
_REMAINDERS = frozenset((ops.irem, ops.floormod))
_TRUNCATED = {ops.floordiv: ops.idiv, ops.floormod: ops.irem}
_MOST_TERMS = 8


def divide_sums(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Divide sums of integers by constants part by part, and by variables as if rounding towards 0, where no result changes."""
    divides = not kernel.codes.isdisjoint(_QUOTIENTS | _REMAINDERS)
    return _DivideSums().kernel(kernel) if ctx.options.optimize and divides else kernel


class _Sum(NamedTuple):
    """A sum: ``constant``, plus each of ``terms`` times its factor."""

    terms: tuple[tuple[Op, int], ...]
    constant: int

    def part(self, n: int, multiple: bool) -> _Sum:
        """Return the terms whose factor is a multiple of ``n``, and the constant rounded down to a multiple; or the other terms, and the
        remainder of the constant."""
        rest = self.constant % n
        terms = tuple(term for term in self.terms if (term[1] % n == 0) is multiple)
        return _Sum(terms, self.constant - rest if multiple else rest)

    def over(self, n: int) -> _Sum:
        """Return the sum divided by ``n``, a divisor of all its factors."""
        return _Sum(tuple((op, factor // n) for op, factor in self.terms), self.constant // n)


class _DivideSums(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.ranges: dict[Op, Range] = {}
        self.handlers = {ops.task: self._task, ops.for_: self._for, **dict.fromkeys(_QUOTIENTS | _REMAINDERS, self._divide)}

    # --- ranges ---

    def _range(self, value: Op) -> Range:
        return range_of(value, self.ranges)

    def _range_of_sum(self, given: _Sum) -> Range:
        low = high = given.constant
        for op, factor in given.terms:
            bounds = sorted(bound * factor for bound in self._range(op))
            low, high = low + bounds[0], high + bounds[1]
        return Range(low, high)

    def _counts(self, index: Op, begin: Op, end: Op) -> None:
        """Record the range of ``index``, the index of a loop from ``begin`` to ``end``."""
        low, high = self._range(begin).low, self._range(end).high - 1
        self.ranges[index] = Range(low, max(low, high))

    def _task(self, op: Op) -> Op:
        if op.attr.kind == "range_for":
            bounds, body = op.regions[:2]
            begin, end = bounds.results[:2]
            self._counts(body.params[0], begin, end)
        return self.copy(op)

    def _for(self, op: Op) -> Op:
        begin, end = self.args(op)[:2]
        self._counts(op.regions[0].params[0], begin, end)
        return self.copy(op)

    # --- sums ---

    def _sum_of(self, value: Op) -> _Sum:
        """Return ``value`` as a sum whose partial sums do not wrap around."""
        terms: dict[Op, int] = {}
        constant, waiting = 0, [(value, 1)]
        while waiting:
            op, factor = waiting.pop()
            exact = isinstance(op.type, DType) and self._is_exact(op) and len(terms) + len(waiting) < _MOST_TERMS
            if op.code is ops.const:
                constant += factor * int(op.attr)
            elif exact and op.code is ops.add:
                waiting += [(op.args[0], factor), (op.args[1], factor)]
            elif exact and op.code is ops.sub:
                waiting += [(op.args[0], factor), (op.args[1], -factor)]
            elif exact and op.code is ops.mul and op.args[1].code is ops.const:
                waiting.append((op.args[0], factor * int(op.args[1].attr)))
            else:
                terms[op] = terms.get(op, 0) + factor
        return _Sum(tuple((op, factor) for op, factor in terms.items() if factor), constant)

    def _is_exact(self, op: Op) -> bool:
        """Return whether a sum, difference or product of integers is known not to wrap around."""
        if op.code not in (ops.add, ops.sub, ops.mul):
            return False
        assert isinstance(op.type, DType)
        result = unlimited(op.code, *(self._range(a) for a in op.args))
        return result.within(*type_range(op.type))

    def _emit(self, given: _Sum, t: DType) -> Op:
        """Emit the operations that compute a sum."""
        out: Op | None = None
        for op, factor in given.terms:
            term = op if factor == 1 else self.b.emit(ops.mul, op, self.b.const(factor, t))
            out = term if out is None else self.b.emit(ops.add, out, term)
        if out is None or given.constant:
            constant = self.b.const(given.constant, t)
            out = constant if out is None else self.b.emit(ops.add, out, constant)
        return out

    # --- divisions ---

    def _divide(self, op: Op) -> Op:
        value, divisor = self.args(op)
        if divisor.code is not ops.const:
            return self._divide_by_variable(op, value, divisor)
        if not isinstance(op.type, DType) or int(divisor.attr) < 2:
            return self.copy(op)
        n, t, given = int(divisor.attr), op.type, self._sum_of(value)
        total, divided = self._range_of_sum(given), None
        if not all(t.min <= number <= t.max for number in (given.constant, *(factor for _, factor in given.terms))):
            return self.copy(op)
        if total.within(0, int(t.max)):
            quotient = op.code in _QUOTIENTS
            divided = self._in_parts(given, n, quotient, t)
            if divided is None and op.code in (ops.floordiv, ops.floormod):
                divided = self.b.emit(ops.idiv if quotient else ops.irem, value, divisor)
        elif op.code is ops.idiv and total.within(1 - n, int(t.max)):
            divided = self._rounded_up(given, n, t)
        return self.copy(op) if divided is None else divided

    def _divide_by_variable(self, op: Op, value: Op, divisor: Op) -> Op:
        """Return the quotient or remainder, without the correction that rounding down takes, if neither operand is negative. Extents of
        arrays are not; legalisation sees that by the maximum."""
        t = op.type
        signed = isinstance(t, DType) and t.is_signed and op.code in _TRUNCATED
        if not signed or self._range(value).low < 0 or self._range(divisor).low < 0:
            return self.copy(op)
        return self.b.emit(_TRUNCATED[op.code], value, self.b.emit(ops.max_, divisor, self.b.const(0, t)))

    def _in_parts(self, given: _Sum, n: int, quotient: bool, t: DType) -> Op | None:
        """Return the quotient or remainder of a sum that is not negative, or None if a division in parts gains nothing.

        The sum of the other terms must not wrap around by itself; then the sum of multiples does not wrap around, either."""
        multiples, rest = given.part(n, True), given.part(n, False)
        left = self._range_of_sum(rest)
        if left.within(0, n - 1):
            return self._emit(multiples.over(n) if quotient else rest, t)
        if left.within(0, int(t.max)) and (multiples.terms or multiples.constant > 0):
            small = self._divided(rest, n, quotient, t)
            return self._plus(multiples.over(n), small, t) if quotient else small
        for g in sorted({math.gcd(factor, n) for _, factor in given.terms} - {1, n}, reverse=True):
            # (g * b + a) / n is b / (n / g) for a from 0 to g - 1.
            multiples, rest = given.part(g, True), given.part(g, False)
            if self._range_of_sum(rest).within(0, g - 1):
                inner = self._divided(multiples.over(g), n // g, quotient, t)
                return inner if quotient else self._plus(rest, self.b.emit(ops.mul, inner, self.b.const(g, t)), t)
        return None

    def _divided(self, given: _Sum, n: int, quotient: bool, t: DType) -> Op:
        """Return the quotient or remainder of a sum that is not negative, in parts if that helps."""
        parts = self._in_parts(given, n, quotient, t)
        return self.b.emit(ops.idiv if quotient else ops.irem, self._emit(given, t), self.b.const(n, t)) if parts is None else parts

    def _rounded_up(self, given: _Sum, n: int, t: DType) -> Op | None:
        """Return the quotient, rounded towards 0, of a sum that is at least -(n - 1), or None if a division in parts gains nothing."""
        multiples, rest = given.part(n, True), given.part(n, False)
        if not multiples.terms or not self._range_of_sum(rest).within(0, int(t.max)):
            return None
        return self.b.emit(ops.max_, self._plus(multiples.over(n), self._divided(rest, n, True, t), t), self.b.const(0, t))

    def _plus(self, given: _Sum, other: Op, t: DType) -> Op:
        return self.b.emit(ops.add, self._emit(given, t), other) if given.terms or given.constant else other
