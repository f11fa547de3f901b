"""Constants, arithmetic that takes several instructions, choice and conversions."""

from __future__ import annotations

from spirograd.base import dtypes as dt
from spirograd.base.dtypes import DType
from spirograd.ir.nodes import Op
from spirograd.llvmgen import half
from spirograd.llvmgen.function import FunctionEmitter
from spirograd.llvmgen.local_arrays import copied_array
from spirograd.llvmgen.module import is_array, literal


def emit_const(e: FunctionEmitter, op: Op) -> None:
    assert isinstance(op.type, DType)
    e.env[op] = literal(op.attr, op.type)


def emit_neg(e: FunctionEmitter, op: Op) -> None:
    assert isinstance(op.type, DType)
    t, operand = e.type_text(op.type), e.operand(op.args[0])
    e.set(op, f"fneg {t} {operand}" if op.type.is_float else f"sub {t} {e.literal(0, op.type)}, {operand}")


def emit_abs(e: FunctionEmitter, op: Op) -> None:
    assert isinstance(op.type, DType)
    operand = e.operand(op.args[0])
    if op.type.is_float:
        e.env[op] = e.call_intrinsic("fabs", op.type, [operand])
    elif op.type.is_signed:
        e.env[op] = e.call_intrinsic("abs", op.type, [operand], tail=", i1 false")
    else:
        e.env[op] = operand


def emit_fma(e: FunctionEmitter, op: Op) -> None:
    assert isinstance(op.type, DType)
    a, b, c = [e.operand(x) for x in op.args]
    if e.has_fma and op.type is not dt.f16:
        e.env[op] = e.call_intrinsic("fma", op.type, [a, b, c])
        return
    t = e.type_text(op.type)
    product = e.value(f"fmul {t} {a}, {b}")
    e.set(op, f"fadd {t} {product}, {c}")


def emit_not(e: FunctionEmitter, op: Op) -> None:
    assert isinstance(op.type, DType)
    e.set(op, f"xor {e.typed(op.args[0])}, {e.literal(-1, op.type)}")


def emit_rsqrt(e: FunctionEmitter, op: Op) -> None:
    assert isinstance(op.type, DType)
    root = e.call_intrinsic("sqrt", op.type, [e.operand(op.args[0])])
    e.set(op, f"fdiv {e.type_text(op.type)} {e.literal(1.0, op.type)}, {root}")


def emit_isnan(e: FunctionEmitter, op: Op) -> None:
    a = op.args[0]
    e.set(op, f"fcmp uno {e.typed(a)}, {e.operand(a)}")


def emit_isinf(e: FunctionEmitter, op: Op) -> None:
    t = op.args[0].type
    assert isinstance(t, DType)
    size = e.call_intrinsic("fabs", t, [e.operand(op.args[0])])
    e.set(op, f"fcmp oeq {e.type_text(t)} {size}, {e.literal(float('inf'), t)}")


def emit_select(e: FunctionEmitter, op: Op) -> None:
    condition, a, b = op.args
    if is_array(op.type):
        e.env[op] = copied_array(e, e.value(f"select i1 {e.env[condition]}, ptr {e.env[a]}, ptr {e.env[b]}"), op.type)
        return
    e.set(op, f"select {e.typed(condition)}, {e.typed(a)}, {e.typed(b)}")


# --- conversions ---


def emit_cast(e: FunctionEmitter, op: Op) -> None:
    source, target = op.args[0].type, op.type
    assert isinstance(source, DType) and isinstance(target, DType)
    value = e.operand(op.args[0])
    if source is target:
        e.env[op] = value
    elif target is dt.u1:
        zero = e.literal(0, source)
        e.set(op, f"{'fcmp une' if source.is_float else 'icmp ne'} {e.type_text(source)} {value}, {zero}")
    elif source.is_float:
        e.env[op] = _float_to_float(e, value, source, target) if target.is_float else _float_to_int(e, value, source, target)
    elif target.is_float:
        e.env[op] = _int_to_float(e, value, source, target)
    else:
        e.env[op] = e.resize(value, source, target)


def _float_to_float(e: FunctionEmitter, value: str, source: DType, target: DType) -> str:
    if source is dt.f64 and target is dt.f16 and half.needs_double_to_half(e.module.caps):
        e.module.uses_double_to_half = True
        return e.value(f"call half @{half.DOUBLE_TO_HALF}(double {value})")
    if source is dt.f16 and target is dt.f64:  # in two exact steps: only the first is an instruction everywhere
        value, source = e.convert("fpext", value, dt.f16, dt.f32), dt.f32
    return e.convert("fpext" if target.bits > source.bits else "fptrunc", value, source, target)


def _float_to_int(e: FunctionEmitter, value: str, source: DType, target: DType) -> str:
    if source is dt.f16:
        value, source = e.convert("fpext", value, dt.f16, dt.f32), dt.f32
    tn, sn = e.type_text(target), e.type_text(source)
    kind = "fptosi" if target.is_signed else "fptoui"
    callee = e.module.declare(f"llvm.{kind}.sat.{e.overload(target)}.{e.overload(source)}", tn, sn)
    return e.value(f"call {tn} {callee}({sn} {value})")


def _int_to_float(e: FunctionEmitter, value: str, source: DType, target: DType) -> str:
    kind = "sitofp" if source.is_signed else "uitofp"
    if target is not dt.f16:
        return e.convert(kind, value, source, target)
    # Every integer below the overflow threshold of f16 is exact in f64, so this rounds once.
    return _float_to_float(e, e.convert(kind, value, source, dt.f64), dt.f64, dt.f16)


def emit_bitcast(e: FunctionEmitter, op: Op) -> None:
    source = op.args[0]
    same = e.type_text(source.type) == e.type_text(op.type)
    e.env[op] = e.env[source] if same else e.value(f"bitcast {e.typed(source)} to {e.type_text(op.type)}")
