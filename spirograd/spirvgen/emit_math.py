"""Elementary functions of f16 and f32 that GLSL.std.450 leaves undefined for some operands: these operands are handled apart."""

from __future__ import annotations

import math

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op
from spirograd.spirvgen.emitter import Emitter
from spirograd.spirvgen.instructions import refuse_f64


def emit_atan2(e: Emitter, op: Op) -> None:
    """Atan2 is undefined at the origin: there the angle is that of the sign of zero, a itself."""
    refuse_f64(e, op)
    t, boolean = op.type, e.m.type_bool
    assert isinstance(t, DType)
    a, b = (e.ids[x] for x in op.args)
    zero = e.const(0.0, t)
    origin = e.f.value("LogicalAnd", boolean, e.f.value("FOrdEqual", boolean, a, zero), e.f.value("FOrdEqual", boolean, b, zero))
    e.ids[op] = e.f.value("Select", e.type(t), origin, a, e.f.glsl("Atan2", e.type(t), a, b))


def emit_pow(e: Emitter, op: Op) -> None:
    """Pow is undefined for a negative base, and for 0 to a power that is not positive."""
    refuse_f64(e, op)
    t = op.type
    assert isinstance(t, DType)
    f, number, boolean = e.f, e.type(t), e.m.type_bool
    base, exponent = op.args
    x, y = e.ids[base], e.ids[exponent]
    zero, one = e.const(0.0, t), e.const(1.0, t)
    magnitude = f.glsl("FAbs", number, x)
    power = f.glsl("Pow", number, magnitude, y)
    negative = f.value("FOrdLessThan", boolean, x, zero)
    if exponent.code is ops.const:
        value = float(exponent.attr)
        if value == 0.0:
            e.ids[op] = one
            return
        if value < 0.0:
            at_zero = f.value("FOrdEqual", boolean, x, zero)
            power = f.value("Select", number, at_zero, e.const(math.inf, t), power)
        if not value.is_integer():
            power = f.value("Select", number, negative, e.const(math.nan, t), power)
        elif value % 2.0 == 1.0:
            power = f.value("Select", number, negative, f.value("FNegate", number, power), power)
        e.ids[op] = power
        return
    pole = f.value("LogicalAnd", boolean, f.value("FOrdEqual", boolean, x, zero), f.value("FOrdLessThan", boolean, y, zero))
    power = f.value("Select", number, pole, e.const(math.inf, t), power)
    power = f.value("Select", number, negative, _of_negative_base(e, t, power, y), power)
    certain = f.value("LogicalOr", boolean, f.value("FOrdEqual", boolean, y, zero), f.value("FOrdEqual", boolean, x, one))
    e.ids[op] = f.value("Select", number, certain, one, power)


def _of_negative_base(e: Emitter, t: DType, power: int, y: int) -> int:
    """From ``power`` = |x| ** y: minus it for odd y, itself for even y, NaN for fractions."""
    f, number, boolean = e.f, e.type(t), e.m.type_bool
    half = f.value("FMul", number, y, e.const(0.5, t))
    even = f.value("FOrdEqual", boolean, f.glsl("Floor", number, half), half)
    whole = f.value("FOrdEqual", boolean, f.glsl("Floor", number, y), y)
    signed = f.value("Select", number, even, power, f.value("FNegate", number, power))
    return f.value("Select", number, whole, signed, e.const(math.nan, t))
