"""`stop_grad`, `recall` and `with_partial` mean something to differentiation only, which comes before compilation."""

from __future__ import annotations

from spirograd.ir import ops
from spirograd.ir.nodes import Kernel
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext


def drop_stop_grad(kernel: Kernel, ctx: PassContext) -> Kernel:
    """``kernel`` with the first operand in the place of each of these operations."""
    rewriter = Rewriter()
    for code in (ops.stop_grad, ops.recall, ops.with_partial):
        rewriter.handlers[code] = lambda op: rewriter.value(op.args[0])
    return rewriter.kernel(kernel)
