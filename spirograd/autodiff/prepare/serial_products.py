"""Uncontended atomic products and exchanges become a load, an operation and a store, which have derivatives."""

from __future__ import annotations

from spirograd.autodiff.prepare.elements import fixes
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, rank, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.context import PassContext

_KINDS = frozenset(("mul", "exchange"))


def serial_products(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Outside of parallel loops all atomic products and exchanges of floats; inside, those at elements that belong to one iteration."""
    return _SerialProducts().kernel(kernel)


class _SerialProducts(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.parallel: Op | None = None
        self.handlers = {ops.atomic: self._atomic, ops.for_: self._for}

    def _for(self, op: Op) -> Op:
        outer = self.parallel
        if op.attr.parallel and outer is None:
            self.parallel = op
        new = self.copy(op)
        self.parallel = outer
        return new

    def _atomic(self, op: Op) -> Op:
        kind, ref = op.attr
        if kind not in _KINDS or not ref.dtype.is_float or not self._own(op):
            return self.copy(op)
        *indices, value = self.args(op)
        old = self.b.load(ref, *indices)
        self.b.store(ref, *indices, value if kind == "exchange" else self.b.emit(ops.COMBINE[kind], old, value))
        return old

    def _own(self, op: Op) -> bool:
        ref = ref_of(op)
        if self.parallel is None:
            return True
        if not isinstance(ref, (FieldRef, ArrayRef)):
            return False
        outer = op.args[: rank(ref) - len(ref.element_shape)]
        return fixes(outer, self.parallel)
