"""Fraction and exponent of floats, from their bits. Derivatives of the fraction go through products alone."""

from __future__ import annotations

from spirograd.base.dtypes import DType, f16, f32, i32, i64
from spirograd.ir import ops as ir
from spirograd.lang import scalar
from spirograd.lang.scalar import Value, constant, emit

# Bits of the stored fraction -> of f32 and of f64.
_STORED = {32: 23, 64: 52}


def fraction_and_exponent(x: Value) -> tuple[Value, Value]:
    """See `ops.frexp`."""
    x = scalar.to_float(x)
    if x.dtype is f16:
        fraction, exponent = fraction_and_exponent(scalar.cast(x, f32))
        return scalar.cast(fraction, f16), exponent
    exponent = _exponent(emit(ir.stop_grad, x))
    # In two steps, for 2 ** -128 is subnormal in f32.
    half = scalar.shift_right(exponent, 1)
    fraction = x
    for power in (half, exponent - half):
        fraction = emit(ir.mul, fraction, _power_of_two(-power, x.dtype), attr="exact")
    return fraction, exponent


def _exponent(x: Value) -> Value:
    t, stored = x.dtype, _STORED[x.dtype.bits]
    bits, all_ones = _bits_of(t), (1 << (t.bits - stored - 1)) - 1
    tiny = scalar.less(emit(ir.abs_, x), constant(float(2.0 ** (2 - (all_ones + 1) // 2)), t))
    normal = scalar.emit_select(tiny, emit(ir.mul, x, constant(2.0 ** (stored + 1), t)), x)
    field = scalar.bit_and(scalar.shift_right(scalar.bit_cast(normal, bits), stored), constant(all_ones, bits))
    none = scalar.bit_or(scalar.equal(field, 0), scalar.equal(field, all_ones))
    exponent = scalar.cast(field, i32) - (all_ones // 2 - 1)
    exponent = scalar.emit_select(tiny, exponent - (stored + 1), exponent)
    return scalar.emit_select(none, constant(0, i32), exponent)


def _power_of_two(n: Value, t: DType) -> Value:
    """Return 2 to the power of a number whose result is not subnormal."""
    stored, bits = _STORED[t.bits], _bits_of(t)
    bias = (1 << (t.bits - stored - 2)) - 1
    return scalar.bit_cast(scalar.shift_left(scalar.cast(n + bias, bits), stored), t)


def _bits_of(t: DType) -> DType:
    return i32 if t.bits == 32 else i64
