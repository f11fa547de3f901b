"""The clean-up passes, in an order in which each finds work that earlier ones uncover."""

from __future__ import annotations

from spirograd.ir.nodes import Kernel
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.cse import cse
from spirograd.transforms.simplification.dce import dce
from spirograd.transforms.simplification.fold import fold
from spirograd.transforms.simplification.licm import licm
from spirograd.transforms.simplification.thread_branches import thread_branches

# The number of rounds on kernel IR. The second round mostly folds constants that the removal of operations has uncovered. Device IR needs
# one, because it was simplified before it was lowered.
_ROUNDS = 2


def simplify(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Run constant folding, common subexpression elimination and dead code elimination `_ROUNDS` times, or until nothing changes, then
    thread branches and hoist loop invariants. Without ``options.optimize``, only remove dead code."""
    if not ctx.options.optimize:
        return dce(kernel, ctx)
    for k in range(_ROUNDS):
        before = kernel
        kernel = fold(kernel, ctx)
        if k and kernel is before:  # the kernel did not change, so the other passes would change nothing
            break
        kernel = dce(cse(kernel, ctx), ctx)
        if kernel is before:
            break
    threaded = thread_branches(kernel, ctx)
    return _hoisted(kernel if threaded is kernel else dce(cse(threaded, ctx), ctx), ctx)


def simplify_lowered(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Run one round of the same passes, for IR lowered from simplified IR."""
    if not ctx.options.optimize:
        return dce(kernel, ctx)
    return _hoisted(dce(cse(fold(kernel, ctx), ctx), ctx), ctx)


def _hoisted(kernel: Kernel, ctx: PassContext) -> Kernel:
    moved = licm(kernel, ctx)
    return moved if moved is kernel else dce(cse(moved, ctx), ctx)
