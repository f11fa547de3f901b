"""Superaccumulators: memory that holds sums of floats exactly, as integers, so that the sums do not depend on the order of the terms.

A float is an integer times the least subnormal number. The limbs of its sum are integers of 64 bits, whose units are 2^16 (for f64 2^32)
apart. A term of f32 is added to one limb, in which it has 39 bits, and from which 2^44 is carried to another limb now and then. A term of
f64 is cut into three parts of 32 bits, which leaves room for 2^31 terms. Additions of integers commute, so atomics may come in any order.
At the end the limbs pass their carries on, and become a float. Three more limbs count positive infinities, negative infinities and NaNs.

This is the long accumulator of U. Kulisch (Computer Arithmetic and Validity, 2008, chapter 8), with limbs that pass carries on late, as in
S. Collange, D. Defour, S. Graillat, R. Iakymchuk, Numerical reproducibility for the parallel reduction on multi- and many-core
architectures, Parallel Computing 49, 2015.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, f32, f64, i32, i64, u32, u64
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op, TempRef
from spirograd.ir.temp_kinds import TempKind

_PART = 32  # bits of a part of a term
# A limb of f32 carries to another one when it leaves a range of this size: large beside terms, small beside a limb.
_MODULUS = 44
_CARRIED = 2  # limbs of f32 from one to that whose unit is 2^32 times its own
_INFINITE, _NEGATIVE, _NAN = 0, 1, 2  # limbs after those of numbers
_SPECIAL = 3


@dataclass(frozen=True, slots=True)
class Format:
    """A format of floats. ``fraction``: bits of the significand that are stored; ``bias``: of exponents. ``unit``: the units of limbs are
    2 to this power apart; ``limbs``: the number of limbs that hold any sum; ``parts``: the number of limbs to which a term is added."""

    dtype: DType
    bits: DType
    fraction: int
    bias: int
    unit: int
    limbs: int
    parts: int

    @property
    def infinity(self) -> int:
        """Return the exponent of infinities and NaNs, as it is stored."""
        return 2 * self.bias + 1

    @property
    def all_limbs(self) -> int:
        """Return the number of limbs of an element, those that count infinities and NaNs included."""
        return self.limbs + _SPECIAL


_F32, _F64 = Format(f32, u32, 23, 127, 16, 22, 1), Format(f64, u64, 52, 1023, 32, 66, 3)


def format_of(t: DType) -> Format:
    """Return the format in which floats of type ``t`` are summed: f16 as f32."""
    return _F64 if t is f64 else _F32


@dataclass(frozen=True, slots=True)
class Range:
    """Two words: the largest distance of a limb with terms from the last limb, and the largest number of a limb with terms, plus 1. Both
    are 0 between tasks that add. Most terms of a program are of similar size, so few limbs need to be read."""

    first: TempRef
    last: TempRef


def new_range(number: int) -> Range:
    """Return the range with this number. Ranges of a kernel differ in their numbers."""
    refs = [
        TempRef(f"{name}_limb_{number}", i32, kind=TempKind.LIMB_RANGE, number=2 * number + k) for k, name in enumerate(("first", "last"))
    ]
    return Range(*refs)


class Limbs:
    """A builder of code for superaccumulators in ``memory``, whose elements are limbs, or pairs of words where the device has no atomics of
    64 bits. ``pitch``: the number of superaccumulators (i32)."""

    def __init__(self, b: Builder, caps: Capabilities, form: Format, memory: TempRef, pitch: Op, limits: Range) -> None:
        self._b, self._form, self._memory, self._pitch, self._range = b, form, memory, pitch, limits
        self._pairs = not caps.atomic_int64
        self._wide = f64 if caps.float64 else f32

    def add(self, element: Op, value: Op) -> None:
        """Emit the atomic addition of ``value``, of the type of the format, to superaccumulator ``element`` (i32)."""
        b, form = self._b, self._form
        bits = b.emit(ops.bitcast, value, type=form.bits)
        exponent = b.cast(self._and(b.emit(ops.shr, bits, self._const(form.fraction, bits)), form.infinity), i32)
        fraction = b.cast(self._and(bits, (1 << form.fraction) - 1), u64)
        is_normal = b.emit(ops.ne, exponent, b.const(0))
        hidden = b.emit(ops.or_, fraction, b.const(1 << form.fraction, u64))
        significand = b.emit(ops.select, is_normal, hidden, fraction)
        self._if_any(significand, lambda: self._add_number(element, bits, exponent, significand))

    def _add_number(self, element: Op, bits: Op, exponent: Op, significand: Op) -> None:
        """Add a number that is not 0, an infinity or a NaN."""
        b, form = self._b, self._form
        one, sign = b.const(1), self._const(1 << (form.fraction + (form.infinity + 1).bit_length() - 1), bits)
        negative = b.emit(ops.ne, b.emit(ops.and_, bits, sign), self._const(0, bits))
        special = b.emit(ops.eq, exponent, b.const(form.infinity))
        place = b.emit(ops.sub, b.emit(ops.max_, exponent, one), one)
        counter = b.emit(ops.select, negative, b.const(form.limbs + _NEGATIVE), b.const(form.limbs + _INFINITE))
        infinite = b.emit(ops.eq, significand, b.const(1 << form.fraction, u64))
        counter = b.emit(ops.select, infinite, counter, b.const(form.limbs + _NAN))
        limb = b.emit(ops.shr, place, b.const(form.unit.bit_length() - 1))
        limb = b.emit(ops.select, special, counter, limb)
        parts = self._parts(significand, b.cast(b.emit(ops.and_, place, b.const(form.unit - 1)), u64))
        zero = b.const(0, i64)
        at = b.emit(ops.add, b.emit(ops.mul, limb, self._pitch), element)
        for k, part in enumerate(parts):
            signed = b.emit(ops.select, negative, b.emit(ops.sub, zero, part), part)
            term = b.emit(ops.select, special, b.const(0 if k else 1, i64), signed)
            if k == 0:
                self._update(at, term, carries=form.parts == 1)
            else:
                at = b.emit(ops.add, at, self._pitch)
                self._if_any(term, partial(self._update, at, term))
        b.atomic("max", self._range.first, b.emit(ops.sub, b.const(form.all_limbs), limb))
        b.atomic("max", self._range.last, b.emit(ops.add, limb, b.const(max(form.parts, _CARRIED + 1))))

    def _parts(self, significand: Op, shift: Op) -> list[Op]:
        """Return the parts of a significand that is shifted left: i64, the least first."""
        b, shifted = self._b, self._b.emit(ops.shl, significand, shift)
        parts = [shifted]
        if self._form.parts > 1:  # the highest bits have left the word
            mask = b.const((1 << _PART) - 1, u64)
            rest = b.emit(ops.shr, significand, b.emit(ops.sub, b.const(_PART, u64), shift))
            parts = [b.emit(ops.and_, x, mask) for x in (shifted, rest)] + [b.emit(ops.shr, rest, b.const(_PART, u64))]
        return [b.emit(ops.bitcast, part, type=i64) for part in parts]

    def _update(self, at: Op, term: Op, carries: bool = False) -> None:
        """Add ``term`` (i64) to the limb at index ``at``. ``carries``: see `_carry`."""
        b = self._b
        if not self._pairs:
            before = b.atomic("add", self._memory, at, term)
            if carries:
                self._carry(at, at, before, term, _MODULUS)
            return
        low, high = b.cast(term, u32), b.cast(b.emit(ops.shr, term, b.const(32, i64)), u32)
        index = b.emit(ops.mul, at, b.const(2))
        before = b.atomic("add", self._memory, index, low)
        carry = b.cast(b.emit(ops.lt, b.emit(ops.add, before, low), low), u32)
        upper = b.emit(ops.add, high, carry)
        self._if_any(upper, lambda: self._update_upper(at, b.emit(ops.add, index, b.const(1)), upper, carries))

    def _update_upper(self, at: Op, index: Op, upper: Op, carries: bool) -> None:
        """Add ``upper`` to the upper word, at ``index``, of the limb at ``at``."""
        b = self._b
        before = b.atomic("add", self._memory, index, upper)
        if carries:
            old, term = [b.emit(ops.bitcast, word, type=i32) for word in (before, upper)]
            self._carry(at, index, old, term, _MODULUS - 32)

    def _carry(self, at: Op, index: Op, before: Op, term: Op, log: int) -> None:
        """Carry 2^_MODULUS to another limb if adding ``term`` to ``before``, taken modulo 2^log, leaves this range. ``index``: of the
        element of memory, the limb at ``at`` or its upper word.

        Carries change no limb modulo 2^log. So there are as many carries as the sum requires, whatever their order, and once all are done,
        the limb is in the range. As many carries as invocations run at the same time may be under way: 2^18 of them do not overflow it.
        """
        b, t = self._b, before.type
        assert isinstance(t, DType)
        after = b.emit(ops.add, b.emit(ops.and_, before, b.const((1 << log) - 1, t)), term)
        outside = b.emit(ops.ne, b.emit(ops.shr, after, b.const(log, t)), b.const(0, t))
        is_negative = b.emit(ops.lt, after, b.const(0, t))
        b.begin()
        back = b.emit(ops.select, is_negative, b.const(1 << log, t), b.const(-1 << log, t))
        b.atomic("add", self._memory, index, b.emit(ops.bitcast, back, type=self._memory.dtype))
        carried = 1 << (_MODULUS - 32)
        above = b.emit(ops.add, at, b.emit(ops.mul, self._pitch, b.const(_CARRIED)))
        self._update(above, b.emit(ops.select, is_negative, b.const(-carried, i64), b.const(carried, i64)))
        then = b.end()
        b.begin()
        b.if_(outside, then, b.end())

    def _if_any(self, value: Op, emit: Callable[[], object]) -> None:
        """Emit code that runs if ``value`` is not 0."""
        b = self._b
        assert isinstance(value.type, DType)
        condition = b.emit(ops.ne, value, b.const(0, value.type))
        b.begin()
        emit()
        then = b.end()
        b.begin()
        b.if_(condition, then, b.end())

    # --- results -----------------------------------------------------------------------------------------------------------

    def take(self, element: Op) -> tuple[Op, Op]:
        """Emit code that clears superaccumulator ``element``. Return its sum, of f64 where the device has it, and whether there were terms
        (u1). The error of the sum is below two units in the last place."""
        b, form = self._b, self._form
        first = b.emit(ops.sub, b.const(form.all_limbs), b.load(self._range.first))
        last = b.load(self._range.last)
        end = b.emit(ops.min_, last, b.const(form.limbs))
        limb, carry, total, seen = b.begin(i32, i64, self._wide, i64)
        value = self._taken(limb, element)
        whole = b.emit(ops.add, value, carry)
        half = b.emit(ops.add, whole, b.const(1 << (form.unit - 1), i64))
        above = b.emit(ops.shr, half, b.const(form.unit, i64))
        digit = b.emit(ops.sub, whole, b.emit(ops.shl, above, b.const(form.unit, i64)))
        body = b.end([above, b.emit(ops.add, total, self._scaled(digit, limb), attr="exact"), b.emit(ops.or_, seen, value)])
        start = [b.const(0, i64), b.const(0.0, self._wide), b.const(0, i64)]
        carry, total, seen = b.for_(first, end, start, body)
        total = b.emit(ops.add, total, self._scaled(carry, end), attr="exact")
        special = b.emit(ops.gt, last, b.const(form.limbs))
        b.begin()
        counted = [self._taken(b.const(form.limbs + k), element) for k in range(_SPECIAL)]
        result, found = total, seen
        for count, special_value in zip(counted, (float("inf"), float("-inf"), float("nan"))):
            there = b.emit(ops.ne, count, b.const(0, i64))
            sum_ = b.emit(ops.add, result, b.const(special_value, self._wide), attr="exact")
            result, found = b.emit(ops.select, there, sum_, result), b.emit(ops.or_, found, count)
        then = b.end([result, found])
        b.begin()
        total, seen = b.if_(special, then, b.end([total, seen]))
        return total, b.emit(ops.ne, seen, b.const(0, i64))

    def _taken(self, limb: Op, element: Op) -> Op:
        """Return a limb (i64), and clear it."""
        b = self._b
        at = b.emit(ops.add, b.emit(ops.mul, limb, self._pitch), element)
        if not self._pairs:
            value = b.load(self._memory, at)
            b.store(self._memory, at, b.const(0, i64))
            return value
        low = b.emit(ops.mul, at, b.const(2))
        high = b.emit(ops.add, low, b.const(1))
        words = [b.load(self._memory, index) for index in (low, high)]
        for index in (low, high):
            b.store(self._memory, index, b.const(0, u32))
        upper = b.emit(ops.shl, b.cast(words[1], i64), b.const(32, i64))
        return b.emit(ops.or_, upper, b.cast(words[0], i64))

    def _scaled(self, digit: Op, limb: Op) -> Op:
        """Return ``digit``, below 2^32, times the unit of ``limb``. The unit is a product of two numbers that are not subnormal."""
        b, form, wide = self._b, self._form, format_of(self._wide)
        least = 1 - form.bias - form.fraction
        exponent = b.emit(ops.add, b.emit(ops.mul, limb, b.const(form.unit)), b.const(least))
        half = b.emit(ops.shr, exponent, b.const(1))
        value = b.cast(digit, self._wide)
        for power in (half, b.emit(ops.sub, exponent, half)):
            biased = b.emit(ops.add, power, b.const(wide.bias))
            bits = b.emit(ops.shl, b.cast(biased, wide.bits), b.const(wide.fraction, wide.bits))
            value = b.emit(ops.mul, value, b.emit(ops.bitcast, bits, type=self._wide), attr="exact")
        return value

    # --- constants ---------------------------------------------------------------------------------------------------------

    def _const(self, value: int, like: Op) -> Op:
        assert isinstance(like.type, DType)
        return self._b.const(value, like.type)

    def _and(self, value: Op, mask: int) -> Op:
        return self._b.emit(ops.and_, value, self._const(mask, value))
