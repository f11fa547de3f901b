"""Removal of `stop_grad`, `recall` and `with_partial`, which only affect differentiation."""

from __future__ import annotations

from spirograd.ir import ops
from spirograd.ir.nodes import Kernel
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext


def drop_stop_grad(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Replace each of these operations by its first operand."""
    rewriter = Rewriter()
    for code in (ops.stop_grad, ops.recall, ops.with_partial):
        rewriter.handlers[code] = lambda op: rewriter.value(op.args[0])
    return rewriter.kernel(kernel)
