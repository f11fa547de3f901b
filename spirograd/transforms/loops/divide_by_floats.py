"""Division of 32-bit integers in f64, on the CPU.

The quotient of two 32-bit integers, rounded to f64 and then towards zero, is exact: if it is not an integer, its distance from the next
integer is larger than the rounding error of f64. CPUs divide f64 in vectors, but integers one by one, and they divide scalars of f64 in two
thirds of the time (Sapphire Rapids: one in 4 cycles instead of 6). Conversions increase the latency (30 cycles instead of 12), so
recurrences, such as Euclid's algorithm, divide integers.
"""

from __future__ import annotations

from spirograd.analysis.recurrences import overlapping
from spirograd.base.dtypes import i32
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

_DIVISIONS = frozenset((ops.idiv, ops.irem))


def divide_by_floats(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Mark the divisions of i32 by variables in loops that are not part of a recurrence. The code generator divides f64 there."""
    x86 = "+sse2" in ctx.caps.cpu_features
    if not (x86 and ctx.options.optimize) or kernel.codes.isdisjoint(_DIVISIONS):
        return kernel
    divisions = {op for op in overlapping(kernel.body, _DIVISIONS) if op.type is i32 and op.args[1].code is not ops.const}
    return _DivideByFloats(divisions).kernel(kernel) if divisions else kernel


class _DivideByFloats(Rewriter):
    def __init__(self, divisions: set[Op]) -> None:
        super().__init__()
        self.divisions = divisions
        self.handlers = dict.fromkeys(_DIVISIONS, self._divide)

    def _divide(self, op: Op) -> Op:
        return self.b.emit(op.code, *self.args(op), attr="f64") if op in self.divisions else self.copy(op)
