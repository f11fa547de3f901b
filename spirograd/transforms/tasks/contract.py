"""Contraction of products and sums to ``fma``, which is decided here and not by code generators and drivers.

Whether a product is contracted therefore does not depend on the back end, the level of optimisation, or the vectorisation of a loop. For
loops that may be fused it is decided before fusion, because in a fused loop more operations use a value. `fused_products` has the rule.

Drivers of graphics cards also expand quotients, roots and elementary functions to products that they contract with subsequent sums, and
compute 1 / sqrt(x) by one instruction (seen with NVIDIA's driver). In loops that may be fused, all arithmetic is rounded as written on such
devices, and results of these functions are opaque.
"""

from __future__ import annotations

from spirograd.analysis.fused_products import fused_products
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

_FUNCTIONS = (*ops.ELEMENTARY, ops.div, ops.sqrt, ops.rsqrt, ops.call, ops.result)


def decides_rounding(caps: Capabilities) -> bool:
    """Return whether the driver of the device contracts operations unless they are marked."""
    return caps.target.simplifies_floats and not caps.cpu_driver


def contract(kernel: Kernel, ctx: PassContext) -> Kernel:
    """With fast math, replace sums of products by ``fma`` where `fused_products` allows it."""
    return _Contraction(ctx.options).kernel(kernel) if ctx.options.fast_math and ops.mul in kernel.codes else kernel


class _Contraction(Rewriter):
    """A rewriter that replaces sums of products by ``fma`` with fast math. ``rounding``: the attribute of the ``fma``."""

    def __init__(self, options: CompileOptions, rounding: str | None = None) -> None:
        super().__init__()
        self.products: dict[Op, Op] = {}
        self.free = options.free_contraction
        self.rounding = rounding
        if options.fast_math:
            self.handlers = {ops.add: self._sum, ops.sub: self._sum}

    def kernel(self, kernel: Kernel) -> Kernel:
        for body in (kernel.body, *[function.body for function in kernel.functions]):
            self.products |= fused_products(body, self.free)
        if self.products:
            return super().kernel(kernel)
        self.release()
        return kernel

    def _sum(self, op: Op) -> Op:
        product = self.products.get(op)
        if product is None:
            return self.copy(op)
        a, b = self.args(product)
        (other,) = [self.value(x) for x in op.args if x is not product]
        if op.code is ops.sub and op.args[1] is product:
            a = self.b.emit(ops.neg, a)
        elif op.code is ops.sub:
            other = self.b.emit(ops.neg, other)
        return self.b.emit(ops.fma, a, b, other, attr=self.rounding)


class Contraction(_Contraction):
    """A rewriter of the loops of ``body``, the body of a kernel, before they are fused. Products that are not contracted are rounded as
    written. If `decides_rounding`, so are sums, quotients and ``fma``, and the results of `_FUNCTIONS` are opaque."""

    def __init__(self, body: Region, caps: Capabilities, options: CompileOptions) -> None:
        self.driver = decides_rounding(caps)
        super().__init__(options, "exact" if self.driver else None)
        self.products = fused_products(body, self.free) if options.fast_math else {}
        if options.fast_math:
            self.handlers |= {ops.mul: self._as_written}
        if self.driver:
            self.handlers |= dict.fromkeys(_FUNCTIONS, self._function)

    def loop(self, op: Op) -> Op:
        """Rewrite the parallel loop ``op``."""
        (body,) = op.regions
        return Op(op.code, op.type, op.args, op.attr, (self.region(body),), op.loc, op.primal)

    def _as_written(self, op: Op) -> Op:
        if not isinstance(op.type, DType) or not op.type.is_float or op.attr is not None:
            return self.copy(op)
        return self.b.emit(op.code, *self.args(op), attr="exact")

    def _sum(self, op: Op) -> Op:
        return super()._sum(op) if op in self.products or not self.driver else self._as_written(op)

    def _function(self, op: Op) -> Op:
        new = self._as_written(op) if op.code is ops.div else self.copy(op)
        known = op.code is ops.result and op.args[0].code is not ops.call
        return new if known or not isinstance(op.type, DType) or not op.type.is_float else self.b.emit(ops.opaque, new)
