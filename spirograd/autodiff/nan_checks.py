"""Checks that name the operation whose derivative is NaN."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base.artifact import FaultSite
from spirograd.base.dtypes import VOID
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op


def check_nan(b: Builder, op: Op, part: Op, adjoint: Op, indices: Sequence[Op]) -> None:
    """Report a NaN that the derivative of ``op`` produced. ``part``: what it adds to the adjoint of an operand; ``adjoint``: the adjoint of
    the result; ``indices``: of the loops around it, the outermost first."""
    dtypes = (adjoint.type, *[i.type for i in indices])
    at = ", ".join([f"{{{k + 1}}}" for k in range(len(indices))])
    message = f"the derivative of `{op.code.name}` is NaN here" + (f", at index ({at})" if at else "") + "; its adjoint is {0}"
    good = b.emit(ops.or_, b.emit(ops.not_, b.emit(ops.isnan, part)), b.emit(ops.isnan, adjoint))
    b.emit(ops.check, good, adjoint, *indices, attr=FaultSite("nan", message, dtypes, op.loc), type=VOID)  # type: ignore[arg-type]
