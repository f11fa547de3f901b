"""Signed remainders by division, where the device's own is undefined for negative operands."""

from __future__ import annotations

from spirograd.base.dtypes import DType
from spirograd.base.targets import Generator
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext


def lower_remainder(kernel: Kernel, ctx: PassContext) -> Kernel:
    """For SPIR-V: a rem b as a - (a / b) * b, for signed integers.

    Vulkan leaves OpSRem undefined if an operand is negative, unless the device has VK_KHR_maintenance8 (appendix "Vulkan Environment for
    SPIR-V"); NVIDIA's driver 580 then gives the unsigned remainder. Division is defined. Where code has quotient and remainder of one pair
    of operands, as the decoding of a flat index has, this also shares the division.
    """
    return _Remainder().kernel(kernel) if ctx.caps.target.generator is Generator.SPIRV else kernel


class _Remainder(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.handlers[ops.irem] = self._irem

    def _irem(self, op: Op) -> Op:
        if not isinstance(op.type, DType) or not op.type.is_signed:
            return self.copy(op)
        a, b = self.args(op)
        whole = self.b.emit(ops.mul, self.b.emit(ops.idiv, a, b), b)
        return self.b.emit(ops.sub, a, whole)
