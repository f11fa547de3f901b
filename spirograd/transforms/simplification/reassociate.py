"""Marks on sums and products that a serial loop accumulates, which may be reassociated so that the loop can be vectorised."""

from __future__ import annotations

from collections import Counter

from spirograd.analysis.existence import constant_trips
from spirograd.analysis.running_sums import FAMILIES, is_link
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

# The longest loops that are not marked: LLVM unrolls them, and would factor sums.
_SHORT = 8


def reassociate(kernel: Kernel, ctx: PassContext) -> Kernel:
    """With fast math, mark the operations by which a `for` accumulates a sum or product of floats as "reassoc".

    This applies only if nothing else uses the partial sums, so that compensated summation and running totals stay as written.
    """
    if not ctx.options.fast_math or ops.for_ not in kernel.codes:
        return kernel
    if not any(op.code is ops.for_ and len(op.args) > 2 for op in kernel.walk()):
        return kernel
    return _Reassociate(kernel).kernel(kernel)


class _Reassociate(Rewriter):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.uses = Counter(a for op in kernel.walk() for a in op.args)
        self.chained: set[Op] = set()
        self.handlers[ops.for_] = self._for
        for code in frozenset.union(*FAMILIES):
            self.handlers[code] = self._link

    def _for(self, op: Op) -> Op:
        region = op.regions[0]
        trips = constant_trips(*op.args[:2])
        if trips is not None and trips <= _SHORT:
            return self.copy(op)
        for carried, following in zip(region.params[1:], region.results):
            for family in FAMILIES:
                self.chained.update(self._chain(carried, following, family, region))
        return self.copy(op)

    def _chain(self, start: Op, end: Op, family: frozenset[ops.OpCode], region: Region) -> list[Op]:
        """Return the operations from ``start`` to ``end`` if each is of ``family``, has one use, and is directly in the body; else none."""
        own = set(region.ops)
        waiting: list[tuple[Op, list[Op]]] = [(end, [])]
        while waiting:
            op, chain = waiting.pop()
            if op is start:
                return chain if self.uses[start] == 1 else []
            if is_link(op, family) and op in own and self.uses[op] == 1:
                operands = op.args[:1] if op.code is ops.sub else op.args
                waiting += [(a, [*chain, op]) for a in operands]
        return []

    def _link(self, op: Op) -> Op:
        if op not in self.chained:
            return self.copy(op)
        return self.b.append(Op(op.code, op.type, self.args(op), "reassoc", (), op.loc))
