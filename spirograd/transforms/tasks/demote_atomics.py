"""Demotion of uncontended atomics to a load, an operation and a store."""

from __future__ import annotations

from spirograd.analysis.dependence import private_updates
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext


def demote_atomics(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Demote all atomics in serial tasks, and those on elements that belong to one iteration in parallel tasks."""
    return _Demote().kernel(kernel)


class _Demote(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.private: set[Op] = set()
        self.handlers = {ops.task: self._task, ops.atomic: self._atomic}

    def _task(self, op: Op) -> Op:
        body = op.regions[-2] if op.attr.kind == "range_for" else op.regions[0]
        if ops.atomic not in body.codes:
            return self.b.append(op)
        serial = op.attr.kind == "serial"
        self.private = {x for x in body.walk() if x.code is ops.atomic} if serial else private_updates(body, op.regions[0].results[:2])
        return self.copy(op) if self.private else self.b.append(op)

    def _atomic(self, op: Op) -> Op:
        return self.b.update(*op.attr, *self.args(op)) if op in self.private else self.copy(op)
