"""Contraction before fusion: decides which products round together with the sum that uses them, instead of the code generator.

LLVM and drivers fuse a product that has no other use. In a fused loop more operations use one value, so they would choose otherwise.
Deciding before loops are fused makes results independent of fusion.
"""

from __future__ import annotations

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.fused_products import fused_products
from spirograd.ir.nodes import Op
from spirograd.ir.rewrite import Rewriter


class Contraction(Rewriter):
    """Rewrites loops. Each sum of a product that is used once becomes ``fma``; every other product of floats is rounded as written."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Op, Op] = {}
        self.handlers = {ops.mul: self._product, ops.add: self._sum, ops.sub: self._sum}

    def loop(self, op: Op) -> Op:
        """The parallel loop ``op``, rewritten."""
        (body,) = op.regions
        self.found = fused_products(body)
        return Op(op.code, op.type, op.args, op.attr, (self.region(body),), op.loc, op.primal)

    def _product(self, op: Op) -> Op:
        if not isinstance(op.type, DType) or not op.type.is_float or op.attr is not None:
            return self.copy(op)
        return self.b.emit(ops.mul, *self.args(op), attr="exact")

    def _sum(self, op: Op) -> Op:
        product = self.found.get(op)
        if product is None or op.attr is not None:
            return self.copy(op)
        a, b = self.args(product)
        (other,) = [self.value(x) for x in op.args if x is not product]
        if op.code is ops.sub and op.args[1] is product:
            a = self.b.emit(ops.neg, a)
        elif op.code is ops.sub:
            other = self.b.emit(ops.neg, other)
        return self.b.emit(ops.fma, a, b, other)
