"""Calls whose results the kernel leaves in memory become loads: a gradient runs after its kernel, and must not do again what they did."""

from __future__ import annotations

from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, called, rank
from spirograd.ir.rewrite import Rewriter


def found_results(kernel: Kernel) -> Kernel:
    """``kernel`` with each call that says where its result is found (`MemoryCall.found_in`) as a load from there."""
    if not any(op.code is ops.call_memory and op.attr.found_in is not None for op in kernel.walk()):
        return kernel
    rewriter = _FoundResults()
    functions = [f.with_body(rewriter.region(f.body)) for f in kernel.functions]
    body = rewriter.region(kernel.body)
    return kernel.with_body(body, called(functions, (body,)))


class _FoundResults(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.handlers = {ops.call_memory: self._call}

    def _call(self, op: Op) -> Op:
        ref = op.attr.found_in
        return self.copy(op) if ref is None else self.b.load(ref, *self.args(op)[: rank(ref)])
