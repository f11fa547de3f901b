"""Float arithmetic with a constant zero, by its bits: drivers simplify it as if there were no NaN, infinities and negative zeros.

Mesa (lavapipe 22.3) makes x * 0 and 0 / x zero and x + 0 and 0 - x plus and minus x, decorated with NoContraction or not. Without fast math
that is wrong; here the results are put together from the bits of x, as integers, which no driver rounds.
"""

from __future__ import annotations

import math

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, f16, f32, u1, unsigned
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op
from spirograd.ir.ops import OpCode

_INFINITY = {16: 0x7C00, 32: 0x7F800000, 64: 0x7FF0000000000000}
_NAN = {32: 0x7FC00000, 64: 0x7FF8000000000000}
CODES = (ops.add, ops.sub, ops.mul, ops.div)


def with_zero(b: Builder, op: Op, x: Op, y: Op, caps: Capabilities) -> Op | None:
    """``op`` (of `CODES`) of x and y, of which one is a constant zero, or a divisor may be; None where nothing is to be done, or the device
    has no integers as wide."""
    t = _dtype(op)
    if not t.is_float or (t.bits == 64 and not caps.int64):
        return None
    if not (_is_zero(x) or _is_zero(y)):
        return _divided(b, op, x, y) if op.code is ops.div and y.code is not ops.const else None
    if t is f16:  # in f32 it is exact, too
        return b.cast(_result(b, op.code, widened(b, x), widened(b, y)), f16)
    return _result(b, op.code, x, y)


def _result(b: Builder, code: OpCode, x: Op, y: Op) -> Op:
    if code is ops.mul:
        return _product(b, *((x, y) if _is_zero(y) else (y, x)))
    if code is ops.div:
        return _zero_divided(b, x, y) if _is_zero(x) else b.emit(ops.mul, x, b.const(math.copysign(math.inf, y.attr), _dtype(x)))
    return _sum(b, code, x, y)


def _dtype(x: Op) -> DType:
    assert isinstance(x.type, DType), x
    return x.type


def _is_zero(x: Op) -> bool:
    return x.code is ops.const and x.type is not u1 and x.attr == 0


def widened(b: Builder, x: Op) -> Op:
    return b.const(x.attr, f32) if x.code is ops.const else b.cast(x, f32)


def _sign(t: DType) -> int:
    return 1 << (t.bits - 1)


def _bits(b: Builder, x: Op) -> Op:
    return b.emit(ops.bitcast, x, type=unsigned(_dtype(x)))


def _negative(zero: Op) -> bool:
    return math.copysign(1.0, zero.attr) < 0


def _product(b: Builder, x: Op, zero: Op) -> Op:
    """A zero with the sign of both; NaN if ``x`` is infinite or NaN."""
    sign, magnitude = _sign_and_magnitude(b, x, zero)
    u = _dtype(magnitude)
    finite = b.emit(ops.lt, magnitude, b.const(_INFINITY[u.bits], u))
    return _or_nan(b, finite, sign, _dtype(x))


def _zero_divided(b: Builder, zero: Op, x: Op) -> Op:
    """A zero with the sign of both; NaN if ``x`` is NaN or zero."""
    sign, magnitude = _sign_and_magnitude(b, x, zero)
    u = _dtype(magnitude)
    # 1 to infinity, which is 0 to infinity - 1 after a step down that makes zero the largest number.
    below = b.emit(ops.sub, magnitude, b.const(1, u))
    return _or_nan(b, b.emit(ops.lt, below, b.const(_INFINITY[u.bits], u)), sign, _dtype(x))


def _sign_and_magnitude(b: Builder, x: Op, zero: Op) -> tuple[Op, Op]:
    """The sign bit of ``x`` times ``zero``, and the bits of ``x`` without its sign."""
    t = _dtype(x)
    u = unsigned(t)
    bits = _bits(b, x)
    sign = b.emit(ops.and_, bits, b.const(_sign(t), u))
    if _negative(zero):
        sign = b.emit(ops.xor, sign, b.const(_sign(t), u))
    return sign, b.emit(ops.and_, bits, b.const(_sign(t) - 1, u))


def _or_nan(b: Builder, holds: Op, bits: Op, t: DType) -> Op:
    """The float of ``bits`` if the condition ``holds``, else NaN."""
    return b.emit(ops.bitcast, b.emit(ops.select, holds, bits, b.const(_NAN[t.bits], _dtype(bits))), type=t)


def _divided(b: Builder, op: Op, x: Op, y: Op) -> Op:
    """x / y, for a divisor that may turn out to be a constant zero once the driver has unrolled a loop."""
    t = _dtype(op)
    u = unsigned(t)
    infinity = b.emit(ops.bitcast, b.emit(ops.or_, _bits(b, y), b.const(_INFINITY[t.bits], u)), type=t)
    by_zero = b.emit(ops.mul, x, infinity)
    return b.emit(ops.select, b.emit(ops.eq, y, b.const(0.0, t)), by_zero, b.emit(ops.div, x, y, attr=op.attr))


def _sum(b: Builder, code: OpCode, x: Op, y: Op) -> Op:
    """x + 0 is x, and 0 - x is -x, but that the zero that they give is positive unless both terms are negative."""
    t = _dtype(x)
    u = unsigned(t)
    right = _is_zero(y)
    zero, other = (y, x) if right else (x, y)
    bits = _bits(b, other)
    if code is ops.sub and not right:
        bits = b.emit(ops.xor, bits, b.const(_sign(t), u))
    if _negative(zero) != (code is ops.sub and right):  # the term is -0: the sum is the other
        return b.emit(ops.bitcast, bits, type=t)
    is_negative_zero = b.emit(ops.eq, bits, b.const(_sign(t), u))
    return b.emit(ops.bitcast, b.emit(ops.select, is_negative_zero, b.const(0, u), bits), type=t)
