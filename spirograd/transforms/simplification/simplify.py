"""The clean-up passes, in the order in which they help each other."""

from __future__ import annotations

from spirograd.ir.nodes import Kernel
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.cse import cse
from spirograd.transforms.simplification.dce import dce
from spirograd.transforms.simplification.fold import fold
from spirograd.transforms.simplification.licm import licm

# Of kernel IR: what the first round leaves is mostly constants that only come to light behind what it removed. Device IR was simple before
# it was lowered.
_ROUNDS = 2


def simplify(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Constant folding, common subexpression elimination, dead code elimination: `_ROUNDS` times, or until nothing changes; then move
    invariants out of loops. Without ``options.optimize`` only what is dead goes."""
    if not ctx.options.optimize:
        return dce(kernel, ctx)
    for k in range(_ROUNDS):
        before = kernel
        kernel = fold(kernel, ctx)
        if k and kernel is before:  # of the same kernel, the other passes have nothing left to do
            break
        kernel = dce(cse(kernel, ctx), ctx)
        if kernel is before:
            break
    return _hoisted(kernel, ctx)


def simplify_lowered(kernel: Kernel, ctx: PassContext) -> Kernel:
    """One round of the same, for IR made by lowering from IR that was simple."""
    if not ctx.options.optimize:
        return dce(kernel, ctx)
    return _hoisted(dce(cse(fold(kernel, ctx), ctx), ctx), ctx)


def _hoisted(kernel: Kernel, ctx: PassContext) -> Kernel:
    moved = licm(kernel, ctx)
    return moved if moved is kernel else dce(cse(moved, ctx), ctx)
