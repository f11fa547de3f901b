"""Emitters of constants, arithmetic that takes several instructions, choice and conversions."""

from __future__ import annotations

from spirograd.base import dtypes as dt
from spirograd.base.dtypes import DType, Type, scalar_of
from spirograd.ir.nodes import Op
from spirograd.llvmgen import half
from spirograd.llvmgen.function import FunctionEmitter, overload
from spirograd.llvmgen.local_arrays import copied_array
from spirograd.llvmgen.module import is_array, literal, type_name


def emit_const(e: FunctionEmitter, op: Op) -> None:
    assert isinstance(op.type, DType)
    e.env[op] = literal(op.attr, op.type)


def emit_neg(e: FunctionEmitter, op: Op) -> None:
    t, operand = type_name(op.type), e.operand(op.args[0])
    e.set(op, f"fneg {t} {operand}" if scalar_of(op.type).is_float else f"sub {t} {literal(0, op.type)}, {operand}")


def emit_abs(e: FunctionEmitter, op: Op) -> None:
    operand, t = e.operand(op.args[0]), scalar_of(op.type)
    if t.is_float:
        e.env[op] = e.call_intrinsic("fabs", op.type, [operand])
    elif t.is_signed:
        e.env[op] = e.call_intrinsic("abs", op.type, [operand], tail=", i1 false")
    else:
        e.env[op] = operand


def emit_fma(e: FunctionEmitter, op: Op) -> None:
    a, b, c = [e.operand(x) for x in op.args]
    if e.has_fma and op.type is not dt.f16:
        e.env[op] = e.call_intrinsic("fma", op.type, [a, b, c])
        return
    t = type_name(op.type)
    product = e.value(f"fmul {t} {a}, {b}")
    e.set(op, f"fadd {t} {product}, {c}")


def emit_not(e: FunctionEmitter, op: Op) -> None:
    e.set(op, f"xor {e.typed(op.args[0])}, {literal(-1, op.type)}")


def emit_rsqrt(e: FunctionEmitter, op: Op) -> None:
    root = e.call_intrinsic("sqrt", op.type, [e.operand(op.args[0])])
    e.set(op, f"fdiv {type_name(op.type)} {literal(1.0, op.type)}, {root}")


def emit_isnan(e: FunctionEmitter, op: Op) -> None:
    a = op.args[0]
    e.set(op, f"fcmp uno {e.typed(a)}, {e.operand(a)}")


def emit_isinf(e: FunctionEmitter, op: Op) -> None:
    t = op.args[0].type
    size = e.call_intrinsic("fabs", t, [e.operand(op.args[0])])
    e.set(op, f"fcmp oeq {type_name(t)} {size}, {literal(float('inf'), t)}")


def emit_select(e: FunctionEmitter, op: Op) -> None:
    condition, a, b = op.args
    if is_array(op.type):
        e.env[op] = copied_array(e, e.value(f"select i1 {e.env[condition]}, ptr {e.env[a]}, ptr {e.env[b]}"), op.type)
        return
    e.set(op, f"select {e.typed(condition)}, {e.typed(a)}, {e.typed(b)}")


# --- conversions ---


def emit_cast(e: FunctionEmitter, op: Op) -> None:
    source, target, value = op.args[0].type, op.type, e.operand(op.args[0])
    from_float, to_float = scalar_of(source).is_float, scalar_of(target).is_float
    if source == target:
        e.env[op] = value
    elif scalar_of(target) is dt.u1:
        zero = literal(0, source)
        e.set(op, f"{'fcmp une' if from_float else 'icmp ne'} {type_name(source)} {value}, {zero}")
    elif from_float:
        e.env[op] = _float_to_float(e, value, source, target) if to_float else _float_to_int(e, value, source, target)
    elif to_float:
        e.env[op] = _int_to_float(e, value, source, target)
    else:
        e.env[op] = e.resize(value, source, target)


def _float_to_float(e: FunctionEmitter, value: str, source: Type, target: Type) -> str:
    if source is dt.f64 and target is dt.f16 and half.needs_double_to_half(e.module.caps):
        e.module.uses_double_to_half = True
        return e.value(f"call half @{half.DOUBLE_TO_HALF}(double {value})")
    if source is dt.f16 and target is dt.f64:  # in two exact steps: only the first is an instruction everywhere
        value, source = e.convert("fpext", value, dt.f16, dt.f32), dt.f32
    return e.convert("fpext" if scalar_of(target).bits > scalar_of(source).bits else "fptrunc", value, source, target)


def _float_to_int(e: FunctionEmitter, value: str, source: Type, target: Type) -> str:
    if source is dt.f16:
        value, source = e.convert("fpext", value, dt.f16, dt.f32), dt.f32
    tn, sn = type_name(target), type_name(source)
    kind = "fptosi" if scalar_of(target).is_signed else "fptoui"
    callee = e.module.declare(f"llvm.{kind}.sat.{overload(target)}.{overload(source)}", tn, sn)
    return e.value(f"call {tn} {callee}({sn} {value})")


def _int_to_float(e: FunctionEmitter, value: str, source: Type, target: Type) -> str:
    kind = "sitofp" if scalar_of(source).is_signed else "uitofp"
    if target is not dt.f16:
        return e.convert(kind, value, source, target)
    # Every integer below the overflow threshold of f16 is exact in f64, so this rounds once.
    return _float_to_float(e, e.convert(kind, value, source, dt.f64), dt.f64, dt.f16)


def emit_bitcast(e: FunctionEmitter, op: Op) -> None:
    source = op.args[0]
    same = type_name(source.type) == type_name(op.type)
    e.env[op] = e.env[source] if same else e.value(f"bitcast {e.typed(source)} to {type_name(op.type)}")
