"""Emitters of scalar operations that take several instructions, or different ones for some types.

Two rules keep all consumers correct, including Metal and wgpu: the signedness of an operand's type agrees with the instruction, and
comparisons are ordered ones or their negation.
"""

from __future__ import annotations

import math

from spirograd.base.dtypes import DType, f32, i32, signed, u1, u32, u64, unsigned
from spirograd.ir import ops
from spirograd.ir.nodes import Op
from spirograd.spirvgen.emitter import Emitter

_CLAMPS = {
    ops.min_: {"float": "NMin", "int": "SMin", "uint": "UMin", "compare_int": "SLessThan", "compare_uint": "ULessThan"},
    ops.max_: {"float": "NMax", "int": "SMax", "uint": "UMax", "compare_int": "SGreaterThan", "compare_uint": "UGreaterThan"},
}


def emit_const(e: Emitter, op: Op) -> None:
    t = op.type
    assert isinstance(t, DType)
    special = t.is_float and (op.attr == 0 or math.isinf(op.attr))
    e.ids[op] = e.opaque_constant(op.attr, t) if special else e.const(op.attr, t)


def emit_sub(e: Emitter, op: Op) -> None:
    """Emit a - b. Without NoContraction, drivers simplify x - x to 0 even for infinities and NaN, so b is made opaque to them."""
    t = op.type
    assert isinstance(t, DType)
    a, b = (e.ids[x] for x in op.args)
    if not t.is_float:
        e.ids[op] = e.f.value("ISub", e.type(t), a, b)
        return
    if e.caps.target.naga and op.args[1].code is not ops.const:
        b = e.opaque(b, t, again=True)
    e.ids[op] = e.rounded(e.f.value("FSub", e.type(t), a, b), t)


def emit_mul(e: Emitter, op: Op) -> None:
    """Emit a * b; as the fused a * b + -0.0, which keeps the sign of zeros, where the driver would add 0.0."""
    t = op.type
    assert isinstance(t, DType)
    factors = [e.ids[x] for x in op.args]
    if not t.is_float:
        e.ids[op] = e.f.value("IMul", e.type(t), *factors)
    elif e.caps.positive_zero_products:
        e.ids[op] = e.f.glsl("Fma", e.type(t), *factors, e.const(-0.0, t))
    else:
        e.ids[op] = e.rounded(e.f.value("FMul", e.type(t), *factors), t)


def emit_div(e: Emitter, op: Op) -> None:
    """Emit a / b of floats. Without float controls 2, b is opaque, because drivers simplify x / x to 1, and lavapipe (22.3) computes x / b
    wrong if b is 0 once it has unrolled a loop."""
    t = op.type
    assert isinstance(t, DType)
    a, b = (e.ids[x] for x in op.args)
    if op.args[1].code is not ops.const and not e.caps.float_controls2:
        b = e.opaque(b, t, again=True)
    e.ids[op] = e.rounded(e.f.value("FDiv", e.type(t), a, b), t)


def emit_neg(e: Emitter, op: Op) -> None:
    t = op.type
    assert isinstance(t, DType)
    value = e.ids[op.args[0]]
    if t.is_float:
        negated = e.f.value("FNegate", e.type(t), value)
        e.ids[op] = e.rounded(negated, t)
    elif t.is_signed:
        e.ids[op] = e.f.value("SNegate", e.type(t), value)
    else:
        e.ids[op] = e.f.value("ISub", e.type(t), e.const(0, t), value)


def emit_abs(e: Emitter, op: Op) -> None:
    t = op.type
    assert isinstance(t, DType)
    value = e.ids[op.args[0]]
    if not t.is_signed:
        e.ids[op] = value
    elif t.is_float or t.bits == 32:
        e.ids[op] = e.f.glsl("FAbs" if t.is_float else "SAbs", e.type(t), value)
    else:
        negative = e.f.value("SLessThan", e.m.type_bool, value, e.const(0, t))
        e.ids[op] = e.f.value("Select", e.type(t), negative, e.f.value("SNegate", e.type(t), value), value)


def emit_clamp(e: Emitter, op: Op) -> None:
    """Emit min or max. Integers use GLSL.std.450 for 32 bits only."""
    t = op.type
    assert isinstance(t, DType)
    a, b = (e.ids[x] for x in op.args)
    names = _CLAMPS[op.code]
    if t.is_float or t.bits == 32:
        e.ids[op] = e.f.glsl(names[t.kind], e.type(t), a, b)
    else:
        first = e.f.value(names["compare_" + t.kind], e.m.type_bool, a, b)
        e.ids[op] = e.f.value("Select", e.type(t), first, a, b)


def emit_opaque(e: Emitter, op: Op) -> None:
    assert isinstance(op.type, DType)
    e.ids[op] = e.opaque(e.ids[op.args[0]], op.type)


# --- bits ------------------------------------------------------------------------------------------------------------------


def emit_bits(e: Emitter, op: Op) -> None:
    """Emit popcnt, clz or ctz of 32-bit integers (SPIR-V has no others)."""
    t = op.type
    assert isinstance(t, DType)
    if t.bits != 32:
        e.unsupported(f"{op.code.name} of {t.name}", "SPIR-V counts bits of 32-bit integers only", op.loc)
    word = e.type(u32)
    value = e.bitcast(e.ids[op.args[0]], t, u32)
    if op.code is ops.popcnt:
        count = e.f.value("BitCount", word, value)
    elif op.code is ops.clz:
        # FindUMsb(0) is -1, and 31 - -1 is 32.
        count = e.f.value("ISub", word, e.const(31, u32), e.f.glsl("FindUMsb", word, value))
    else:
        # FindILsb(0) is -1: as an unsigned number the largest.
        count = e.f.glsl("UMin", word, e.f.glsl("FindILsb", word, value), e.const(32, u32))
    e.ids[op] = e.bitcast(count, u32, t)


