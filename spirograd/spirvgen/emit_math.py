"""Elementary functions of f16 and f32 that GLSL.std.450 leaves undefined for some operands: these operands are handled apart."""

from __future__ import annotations

from spirograd.base.dtypes import DType
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
