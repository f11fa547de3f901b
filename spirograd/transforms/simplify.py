"""The clean-up passes, in the order in which they help each other."""

from __future__ import annotations

from spirograd.ir.nodes import Kernel
from spirograd.transforms.context import PassContext
from spirograd.transforms.cse import cse
from spirograd.transforms.dce import dce
from spirograd.transforms.fold import fold
from spirograd.transforms.licm import licm

# What the first round leaves is mostly new constants behind the ifs and loops that it removed.
_ROUNDS = 2


def simplify(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Fold constants, merge equal values, move invariants out of loops, drop what nobody needs: at most `_ROUNDS` times, or until nothing
    changes. Without ``options.optimize`` only what is dead goes."""
    if not ctx.options.optimize:
        return dce(kernel, ctx)
    for _ in range(_ROUNDS):
        before = kernel
        kernel = dce(cse(fold(kernel, ctx), ctx), ctx)
        if kernel is before:
            break
    return dce(cse(licm(kernel, ctx), ctx), ctx)