# --- comparison and choice ---------------------------------------------------------------------------------------------------


def not_equal(e: Emitter, t: DType, a: int, b: int) -> int:
    boolean = e.m.type_bool
    if t.is_float:
        return e.f.value("LogicalNot", boolean, e.f.value("FOrdEqual", boolean, a, b))
    return e.f.value("LogicalNotEqual" if t is u1 else "INotEqual", boolean, a, b)


def emit_ne(e: Emitter, op: Op) -> None:
    a, b = op.args
    assert isinstance(a.type, DType)
    e.ids[op] = not_equal(e, a.type, e.ids[a], e.ids[b])


def emit_select(e: Emitter, op: Op) -> None:
    condition, a, b = op.args
    value = e.f.value("Select", e.type(op.type), e.ids[condition], e.id(a), e.id(b))
    e.stack_slots.define(op, value)


def emit_isnan(e: Emitter, op: Op) -> None:
    """Emit isnan or isinf by comparing bits: OpIsInf is wrong on some drivers, and fast math does not affect bits."""
    t = op.args[0].type
    assert isinstance(t, DType)
    value = e.ids[op.args[0]]
    if t.bits == 16:
        value, t = e.f.value("FConvert", e.type(f32), value), f32
    bits = unsigned(t)
    infinity = 0x7F800000 if t.bits == 32 else 0x7FF0000000000000
    magnitude = e.f.value("BitwiseAnd", e.type(bits), e.bitcast(value, t, bits), e.const((1 << (t.bits - 1)) - 1, bits))
    name = "UGreaterThan" if op.code is ops.isnan else "IEqual"
    e.ids[op] = e.f.value(name, e.m.type_bool, magnitude, e.const(infinity, bits))


# --- casts -----------------------------------------------------------------------------------------------------------------


def emit_bitcast(e: Emitter, op: Op) -> None:
    source, target = op.args[0].type, op.type
    assert isinstance(source, DType) and isinstance(target, DType)
    e.ids[op] = e.bitcast(e.ids[op.args[0]], source, target)


def emit_cast(e: Emitter, op: Op) -> None:
    source, target = op.args[0].type, op.type
    assert isinstance(source, DType) and isinstance(target, DType)
    e.ids[op] = cast(e, e.ids[op.args[0]], source, target)


def cast(e: Emitter, value: int, source: DType, target: DType) -> int:
    """Emit a conversion. Floats that become integers are in range."""
    f = e.f
    if source is target:
        return value
    if target is u1:
        return not_equal(e, source, value, e.const(0, source))
    if source is u1:
        return f.value("Select", e.type(target), value, e.const(1, target), e.const(0, target))
    if source.is_float and target.is_float:
        return f.value("FConvert", e.type(target), value)
    if source.is_float:
        return f.value("ConvertFToS" if target.is_signed else "ConvertFToU", e.type(target), value)
    if target.is_float:
        return f.value("ConvertSToF" if source.is_signed else "ConvertUToF", e.type(target), value)
    if source.bits == target.bits:
        return e.bitcast(value, source, target)
    # The signedness of the source decides how it is extended; the result has that signedness too, then changes it.
    same = signed(target) if source.is_signed else unsigned(target)
    if source.is_signed and source.bits < 32 <= target.bits:
        value, source = _widened(e, value, source), i32
        if target.bits == 32:
            return e.bitcast(value, i32, target)
    if source.is_signed and source.bits == 32 and target.bits == 64:
        return e.bitcast(_sign_extended(e, value), u64, target)
    wide = f.value("SConvert" if source.is_signed else "UConvert", e.type(same), value)
    return e.bitcast(wide, same, target)


def _widened(e: Emitter, value: int, t: DType) -> int:
    """Convert a signed number of 8 or 16 bits to i32: flip the sign bit and subtract it.

    NVIDIA's driver 580 compiles OpSConvert of a negated 8-bit number, truncated from a wider one, to the negation of the wider one, so that
    -(-128) is 128.
    """
    f, word = e.f, e.type(u32)
    bits = f.value("UConvert", word, e.bitcast(value, t, unsigned(t)))
    bits = f.value("BitwiseAnd", word, bits, e.const(int(unsigned(t).max), u32))
    sign = e.const(1 << (t.bits - 1), u32)
    return e.bitcast(f.value("ISub", word, f.value("BitwiseXor", word, bits, sign), sign), u32, i32)


def _sign_extended(e: Emitter, value: int) -> int:
    """Convert an i32 to the bits of an i64, composed of two words.

    lavapipe 22.3 gets comparisons of a constant with the result of an OpSConvert from 32 to 64 bits wrong.
    """
    f = e.f
    word, pair = e.type(u32), e.type(u64)
    low = f.value("UConvert", pair, e.bitcast(value, i32, u32))
    sign = f.value("ShiftRightArithmetic", e.type(i32), value, e.const(31, i32))
    high = f.value("UConvert", pair, f.value("Bitcast", word, sign))
    return f.value("BitwiseOr", pair, low, f.value("ShiftLeftLogical", pair, high, e.const(32, u64)))
