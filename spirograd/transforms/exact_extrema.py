"""Minima and maxima of floats that derivatives find again: their values must come out the same when they are computed again."""

from __future__ import annotations

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, Region, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.context import PassContext

_ROUNDED = frozenset((ops.add, ops.sub, ops.mul, ops.div))
_KINDS = frozenset(("min", "max"))


def exact_extrema(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Mark arithmetic as "exact" (never fused) in each outermost operation with an atomic minimum or maximum of floats in outer memory.

    Else the kernel and its gradient, compiled apart, could fuse other operations, and no iteration of the gradient would find its value to
    be the extremum.
    """
    if not any(_is_extremum(op) for op in kernel.walk()):
        return kernel
    return _Exact(kernel.body).kernel(kernel)


def _is_extremum(op: Op) -> bool:
    ref = ref_of(op)
    return op.code is ops.atomic and op.attr[0] in _KINDS and isinstance(ref, (FieldRef, ArrayRef)) and ref.dtype.is_float


class _Exact(Rewriter):
    def __init__(self, body: Region) -> None:
        super().__init__()
        loops = [op for op in body.ops if op.regions and any(_is_extremum(inner) for r in op.regions for inner in r.walk())]
        # Code at the top may feed any of them.
        self.marked = {op for op in body.ops if not op.regions} | {x for loop in loops for r in loop.regions for x in r.walk()}
        self.handlers = dict.fromkeys(_ROUNDED, self._arithmetic)

    def _arithmetic(self, op: Op) -> Op:
        if op.attr is not None or op not in self.marked or not isinstance(op.type, DType) or not op.type.is_float:
            return self.copy(op)
        return self.b.append(Op(op.code, op.type, self.args(op), "exact", (), op.loc))
