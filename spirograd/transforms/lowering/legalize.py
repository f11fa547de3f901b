"""Legalisation of integer division, shifts, conversions, rounding, roots and bit counts to forms that the device computes correctly."""

from __future__ import annotations

import math
from collections.abc import Callable

from spirograd.base.dtypes import DType, f16, f32, f64, i32, signed, u1, u32, u64, unsigned
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext


def legalize(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Rewrite every operation such that the device's own instructions have the meaning that ir/ops.py defines."""
    return _Legalize(ctx).kernel(kernel)


class _Legalize(Rewriter):
    def __init__(self, ctx: PassContext) -> None:
        super().__init__()
        self.caps = ctx.caps
        division: tuple[tuple[ops.OpCode, Callable[[Builder, Op, Op], Op]], ...] = (
            (ops.idiv, quotient), (ops.irem, remainder), (ops.floordiv, floor_quotient), (ops.floormod, floor_remainder),
        )  # fmt: skip
        for code, lower in division:
            self.handlers[code] = self._binary(lower)
        self.handlers[ops.shl] = self.handlers[ops.shr] = self._shift
        self.handlers[ops.cast] = self._cast_to_bool
        if ctx.caps.target.shader_arithmetic:
            self.handlers[ops.cast] = self._cast
            self.handlers[ops.div] = self._div
            self.handlers[ops.sqrt] = self.handlers[ops.rsqrt] = self._root
            self.handlers[ops.max_] = self._max
            if ctx.caps.int64:
                self.handlers[ops.trunc] = self.handlers[ops.round_] = self._rounded
            for code, count in ((ops.popcnt, popcnt), (ops.clz, clz), (ops.ctz, ctz)):
                self.handlers[code] = self._count(code, count)

    def _binary(self, lower: Callable[[Builder, Op, Op], Op]) -> Callable[[Op], Op]:
        def handle(op: Op) -> Op:
            a, b = self.args(op)
            if op.code in (ops.idiv, ops.irem) and _always_safe(b):
                return self.copy(op)
            return lower(self.b, a, b)

        return handle

    def _shift(self, op: Op) -> Op:
        a, count = self.args(op)
        bits = _dtype(a).bits
        if count.code is ops.const:
            if 0 <= count.attr < bits:
                return self.copy(op)
            return self.b.emit(op.code, a, self.b.const(count.attr % bits, _dtype(a)))
        return self.b.emit(op.code, a, self.b.emit(ops.and_, count, self.b.const(bits - 1, _dtype(a))))

    def _cast_to_bool(self, op: Op) -> Op:
        """Convert to u1: a comparison with 0 (true for NaN)."""
        (a,) = self.args(op)
        if op.type is not u1 or a.type is u1:
            return self.copy(op)
        return self.b.emit(ops.ne, a, self.b.const(0, _dtype(a)))

    def _cast(self, op: Op) -> Op:
        (a,) = self.args(op)
        target = _dtype(op)
        if target is f16 and a.type is not f16:
            return self._to_half(a if a.type is f32 else self.b.cast(a, f32))
        if not (_dtype(a).is_float and target.is_int):
            return self._cast_to_bool(op)
        return saturate(self.b, a, target)

    def _to_half(self, x: Op) -> Op:
        """Convert from f32 to f16. Modules for wgpu cannot request a rounding mode, and NVIDIA's is towards zero there."""
        exact = self.caps.nearest_f16 or not self.caps.float16  # `widen_narrow_types` rounds, too.
        return self.b.cast(x if exact else nearest_half(self.b, x), f16)

    def _div(self, op: Op) -> Op:
        """Divide f16 in f32, which rounds correctly. Vulkan allows an error of 2.5 ulp, and devices use it: 7 / 7 was 0.9995 on an NVIDIA
        H100."""
        if op.type is not f16:
            return self.copy(op)
        a, b = (self.b.cast(x, f32) for x in self.args(op))
        return self._to_half(self.b.emit(ops.div, a, b))

    def _root(self, op: Op) -> Op:
        """Return NaN for negative f64. Vulkan leaves these roots undefined, and Mesa's lowering for GPUs makes numbers of about 1e-308."""
        (x,) = self.args(op)
        if op.type is not f64:
            return self.copy(op)
        b = self.b
        return b.emit(ops.select, b.emit(ops.lt, x, b.const(0.0, f64)), b.const(math.nan, f64), b.emit(op.code, x))

    def _rounded(self, op: Op) -> Op:
        """Round f64 by the floor of the magnitude. Without AVX-512, llvmpipe (Mesa 22.3) loses the sign of zero, and rounds 1.5 to 1."""
        (x,) = self.args(op)
        return self.copy(op) if _dtype(x).bits < 64 else rounded(self.b, op.code, x)

    def _max(self, op: Op) -> Op:
        """Emit the maximum of 64-bit integers by comparisons. NVIDIA's driver 580 loses upper words of `max(x, 1) - 1` and of quotients of
        it. It does the same for an unsigned comparison with a selection, so unsigned words are compared and selected separately."""
        x, y = self.args(op)
        if _dtype(x).is_float or _dtype(x).bits < 64:
            return self.copy(op)
        b = self.b
        if _dtype(x).is_signed:
            return b.emit(ops.select, b.emit(ops.lt, x, y), y, x)
        (low, high), (other_low, other_high) = _halves(b, x), _halves(b, y)
        below = b.emit(ops.and_, b.emit(ops.eq, high, other_high), b.emit(ops.lt, low, other_low))
        less = b.emit(ops.or_, b.emit(ops.lt, high, other_high), below)
        low, high = b.emit(ops.select, less, other_low, low), b.emit(ops.select, less, other_high, high)
        return b.emit(ops.or_, b.emit(ops.shl, b.cast(high, u64), b.const(32, u64)), b.cast(low, u64))

    def _count(self, code: ops.OpCode, lower: Callable[[Builder, Op], Op]) -> Callable[[Op], Op]:
        def handle(op: Op) -> Op:
            (a,) = self.args(op)
            return self.copy(op) if _dtype(a).bits == 32 else lower(self.b, a)

        return handle


def _dtype(op: Op) -> DType:
    assert isinstance(op.type, DType), op
    return op.type


# --- division ------------------------------------------------------------------------------------------------------------


def _always_safe(divisor: Op) -> bool:
    return divisor.code is ops.const and divisor.attr not in (0, -1)


def _may_be_negative(divisor: Op) -> bool:
    """Return whether a divisor may be negative. Extents of index spaces are the maximum of a size and 0, so they are not."""
    floors = [a.attr for a in divisor.args if a.code is ops.const] if divisor.code is ops.max_ else [-1]
    return _dtype(divisor).is_signed and max(floors, default=-1) < 0


def _guard(b: Builder, divisor: Op) -> Op:
    """Return ``divisor``, or 1 where division by it may trap: for 0 and, if it may be negative, for -1."""
    if _always_safe(divisor):
        return divisor
    t = _dtype(divisor)
    if not _may_be_negative(divisor):
        return b.emit(ops.max_, divisor, b.const(1, t))
    shifted = b.emit(ops.bitcast, b.emit(ops.add, divisor, b.const(1, t)), type=unsigned(t))
    return b.emit(ops.select, b.emit(ops.le, shifted, b.const(1, unsigned(t))), b.const(1, t), divisor)


def _mend(b: Builder, dividend: Op, divisor: Op, result: Op) -> Op:
    """Return the quotient ``result`` of the guarded division, corrected for divisors 0 and -1."""
    if _always_safe(divisor):
        return result
    t = _dtype(divisor)
    if _may_be_negative(divisor):
        result = b.emit(ops.select, b.emit(ops.eq, divisor, b.const(-1, t)), b.emit(ops.neg, dividend), result)
    return b.emit(ops.select, b.emit(ops.eq, divisor, b.const(0, t)), b.const(0, t), result)


def quotient(b: Builder, x: Op, y: Op) -> Op:
    """Return x / y, rounded towards 0; 0 if y is 0."""
    return _mend(b, x, y, b.emit(ops.idiv, x, _guard(b, y)))


def remainder(b: Builder, x: Op, y: Op) -> Op:
    """Return x - y * trunc(x / y); 0 if y is 0. The guarded divisor 1 gives 0, which is right for 0 and for -1."""
    return b.emit(ops.irem, x, _guard(b, y))


def _power_of_two(y: Op) -> int:
    """Return k if ``y`` is the constant 2**k, else -1."""
    if y.code is ops.const and y.attr > 0 and y.attr & (y.attr - 1) == 0:
        return int(y.attr).bit_length() - 1
    return -1


def _needs_step(b: Builder, r: Op, y: Op) -> Op:
    """Return whether rounding down differs from truncation: the remainder is not 0 and its sign differs from the divisor's."""
    zero = b.const(0, _dtype(r))
    if y.code is ops.const:
        return b.emit(ops.lt if y.attr > 0 else ops.gt, r, zero)
    differs = b.emit(ops.lt, b.emit(ops.xor, r, y), zero)
    return b.emit(ops.and_, b.emit(ops.ne, r, zero), differs)


def floor_quotient(b: Builder, x: Op, y: Op) -> Op:
    """Return floor(x / y); 0 if y is 0."""
    t = _dtype(x)
    k = _power_of_two(y)
    if k >= 0:
        return b.emit(ops.shr, x, b.const(k, t)) if k else x
    if not t.is_signed:
        return quotient(b, x, y)
    safe = _guard(b, y)
    q = b.emit(ops.idiv, x, safe)
    r = b.emit(ops.sub, x, b.emit(ops.mul, q, safe))
    floored = b.emit(ops.select, _needs_step(b, r, safe), b.emit(ops.sub, q, b.const(1, t)), q)
    return _mend(b, x, y, floored)


def floor_remainder(b: Builder, x: Op, y: Op) -> Op:
    """Return x - y * floor(x / y); 0 if y is 0."""
    t = _dtype(x)
    k = _power_of_two(y)
    if k >= 0:
        return b.emit(ops.and_, x, b.const((1 << k) - 1, t))
    r = remainder(b, x, y)
    if not t.is_signed:
        return r
    # With a guarded divisor r is 0, so there is no correction.
    return b.emit(ops.select, _needs_step(b, r, y), b.emit(ops.add, r, y), r)


# --- conversions ---------------------------------------------------------------------------------------------------------


def saturate(b: Builder, x: Op, target: DType) -> Op:
    """Convert float to integer: truncate and saturate; NaN gives 0. The device only converts values in range."""
    if x.type is f16:
        x = b.cast(x, f32)
    if target.bits < 32:
        wide = saturate(b, x, i32)
        low = b.emit(ops.max_, wide, b.const(int(target.min)))
        return b.cast(b.emit(ops.min_, low, b.const(int(target.max))), target)
    t = _dtype(x)
    # Both are powers of two (or 0), so they are exact in every float type.
    low_bound, high_bound = b.const(float(target.min), t), b.const(float(int(target.max) + 1), t)
    too_low, too_high = b.emit(ops.lt, x, low_bound), b.emit(ops.ge, x, high_bound)
    inside = b.emit(ops.and_, b.emit(ops.ge, x, low_bound), b.emit(ops.lt, x, high_bound))
    safe = b.emit(ops.select, inside, x, b.const(0.0, t))
    value = b.emit(ops.select, too_high, b.const(int(target.max), target), b.cast(safe, target))
    return b.emit(ops.select, too_low, b.const(int(target.min), target), value)


def nearest_half(b: Builder, x: Op) -> Op:
    """Round an f32 to the nearest number that f16 can represent, ties to even, so that its conversion to f16 is exact."""

    def bits(value: Op) -> Op:
        return b.emit(ops.bitcast, value, type=u32)

    def number(pattern: Op) -> Op:
        return b.emit(ops.bitcast, pattern, type=f32)

    def constant(value: int) -> Op:
        return b.const(value, u32)

    pattern = bits(x)
    magnitude = b.emit(ops.and_, pattern, constant(0x7FFFFFFF))
    # 13 bits of the significand are dropped: half a unit of the last bit that stays is added, less one if that bit is 0 (ties to even).
    even = b.emit(ops.and_, b.emit(ops.shr, magnitude, constant(13)), constant(1))
    raised = b.emit(ops.add, b.emit(ops.add, magnitude, constant(0xFFF)), even)
    rounded = b.emit(ops.and_, raised, constant(0xFFFFE000))
    # Below 2**-14 halves are multiples of 2**-24.
    scaled = b.emit(ops.round_, b.emit(ops.mul, number(magnitude), b.const(2.0**24, f32)))
    tiny = bits(b.emit(ops.mul, scaled, b.const(2.0**-24, f32)))
    result = b.emit(ops.select, b.emit(ops.lt, magnitude, constant(0x38800000)), tiny, rounded)
    beyond = b.emit(ops.gt, rounded, constant(0x477FE000))  # the largest half, 65504
    result = b.emit(ops.select, beyond, constant(0x7F800000), result)
    result = b.emit(ops.select, b.emit(ops.gt, magnitude, constant(0x7F800000)), magnitude, result)
    sign = b.emit(ops.and_, pattern, constant(0x80000000))
    return number(b.emit(ops.or_, result, sign))


def rounded(b: Builder, code: ops.OpCode, x: Op) -> Op:
    """Return `trunc` or `round_` of an f64, by `floor` and the sign bit."""
    t = _dtype(x)
    u = unsigned(t)
    magnitude = b.emit(ops.abs_, x)
    result = b.emit(ops.floor, magnitude)
    if code is ops.round_:  # comparisons with the difference of infinity and NaN are false: they stay
        rest, half = b.emit(ops.sub, magnitude, result), b.emit(ops.mul, result, b.const(0.5, t))
        odd = b.emit(ops.ne, b.emit(ops.floor, half), half)
        tie = b.emit(ops.and_, b.emit(ops.eq, rest, b.const(0.5, t)), odd)
        up = b.emit(ops.or_, b.emit(ops.gt, rest, b.const(0.5, t)), tie)
        result = b.emit(ops.select, up, b.emit(ops.add, result, b.const(1.0, t)), result)
    sign = b.emit(ops.and_, b.emit(ops.bitcast, x, type=u), b.const(1 << (t.bits - 1), u))
    return b.emit(ops.bitcast, b.emit(ops.or_, b.emit(ops.bitcast, result, type=u), sign), type=t)


# --- bit counts of other widths than 32 ------------------------------------------------------------------------------------


def _as_u32(b: Builder, x: Op) -> Op:
    """Return the bits of an 8-bit or 16-bit integer, zero-extended."""
    t = _dtype(x)
    bits = b.emit(ops.bitcast, x, type=unsigned(t)) if t.is_signed else x
    return b.cast(bits, u32)


def _halves(b: Builder, x: Op) -> tuple[Op, Op]:
    """Return the low and high words of a 64-bit integer."""
    t = unsigned(_dtype(x))
    bits = b.emit(ops.bitcast, x, type=t) if x.type is signed(t) else x
    return b.cast(bits, u32), b.cast(b.emit(ops.shr, bits, b.const(32, t)), u32)


def popcnt(b: Builder, x: Op) -> Op:
    t = _dtype(x)
    if t.bits < 32:
        return b.cast(b.emit(ops.popcnt, _as_u32(b, x)), t)
    low, high = _halves(b, x)
    return b.cast(b.emit(ops.add, b.emit(ops.popcnt, low), b.emit(ops.popcnt, high)), t)


def clz(b: Builder, x: Op) -> Op:
    t = _dtype(x)
    if t.bits < 32:
        return b.cast(b.emit(ops.sub, b.emit(ops.clz, _as_u32(b, x)), b.const(32 - t.bits, u32)), t)
    low, high = _halves(b, x)
    below = b.emit(ops.add, b.emit(ops.clz, low), b.const(32, u32))
    return b.cast(b.emit(ops.select, b.emit(ops.eq, high, b.const(0, u32)), below, b.emit(ops.clz, high)), t)


def ctz(b: Builder, x: Op) -> Op:
    t = _dtype(x)
    if t.bits < 32:
        # A bit above the top one makes the count of 0 the width.
        marked = b.emit(ops.or_, _as_u32(b, x), b.const(1 << t.bits, u32))
        return b.cast(b.emit(ops.ctz, marked), t)
    low, high = _halves(b, x)
    above = b.emit(ops.add, b.emit(ops.ctz, high), b.const(32, u32))
    return b.cast(b.emit(ops.select, b.emit(ops.eq, low, b.const(0, u32)), above, b.emit(ops.ctz, low)), t)
