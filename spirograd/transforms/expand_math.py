"""Replace elementary functions that the back end lacks by arithmetic.

CPU: f32 functions become branch-free polynomials, which LLVM vectorises (f16 by way of f32); f64 stays, for libm and vector libraries.
SPIR-V: f64 functions are expanded, because GLSL.std.450 has none; f16 and f32 stay.
"""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.dtypes import DType, f16, f32, f64
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.ops import OpCode
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms import math_f32, math_f64
from spirograd.transforms.context import PassContext
from spirograd.transforms.math_value import Value

Expansion = Callable[..., Value]

_F32: dict[OpCode, Expansion] = {
    ops.exp: math_f32.exp,
    ops.log: math_f32.log,
    ops.sin: math_f32.sin,
    ops.cos: math_f32.cos,
    ops.tan: math_f32.tan,
    ops.asin: math_f32.asin,
    ops.acos: math_f32.acos,
    ops.atan2: math_f32.atan2,
    ops.tanh: math_f32.tanh,
    ops.pow_: math_f32.pow_,
}
_F64: dict[OpCode, Expansion] = {
    ops.exp: math_f64.exp,
    ops.log: math_f64.log,
    ops.sin: math_f64.sin,
    ops.cos: math_f64.cos,
    ops.tan: math_f64.tan,
    ops.asin: math_f64.asin,
    ops.acos: math_f64.acos,
    ops.atan2: math_f64.atan2,
    ops.tanh: math_f64.tanh,
    ops.pow_: math_f64.pow_,
}
_PROFILES: dict[str, dict[DType, dict[OpCode, Expansion]]] = {
    "cpu": {f16: _F32, f32: _F32},
    "vulkan": {f64: _F64},
    "wgpu": {f64: _F64},
}


class _Expander(Rewriter):
    def __init__(self, tables: dict[DType, dict[OpCode, Expansion]]) -> None:
        super().__init__()
        self.tables = tables
        self.handlers = dict.fromkeys(_F32, self.expand)

    def expand(self, op: Op) -> Op | None:
        t = op.type
        table = self.tables.get(t) if isinstance(t, DType) else None
        if table is None:
            return self.copy(op)
        values = [Value(self.b, a) for a in self.args(op)]
        if t is not f16:
            return table[op.code](*values).op
        return table[op.code](*[v.cast(f32) for v in values]).cast(f16).op


def expand_math(kernel: Kernel, ctx: PassContext) -> Kernel:
    """``kernel`` with the elementary functions that ``ctx.caps.profile`` lacks expanded to arithmetic. Kernel or device IR."""
    tables = _PROFILES.get(ctx.caps.profile)
    return kernel if tables is None else _Expander(tables).kernel(kernel)
