"""Inlining of parallel loops of one iteration, by which programs mark code as serial."""

from __future__ import annotations

from spirograd.analysis.existence import constant_trips
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext


def single_trips(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Replace each parallel loop whose constant bounds give exactly one iteration by its body."""
    return _SingleTrips().kernel(kernel)


class _SingleTrips(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.handlers = {ops.for_: self._for}

    def _for(self, op: Op) -> Op | None:
        if not op.attr.parallel or constant_trips(*op.args[:2]) != 1:
            return self.copy(op)
        self.inline(op.regions[0], (self.value(op.args[0]),))
        return None
