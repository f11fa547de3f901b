"""Evaluates straight-line IR on NumPy arrays: thousands of arguments at once, with or without fused multiply-add."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spirograd.base.artifact import Slot
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, i32
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Kernel, Op
from spirograd.ir.ops import OpCode
from spirograd.transforms.math.expand_math import expand_math
from spirograd.transforms.pass_context import PassContext

_UFUNCS: dict[OpCode, Callable[..., Any]] = {
    ops.add: np.add,
    ops.sub: np.subtract,
    ops.mul: np.multiply,
    ops.div: np.divide,
    ops.neg: np.negative,
    ops.abs_: np.abs,
    ops.max_: np.fmax,
    ops.sqrt: np.sqrt,
    ops.floor: np.floor,
    ops.sin: np.sin,
    ops.cos: np.cos,
    ops.tan: np.tan,
    ops.and_: np.bitwise_and,
    ops.or_: np.bitwise_or,
    ops.xor: np.bitwise_xor,
    ops.not_: np.invert,
    ops.shl: np.left_shift,
    ops.shr: np.right_shift,
    ops.eq: np.equal,
    ops.ne: np.not_equal,
    ops.lt: np.less,
    ops.gt: np.greater,
    ops.select: np.where,
}


def fused(a: Any, b: Any, c: Any) -> Any:
    """a * b + c rounded once (nearly: the sum passes through long double)."""
    if a.dtype == np.float32:
        return (a.astype(np.longdouble) * b + c).astype(np.float32)
    splitter = 134217729.0
    ah, bh = a * splitter, b * splitter
    ah, bh = ah - (ah - a), bh - (bh - b)
    al, bl = a - ah, b - bh
    product = a * b
    error = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    total = (product.astype(np.longdouble) + c + np.where(np.isfinite(error), error, 0)).astype(np.float64)
    return np.where(np.isfinite(total), total, product + c)


def make_kernel(code: OpCode, t: DType) -> Kernel:
    """out[0] = code(in[0] ...), as device IR in one serial stretch (no task: nothing here needs one)."""
    b = Builder()
    b.begin()
    zero = b.const(0, i32)
    arity = code.arity or 0
    args = [b.load(BufferRef(f"in{k}", Slot("array", k, offset=8 * k), t), zero) for k in range(arity)]
    b.store(BufferRef("out", Slot("array", arity, offset=8 * arity), t), zero, b.emit(code, *args))
    return Kernel("probe", (), b.end())


def expanded(code: OpCode, t: DType, target: str, **capabilities: bool) -> Kernel:
    return expand_math(make_kernel(code, t), PassContext(Capabilities(target, **capabilities), CompileOptions()))


def run(kernel: Kernel, *inputs: Any, fuse: bool = False) -> Any:
    """The value stored, for arrays of operands."""
    env: dict[Op, Any] = {}
    shape = inputs[0].shape
    with np.errstate(all="ignore"):
        for op in kernel.body.ops:
            if op.code is ops.store:
                return env[op.args[-1]]
            _evaluate(op, env, inputs, shape, fuse)
    raise AssertionError("nothing stored")


def _evaluate(op: Op, env: dict[Op, Any], inputs: tuple[Any, ...], shape: Any, fuse: bool) -> None:
    """Both arms of an `if` for all arguments; of each the result that counts."""
    if op.code is not ops.if_:
        env[op] = env[op.args[0]][op.attr] if op.code is ops.result else _value(op, [env[a] for a in op.args], inputs, shape, fuse)
        return
    for region in op.regions:
        for inner in region.ops[:-1]:
            _evaluate(inner, env, inputs, shape, fuse)
    then, orelse = ([env[v] for v in region.results] for region in op.regions)
    env[op] = [np.where(env[op.args[0]], a, b) for a, b in zip(then, orelse)]


def _value(op: Op, args: list[Any], inputs: tuple[Any, ...], shape: Any, fuse: bool) -> Any:
    t = op.type
    assert isinstance(t, DType)
    if op.code is ops.const:
        return np.full(shape, op.attr, t.np)
    if op.code is ops.load:
        return inputs[op.attr.slot.index]
    if op.code is ops.cast:
        return args[0].astype(t.np)
    if op.code is ops.bitcast:
        return args[0].view(t.np)
    if op.code is ops.fma:
        return fused(*args) if fuse else args[0] * args[1] + args[2]
    value = _UFUNCS[op.code](*args)
    assert value.dtype == t.np, (op, value.dtype)
    return value
