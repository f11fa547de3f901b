"""Values with Python operators, so that formulas in IR read like formulas.

All methods append pure operations to a Builder. Additions, subtractions and multiplications of f64 get the attribute "exact" (no
contraction, no reassociation), because the algorithms for f64 compute rounding errors; those of f32 only where `exact` selects it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Union

from spirograd.base.dtypes import DType, f64, i32, i64, u1
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op
from spirograd.ir.ops import OpCode

Operand = Union["Value", int, float]


class Value:
    """An operation with the builder for further operations. Numbers on either side of an operator become constants of its type."""

    __slots__ = ("b", "op", "rounding")

    def __init__(self, b: Builder, op: Op, rounding: str | None = None) -> None:
        self.b = b
        self.op = op
        self.rounding = "exact" if op.type is f64 else rounding

    @property
    def type(self) -> DType:
        assert isinstance(self.op.type, DType)
        return self.op.type

    def const(self, value: float) -> Value:
        """Return a constant of this type."""
        return Value(self.b, self.b.const(value, self.type), self.rounding)

    def exact(self) -> Value:
        """Return the same value. Each sum or product with it as the left operand is rounded once, as written."""
        return Value(self.b, self.op, "exact")

    def _with(self, code: OpCode, *others: Operand, swap: bool = False) -> Value:
        args = [self.op] + [o.op if isinstance(o, Value) else self.const(o).op for o in others]
        if swap:
            args.reverse()
        attr = self.rounding if self.type.is_float and code in _ROUNDED else None
        return Value(self.b, self.b.emit(code, *args, attr=attr), self.rounding)

    def __add__(self, other: Operand) -> Value:
        return self._with(ops.add, other)

    def __radd__(self, other: float) -> Value:
        return self._with(ops.add, other, swap=True)

    def __sub__(self, other: Operand) -> Value:
        return self._with(ops.sub, other)

    def __rsub__(self, other: float) -> Value:
        return self._with(ops.sub, other, swap=True)

    def __mul__(self, other: Operand) -> Value:
        return self._with(ops.mul, other)

    def __rmul__(self, other: float) -> Value:
        return self._with(ops.mul, other, swap=True)

    def __truediv__(self, other: Operand) -> Value:
        return self._with(ops.div, other)

    def __rtruediv__(self, other: float) -> Value:
        return self._with(ops.div, other, swap=True)

    def __neg__(self) -> Value:
        return self._with(ops.neg)

    def __and__(self, other: Operand) -> Value:
        return self._with(ops.and_, other)

    def __or__(self, other: Operand) -> Value:
        return self._with(ops.or_, other)

    def __xor__(self, other: Operand) -> Value:
        return self._with(ops.xor, other)

    def __invert__(self) -> Value:
        return self._with(ops.not_)

    def __lshift__(self, count: int) -> Value:
        return self._with(ops.shl, count)

    def __rshift__(self, count: int) -> Value:
        return self._with(ops.shr, count)

    def __lt__(self, other: Operand) -> Value:
        return self._with(ops.lt, other)

    def __gt__(self, other: Operand) -> Value:
        return self._with(ops.gt, other)

    def eq(self, other: Operand) -> Value:
        return self._with(ops.eq, other)

    def ne(self, other: Operand) -> Value:
        return self._with(ops.ne, other)

    def fma(self, factor: Operand, summand: Operand) -> Value:
        """Return self * factor + summand, rounded once or twice."""
        return self._with(ops.fma, factor, summand)

    def abs(self) -> Value:
        return self._with(ops.abs_)

    def sqrt(self) -> Value:
        return self._with(ops.sqrt)

    def pow(self, exponent: Operand) -> Value:
        return self._with(ops.pow_, exponent)

    def floor(self) -> Value:
        return self._with(ops.floor)

    def cast(self, t: DType) -> Value:
        return Value(self.b, self.b.cast(self.op, t))

    def bits(self, t: DType | None = None) -> Value:
        """Return the bit pattern of a float as an integer of type ``t``, by default signed."""
        return Value(self.b, self.b.emit(ops.bitcast, self.op, type=t or (i64 if self.type is f64 else i32)))

    def as_float(self, t: DType) -> Value:
        """Return the float ``t`` with this bit pattern."""
        return Value(self.b, self.b.emit(ops.bitcast, self.op, type=t))

    def with_sign_of(self, sign: Value) -> Value:
        """Return this float, which is not negative, with the sign bit of ``sign``."""
        return (self.bits() | (sign.bits() & -(1 << self.type.bits - 1))).as_float(self.type)

    def select(self, yes: Operand, no: Operand) -> Value:
        """Return ``yes`` where this truth value holds, else ``no``; at least one is a Value."""
        assert self.type is u1
        like = yes if isinstance(yes, Value) else no
        assert isinstance(like, Value)
        a = yes if isinstance(yes, Value) else like.const(yes)
        c = no if isinstance(no, Value) else like.const(no)
        return Value(self.b, self.b.emit(ops.select, self.op, a.op, c.op), like.rounding)

    def clamp(self, low: float, high: float) -> Value:
        """Return the value limited to [low, high]; NaN stays NaN (so it uses no ``min`` and ``max``)."""
        below = (self > high).select(high, self)
        return (below < low).select(low, below)

    def at_least(self, bound: float) -> Value:
        """Return the larger of this value and ``bound``; for NaN, either."""
        return self._with(ops.max_, bound)

    def horner(self, coefficients: Sequence[float]) -> Value:
        """Return the polynomial in this value, lowest power first, with ``fma``."""
        result = self.const(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            result = result.fma(self, c)
        return result

    def beside_square(self, coefficients: Sequence[float]) -> Value:
        """Return the polynomial of degree 2 in this value. Its square is computed independently of the first two terms."""
        first, second, third = coefficients
        return (self * self).fma(third, self.fma(second, first))


def branch(condition: Value, then: Callable[[], Sequence[Value]], orelse: Callable[[], Sequence[Value]]) -> list[Value]:
    """Return the values of one of the two functions, in control flow of its own."""
    b = condition.b
    regions = []
    for values in (then, orelse):
        b.begin()
        regions.append(b.end([value.op for value in values()]))
    return [Value(b, op) for op in b.if_(condition.op, *regions)]


# Operations that compilers may fuse or reorder with others.
_ROUNDED = (ops.add, ops.sub, ops.mul)
