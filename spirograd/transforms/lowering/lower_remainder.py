"""Lowering of quotients and remainders where the device's operations are undefined or wrong."""

from __future__ import annotations

from spirograd.base.dtypes import DType, i64, u64
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext


def lower_remainder(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Lower a rem b to a - (a / b) * b, for signed integers on SPIR-V, and 64-bit division to the division of half the dividend.

    Vulkan leaves OpSRem undefined if an operand is negative, unless the device has VK_KHR_maintenance8 (appendix "Vulkan Environment for
    SPIR-V"); NVIDIA's driver 580 then gives the unsigned remainder. Division is defined. If code computes both the quotient and the
    remainder of two operands, for example to decode a flat index, they also share the division.

    For 64 bits this driver computes wrong remainders of sums of products: the third value of `x = (x * 7 + 1) % 1009` equals the second. It
    also recognises remainders in a - (a / b) * b, in every form of the quotient. With half of ``a`` the result is right.
    """
    return _Remainder().kernel(kernel) if ctx.caps.target.shader_arithmetic else kernel


class _Remainder(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.handlers = {ops.idiv: self._idiv, ops.irem: self._irem}

    def _idiv(self, op: Op) -> Op:
        return self._long(op)[0] if op.type in (i64, u64) else self.copy(op)

    def _irem(self, op: Op) -> Op:
        if op.type in (i64, u64):
            return self._long(op)[1]
        if not isinstance(op.type, DType) or not op.type.is_signed:
            return self.copy(op)
        a, b = self.args(op)
        multiple = self.b.emit(ops.mul, self.b.emit(ops.idiv, a, b), b)
        return self.b.emit(ops.sub, a, multiple)

    def _long(self, op: Op) -> tuple[Op, Op]:
        """Return the quotient of 64 bits, rounded towards zero, and the remainder."""
        b = self.b
        if op.type is u64:
            return self._natural(*self.args(op))
        zero = b.const(0, i64)
        negative = [b.emit(ops.lt, value, zero) for value in self.args(op)]
        quotient, remainder = self._natural(*[self._negated(value, less, u64) for value, less in zip(self.args(op), negative)])
        return self._negated(quotient, b.emit(ops.xor, *negative), i64), self._negated(remainder, negative[0], i64)

    def _natural(self, dividend: Op, divisor: Op) -> tuple[Op, Op]:
        """Return the quotient and the remainder of unsigned numbers."""
        b = self.b
        one, zero = b.const(1, u64), b.const(0, u64)
        half = b.emit(ops.idiv, b.emit(ops.shr, dividend, one), divisor)
        quotient = b.emit(ops.shl, half, one)  # or one more
        remainder = b.emit(ops.sub, dividend, b.emit(ops.mul, quotient, divisor))
        more = b.emit(ops.ge, remainder, divisor)
        quotient = b.emit(ops.add, quotient, b.emit(ops.select, more, one, zero, type=u64))
        return quotient, b.emit(ops.sub, remainder, b.emit(ops.select, more, divisor, zero, type=u64))

    def _negated(self, value: Op, negative: Op, t: DType) -> Op:
        """Return ``value``, negated if ``negative``, as the integer type ``t``."""
        b = self.b
        assert isinstance(value.type, DType)
        chosen = b.emit(ops.select, negative, b.emit(ops.neg, value), value, type=value.type)
        return b.emit(ops.bitcast, chosen, type=t)
