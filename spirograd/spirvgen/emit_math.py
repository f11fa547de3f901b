"""Elementary functions of f16 and f32 with separate code for operands for which GLSL.std.450 leaves them undefined."""

from __future__ import annotations

from spirograd.base.dtypes import DType
from spirograd.ir.nodes import Op
from spirograd.spirvgen.emitter import Emitter
from spirograd.spirvgen.instructions import refuse_f64


def emit_atan2(e: Emitter, op: Op) -> None:
    """Emit atan2. Atan2 is undefined at the origin; the result is a there, which has the right sign of zero."""
    refuse_f64(e, op)
    t, boolean = op.type, e.m.type_bool
    assert isinstance(t, DType)
    a, b = (e.ids[x] for x in op.args)
    zero = e.const(0.0, t)
    origin = e.f.value("LogicalAnd", boolean, e.f.value("FOrdEqual", boolean, a, zero), e.f.value("FOrdEqual", boolean, b, zero))
    e.ids[op] = e.f.value("Select", e.type(t), origin, a, e.f.glsl("Atan2", e.type(t), a, b))
