"""Derivatives of operations: one table, for both directions (written by LEAD as a stop-gap; RULES replaces it)."""

from __future__ import annotations

from collections.abc import Callable

from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op
from spirograd.ir.ops import OpCode


def _mul(b: Builder, x: Op, y: Op) -> Op:
    return b.emit(ops.mul, x, y)


_R: dict[OpCode, Callable[..., tuple[Op | None, ...]]] = {
    ops.add: lambda b, x, r, a: (a, a),
    ops.sub: lambda b, x, r, a: (a, b.emit(ops.neg, a)),
    ops.mul: lambda b, x, r, a: (_mul(b, a, x[1]), _mul(b, a, x[0])),
    ops.div: lambda b, x, r, a: (b.emit(ops.div, a, x[1]), b.emit(ops.neg, _mul(b, a, b.emit(ops.div, r, x[1])))),
    ops.neg: lambda b, x, r, a: (b.emit(ops.neg, a),),
    ops.sin: lambda b, x, r, a: (_mul(b, a, b.emit(ops.cos, x[0])),),
    ops.exp: lambda b, x, r, a: (_mul(b, a, r),),
    ops.sqrt: lambda b, x, r, a: (b.emit(ops.div, _mul(b, a, b.const(0.5, a.type)), r),),  # type: ignore[arg-type]
    ops.cast: lambda b, x, r, a: (b.cast(a, x[0].type) if x[0].type.is_float else None,),
}


def differentiable(code: OpCode) -> bool:
    return code in _R


def pullback(b: Builder, op: Op, args: tuple[Op, ...], result: Op, adjoint: Op) -> tuple[Op | None, ...]:
    return _R[op.code](b, args, result, adjoint)
