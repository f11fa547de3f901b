"""Reproducible float extrema: the gradient recomputes values, and must find exactly the extremum that the primal stored."""

from __future__ import annotations

from collections.abc import Collection

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.inline_calls import inline_calls

_ROUNDED = frozenset((ops.add, ops.sub, ops.mul, ops.div))
_KINDS = frozenset(("min", "max"))


def exact_extrema(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Mark the float arithmetic of each outermost operation that contains an atomic minimum or maximum of floats in outer memory as "exact"
    (never fused).

    Otherwise the kernel and its gradient, which are compiled separately, could fuse different operations, and no iteration of the gradient
    would recognise its value as the extremum.
    """
    if ops.atomic not in kernel.codes or not any(_is_extremum(op) for op in kernel.walk()):
        return kernel
    kernel = inline_calls(kernel, ctx)
    loops = [op for op in kernel.body.ops if op.regions and any(_is_extremum(inner) for r in op.regions for inner in r.walk())]
    # Code at the top may contribute to any of them.
    top = {op for op in kernel.body.ops if not op.regions}
    return exact(kernel, top | {x for loop in loops for r in loop.regions for x in r.walk()})


def exact(kernel: Kernel, marked: Collection[Op]) -> Kernel:
    """Mark the float arithmetic among the operations ``marked`` as never fused."""
    return _Exact(marked).kernel(kernel)


def is_rounded(op: Op) -> bool:
    """Return whether ``op`` is float arithmetic that a compiler may fuse with other arithmetic."""
    return op.code in _ROUNDED and isinstance(op.type, DType) and op.type.is_float


def _is_extremum(op: Op) -> bool:
    ref = ref_of(op)
    return op.code is ops.atomic and op.attr[0] in _KINDS and isinstance(ref, (FieldRef, ArrayRef)) and ref.dtype.is_float


class _Exact(Rewriter):
    def __init__(self, marked: Collection[Op]) -> None:
        super().__init__()
        self.marked = marked
        self.handlers = dict.fromkeys(_ROUNDED, self._arithmetic)

    def _arithmetic(self, op: Op) -> Op:
        if op.attr is not None or op not in self.marked or not is_rounded(op):
            return self.copy(op)
        return self.b.append(Op(op.code, op.type, self.args(op), "exact", (), op.loc))
