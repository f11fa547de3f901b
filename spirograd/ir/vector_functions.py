"""Functions of a kernel on lanes: arithmetic only, such as expansions of elementary functions."""

from __future__ import annotations

from spirograd.base.dtypes import DType, Lanes, f32, f64, i32, i64, u1, u32, u64
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Function, Op, Region

_ON_LANES = frozenset((
    ops.const, ops.add, ops.sub, ops.mul, ops.div, ops.neg, ops.abs_, ops.min_, ops.max_, ops.fma, ops.and_, ops.or_, ops.xor, ops.not_,
    ops.shl, ops.shr, ops.eq, ops.ne, ops.lt, ops.le, ops.gt, ops.ge, ops.select, ops.cast, ops.bitcast, ops.sqrt, ops.rsqrt,
    ops.floor, ops.ceil, ops.trunc, ops.round_, ops.isnan, ops.isinf,
))  # fmt: skip
_LANE_TYPES = frozenset((f32, f64, i32, u32, i64, u64))


def has_vector_forms(function: Function) -> bool:
    """Return whether a function has the form of expansions of elementary functions: arithmetic on 32 or 64 bits with one result."""
    ends = [*[p.type for p in function.body.params], *[v.type for v in function.body.results]]
    if not function.body.params or isinstance(function.result, tuple) or not _LANE_TYPES.issuperset(ends):
        return False
    return all(op.code in _ON_LANES and (op.type in _LANE_TYPES or op.type is u1) for op in function.body.ops[:-1])


def on_lanes(function: Function, lanes: int) -> Region:
    """Return the body of a function that has vector forms, for ``lanes`` lanes at once."""
    b = Builder()
    env: dict[Op, Op] = {}

    def vector(op: Op) -> Lanes:
        assert isinstance(op.type, DType)
        return Lanes(lanes, op.type)

    env.update(zip(function.body.params, b.begin(*[vector(p) for p in function.body.params])))
    for op in function.body.ops[:-1]:
        b.at(op)
        if op.code is ops.const:
            env[op] = b.emit(ops.splat, b.emit(ops.const, attr=op.attr, type=op.type), type=vector(op))
        else:
            env[op] = b.emit(op.code, *[env[a] for a in op.args], attr=op.attr, type=vector(op))
    return b.end([env[value] for value in function.body.results])
