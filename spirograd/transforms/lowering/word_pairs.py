"""Arithmetic of 64-bit integers as pairs of 32-bit words, low word first, on devices that have no wider integers."""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.dtypes import DType, Vec, f32, i32, u1, u32
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op

PAIR = Vec(2, u32)
_BITS = 64
_LOW_HALF = 0xFFFF
_EXPONENT, _EXPONENT_BITS = 127, 23  # of 1.0 of type f32, and where it begins


class WordPairs:
    """Emits operations on values of type `PAIR`. Where signs matter, ``signed`` says whether the integers are i64 or u64."""

    def __init__(self, b: Builder) -> None:
        self.b = b

    # --- words ---------------------------------------------------------------------------------------------------------------

    def word(self, value: int) -> Op:
        return self.b.const(value, u32)

    def pair(self, low: Op, high: Op) -> Op:
        return self.b.emit(ops.vec, low, high)

    def constant(self, value: int) -> Op:
        return self.pair(self.word(value & 0xFFFFFFFF), self.word(value >> 32 & 0xFFFFFFFF))

    def halves(self, value: Op) -> tuple[Op, Op]:
        """Return the low and the high word of a pair."""
        if value.code is ops.vec:
            return value.args[0], value.args[1]
        low, high = (self.b.emit(ops.extract, value, self.b.const(k)) for k in range(2))
        return low, high

    def _signed(self, word: Op) -> Op:
        return self.b.emit(ops.bitcast, word, type=i32)

    def _unsigned(self, word: Op) -> Op:
        return self.b.emit(ops.bitcast, word, type=u32)

    def choose(self, condition: Op, a: Op, b: Op) -> Op:
        """Select one of two pairs, word by word: before SPIR-V 1.4, the condition of a selection of vectors is a vector."""
        (low, high), (other_low, other_high) = self.halves(a), self.halves(b)
        return self.pair(self._chosen(condition, low, other_low), self._chosen(condition, high, other_high))

    def _chosen(self, condition: Op, a: Op, b: Op) -> Op:
        return self.b.emit(ops.select, condition, a, b)

    def _flag(self, condition: Op) -> Op:
        return self.b.cast(condition, u32)

    def wordwise(self, code: ops.OpCode, *values: Op) -> Op:
        """Apply ``code`` to the low words, and to the high words."""
        low, high = zip(*[self.halves(value) for value in values])
        return self.pair(self.b.emit(code, *low), self.b.emit(code, *high))

    # --- arithmetic ------------------------------------------------------------------------------------------------------------

    def add(self, a: Op, b: Op) -> Op:
        (low, high), (other_low, other_high) = self.halves(a), self.halves(b)
        emit = self.b.emit
        total = emit(ops.add, low, other_low)
        carry = self._flag(emit(ops.lt, total, low))
        return self.pair(total, emit(ops.add, emit(ops.add, high, other_high), carry))

    def sub(self, a: Op, b: Op) -> Op:
        (low, high), (other_low, other_high) = self.halves(a), self.halves(b)
        emit = self.b.emit
        borrow = self._flag(emit(ops.lt, low, other_low))
        return self.pair(emit(ops.sub, low, other_low), emit(ops.sub, emit(ops.sub, high, other_high), borrow))

    def neg(self, a: Op) -> Op:
        return self.sub(self.constant(0), a)

    def abs(self, a: Op, signed: bool) -> Op:
        return self.choose(self.less(a, self.constant(0), True), self.neg(a), a) if signed else a

    def mul(self, a: Op, b: Op) -> Op:
        (low, high), (other_low, other_high) = self.halves(a), self.halves(b)
        emit = self.b.emit
        crossed = emit(ops.add, emit(ops.mul, low, other_high), emit(ops.mul, high, other_low))
        return self.pair(emit(ops.mul, low, other_low), emit(ops.add, self._high_product(low, other_low), crossed))

    def _high_product(self, x: Op, y: Op) -> Op:
        """Return the high word of the product of two words, by products of their halves, none of which overflows."""
        emit, sixteen, ones = self.b.emit, self.word(16), self.word(_LOW_HALF)
        (x0, x1), (y0, y1) = [(emit(ops.and_, word, ones), emit(ops.shr, word, sixteen)) for word in (x, y)]
        middle = emit(ops.add, emit(ops.mul, x1, y0), emit(ops.shr, emit(ops.mul, x0, y0), sixteen))
        other = emit(ops.add, emit(ops.mul, x0, y1), emit(ops.and_, middle, ones))
        carries = emit(ops.add, emit(ops.shr, middle, sixteen), emit(ops.shr, other, sixteen))
        return emit(ops.add, emit(ops.mul, x1, y1), carries)

    def shl(self, a: Op, count: Op) -> Op:
        (low, high), (far, near, rest) = self.halves(a), self._count(count)
        emit = self.b.emit
        moved = emit(ops.shl, low, near)
        crossing = emit(ops.shr, emit(ops.shr, low, self.word(1)), rest)
        upper = emit(ops.or_, emit(ops.shl, high, near), crossing)
        return self.pair(self._chosen(far, self.word(0), moved), self._chosen(far, moved, upper))

    def shr(self, a: Op, count: Op, signed: bool) -> Op:
        (low, high), (far, near, rest) = self.halves(a), self._count(count)
        emit = self.b.emit
        crossing = emit(ops.shl, emit(ops.shl, high, self.word(1)), rest)
        lower = emit(ops.or_, emit(ops.shr, low, near), crossing)
        if signed:
            number = self._signed(high)
            moved, fill = (self._unsigned(emit(ops.shr, number, self._signed(n))) for n in (near, self.word(31)))
        else:
            moved, fill = emit(ops.shr, high, near), self.word(0)
        return self.pair(self._chosen(far, moved, lower), self._chosen(far, fill, moved))

    def _count(self, count: Op) -> tuple[Op, Op, Op]:
        """Return of a shift whether it is by 32 bits or more, what it shifts by besides, and 31 less that."""
        emit, (low, _) = self.b.emit, self.halves(count)
        near = emit(ops.and_, low, self.word(31))
        far = emit(ops.ne, emit(ops.and_, low, self.word(32)), self.word(0))
        return far, near, emit(ops.sub, self.word(31), near)

    def divide(self, a: Op, b: Op, signed: bool) -> tuple[Op, Op]:
        """Return the quotient, rounded towards zero, and the remainder. The divisor is not 0."""
        if not signed:
            return self._natural_division(a, b)
        negative = [self.less(value, self.constant(0), True) for value in (a, b)]
        quotient, remainder = self._natural_division(self.abs(a, True), self.abs(b, True))
        differ = self.b.emit(ops.xor, *negative)
        return self.choose(differ, self.neg(quotient), quotient), self.choose(negative[0], self.neg(remainder), remainder)

    def _natural_division(self, a: Op, b: Op) -> tuple[Op, Op]:
        """Divide unsigned integers: words by the device, others bit by bit."""
        emit = self.b.emit
        (low, high), (other_low, other_high) = self.halves(a), self.halves(b)
        short = emit(ops.eq, emit(ops.or_, high, other_high), self.word(0))
        self.b.begin()
        quotient = emit(ops.idiv, low, other_low)
        remainder = emit(ops.sub, low, emit(ops.mul, quotient, other_low))
        words = self.b.end([self.pair(quotient, self.word(0)), self.pair(remainder, self.word(0))])
        self.b.begin()
        bits = self.b.end(self._long_division(a, b))
        first, second = self.b.if_(short, words, bits)
        return first, second

    def _long_division(self, a: Op, b: Op) -> tuple[Op, ...]:
        emit, zero, one = self.b.emit, self.constant(0), self.constant(1)
        _, left, rest = self.b.begin(i32, PAIR, PAIR)  # The quotient enters from the right what is left of the dividend.
        over = emit(ops.shr, self.halves(rest)[1], self.word(31))
        bit = self.pair(emit(ops.shr, self.halves(left)[1], self.word(31)), self.word(0))
        rest = self.wordwise(ops.or_, self.shl(rest, one), bit)
        fits = emit(ops.or_, emit(ops.ne, over, self.word(0)), emit(ops.not_, self.less(rest, b, False)))
        left = self.wordwise(ops.or_, self.shl(left, one), self.pair(self._flag(fits), self.word(0)))
        body = self.b.end([left, self.choose(fits, self.sub(rest, b), rest)])
        return self.b.for_(self.b.const(0), self.b.const(_BITS), [a, zero], body)

    # --- comparison ------------------------------------------------------------------------------------------------------------

    def equal(self, a: Op, b: Op) -> Op:
        (low, high), (other_low, other_high) = self.halves(a), self.halves(b)
        return self.b.emit(ops.and_, self.b.emit(ops.eq, low, other_low), self.b.emit(ops.eq, high, other_high))

    def less(self, a: Op, b: Op, signed: bool) -> Op:
        (low, high), (other_low, other_high) = self.halves(a), self.halves(b)
        emit = self.b.emit
        below = emit(ops.and_, emit(ops.eq, high, other_high), emit(ops.lt, low, other_low))
        first, second = (self._signed(high), self._signed(other_high)) if signed else (high, other_high)
        return emit(ops.or_, emit(ops.lt, first, second), below)

    def compare(self, code: ops.OpCode, a: Op, b: Op, signed: bool) -> Op:
        """Return the result of a comparison."""
        table: dict[ops.OpCode, Callable[[], Op]] = {
            ops.eq: lambda: self.equal(a, b),
            ops.ne: lambda: self.b.emit(ops.not_, self.equal(a, b)),
            ops.lt: lambda: self.less(a, b, signed),
            ops.gt: lambda: self.less(b, a, signed),
            ops.le: lambda: self.b.emit(ops.not_, self.less(b, a, signed)),
            ops.ge: lambda: self.b.emit(ops.not_, self.less(a, b, signed)),
        }
        return table[code]()

    def extremum(self, code: ops.OpCode, a: Op, b: Op, signed: bool) -> Op:
        """Return the minimum or the maximum."""
        first = self.less(a, b, signed)
        return self.choose(first, a, b) if code is ops.min_ else self.choose(first, b, a)

    # --- bit counts ------------------------------------------------------------------------------------------------------------

    def count(self, code: ops.OpCode, a: Op) -> Op:
        """Return a number of bits, as a word: of ones, of leading zeros or of trailing zeros."""
        low, high = self.halves(a)
        emit = self.b.emit
        if code is ops.popcnt:
            return emit(ops.add, emit(code, low), emit(code, high))
        first, second = (high, low) if code is ops.clz else (low, high)
        beyond = emit(ops.add, emit(code, second), self.word(32))
        return self._chosen(emit(ops.eq, first, self.word(0)), beyond, emit(code, first))

    # --- conversions -----------------------------------------------------------------------------------------------------------

    def from_integer(self, value: Op, t: DType) -> Op:
        """Convert from u1, or from an integer of at most 32 bits."""
        if not t.is_int or not t.is_signed:
            return self.pair(self.b.cast(value, u32), self.word(0))
        number = self.b.cast(value, i32)
        return self.pair(self._unsigned(number), self._unsigned(self.b.emit(ops.shr, number, self.b.const(31))))

    def to_integer(self, a: Op, t: DType) -> Op:
        """Convert to u1, or to an integer of at most 32 bits."""
        low, high = self.halves(a)
        return self.b.emit(ops.ne, self.b.emit(ops.or_, low, high), self.word(0)) if t is u1 else self.b.cast(low, t)

    def from_f32(self, x: Op) -> Op:
        """Convert an f32 whose value is in the range of the type: all steps are exact."""
        emit = self.b.emit
        size = emit(ops.trunc, emit(ops.abs_, x))
        upper = emit(ops.floor, emit(ops.mul, size, self.b.const(2.0**-32, f32)))
        lower = emit(ops.sub, size, emit(ops.mul, upper, self.b.const(2.0**32, f32)))
        value = self.pair(self.b.cast(lower, u32), self.b.cast(upper, u32))
        return self.choose(emit(ops.lt, x, self.b.const(0.0, f32)), self.neg(value), value)

    def to_f32(self, a: Op, signed: bool) -> Op:
        """Convert to the nearest f32, ties to even: by the 32 bits from the first one on, of which the last is set if any after them is."""
        emit = self.b.emit
        size = self.abs(a, signed)
        zeros = self.count(ops.clz, size)
        rest, top = self.halves(self.shl(size, self.pair(zeros, self.word(0))))
        sticky = self._flag(emit(ops.ne, rest, self.word(0)))
        exponent = emit(ops.shl, emit(ops.sub, self.word(_EXPONENT + 32), zeros), self.word(_EXPONENT_BITS))
        value = emit(ops.mul, self.b.cast(emit(ops.or_, top, sticky), f32), emit(ops.bitcast, exponent, type=f32))
        if not signed:
            return value
        return self._chosen(self.less(a, self.constant(0), True), emit(ops.neg, value), value)
