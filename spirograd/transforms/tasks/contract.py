"""Contraction before fusion: decides which products round together with the sum that uses them, instead of the code generator.

LLVM and drivers fuse a product that has no other use. In a fused loop more operations use one value, so they would choose otherwise.
Deciding before loops are fused makes results independent of fusion.

Drivers of graphics cards also expand quotients, roots and elementary functions to products that they contract with sums that follow, and
compute 1 / sqrt(x) by one instruction (seen with NVIDIA's). For them all arithmetic is rounded as written, and results of such functions
are opaque.
"""

from __future__ import annotations

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.fused_products import fused_products
from spirograd.ir.nodes import Op
from spirograd.ir.rewrite import Rewriter

_FUNCTIONS = (
    *(ops.div, ops.sqrt, ops.rsqrt, ops.exp, ops.log, ops.sin, ops.cos, ops.tan, ops.asin, ops.acos, ops.atan2, ops.tanh, ops.pow_),
    *(ops.call, ops.result),
)


def decides_rounding(caps: Capabilities) -> bool:
    """Whether the device is a graphics card with a driver that rounds together what it is not told to keep apart."""
    return caps.target.simplifies_floats and not caps.cpu_driver


class Contraction(Rewriter):
    """Rewrites loops. With fast math each sum of a product that is used once becomes ``fma``; every other product of floats is rounded as
    written. Where `decides_rounding`, so are sums, quotients and what became ``fma``, and the results of `_FUNCTIONS` are opaque."""

    def __init__(self, caps: Capabilities, fast_math: bool) -> None:
        super().__init__()
        self.found: dict[Op, Op] = {}
        self.driver = decides_rounding(caps)
        if fast_math:
            self.handlers = {ops.mul: self._as_written, ops.add: self._sum, ops.sub: self._sum}
        if self.driver:
            self.handlers |= dict.fromkeys(_FUNCTIONS, self._function)

    def loop(self, op: Op) -> Op:
        """The parallel loop ``op``, rewritten."""
        (body,) = op.regions
        self.found = fused_products(body)
        return Op(op.code, op.type, op.args, op.attr, (self.region(body),), op.loc, op.primal)

    def _as_written(self, op: Op) -> Op:
        if not isinstance(op.type, DType) or not op.type.is_float or op.attr is not None:
            return self.copy(op)
        return self.b.emit(op.code, *self.args(op), attr="exact")

    def _sum(self, op: Op) -> Op:
        product = self.found.get(op)
        if product is None or op.attr is not None:
            return self._as_written(op) if self.driver else self.copy(op)
        a, b = self.args(product)
        (other,) = [self.value(x) for x in op.args if x is not product]
        if op.code is ops.sub and op.args[1] is product:
            a = self.b.emit(ops.neg, a)
        elif op.code is ops.sub:
            other = self.b.emit(ops.neg, other)
        return self.b.emit(ops.fma, a, b, other, attr="exact" if self.driver else None)

    def _function(self, op: Op) -> Op:
        new = self._as_written(op) if op.code is ops.div else self.copy(op)
        known = op.code is ops.result and op.args[0].code is not ops.call
        return new if known or not isinstance(op.type, DType) or not op.type.is_float else self.b.emit(ops.opaque, new)
