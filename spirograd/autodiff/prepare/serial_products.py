"""Serial products: atomic products and uncontended exchanges become a load, an operation and a store, which have derivatives.

The derivative of a product by one of its factors is the product of the factors before it and of those after it. If the iterations of a
parallel loop share a product, the loop becomes serial: then the loads give the products of the factors before, and the reverse accumulates
those of the factors after.
"""

from __future__ import annotations

from spirograd.analysis.dependence import Dependence, access_of, iterations_of
from spirograd.autodiff.activity import ShadowOf
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, SharedRef, TempRef
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

_KINDS = frozenset(("mul", "exchange"))


def serial_shared_products(kernel: Kernel, shadow: ShadowOf) -> tuple[Kernel, tuple[str, ...]]:
    """Serialise the parallel loops of ``kernel`` whose iterations share products that have derivatives. Return also a warning for each
    product.

    ``shadow``: as in `differentiate`. Temporaries, which hold variables, have derivatives."""
    pass_ = _SerialLoops(shadow)
    return pass_.kernel(kernel), tuple(pass_.warnings)


class _SerialLoops(Rewriter):
    def __init__(self, shadow: ShadowOf) -> None:
        super().__init__()
        self.warnings: dict[str, None] = {}
        self.handlers = {ops.for_: lambda op: self._for(op, shadow)}

    def _for(self, op: Op, shadow: ShadowOf) -> Op:
        shared = [inner for inner in op.regions[0].walk() if op.attr.parallel and _is_shared_product(inner, op, shadow)]
        if not shared:
            return self.copy(op)
        for inner in shared:
            ref = inner.attr[1]
            if op.attr.grouped:
                problem = f"groups of threads share this product in `{ref.name}`, which has no derivative"
                raise SpirogradUnsupportedError(problem, inner.loc, "multiply in local variables, or in a loop without groups")
            name = ref.name.partition(".")[0] if isinstance(ref, TempRef) else ref.name
            text = f"{inner.loc}: iterations of a parallel loop share this product in `{name}`; derivatives run them one after the other"
            self.warnings[text] = None
        loop = Op(op.code, op.type, self.args(op), replace(op.attr, parallel=False), (self.region(op.regions[0]),), op.loc, op.primal)
        return self.b.append(loop)


def _is_shared_product(op: Op, loop: Op, shadow: ShadowOf) -> bool:
    if op.code is not ops.atomic or op.attr[0] != "mul":
        return False
    ref = op.attr[1]
    has_derivative = isinstance(ref, (TempRef, SharedRef)) or shadow(ref) is not None
    return ref.dtype.is_float and has_derivative and not _is_own(op, loop)


def _is_own(op: Op, parallel: Op) -> bool:
    """Return whether the element that ``op`` changes belongs to one iteration of a loop."""
    access = access_of(op)
    return isinstance(access.ref, (FieldRef, ArrayRef)) and not Dependence().carried(access, access, iterations_of(parallel))


def serial_products(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Replace atomic products and exchanges of floats: outside of parallel loops all of them, inside those at elements that belong to one
    iteration."""
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
        return self.b.update(kind, ref, *self.args(op))

    def _own(self, op: Op) -> bool:
        return self.parallel is None or _is_own(op, self.parallel)
