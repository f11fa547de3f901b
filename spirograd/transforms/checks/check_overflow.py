"""Checks of integer arithmetic for overflow, which raises a fault or prints a report."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from spirograd.base.artifact import FaultSite, PrintSite
from spirograd.base.dtypes import VOID, DType
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.ops import OpCode
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

# A function of the operands and the wrapped result that returns whether the result is exact.
Test = Callable[[Builder, tuple[Op, ...], Op], Op]


def check_overflow(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Emit a `check` (or a `print`, by option) after integer additions, subtractions, multiplications and left shifts, after signed
    negations, absolute values and divisions, and after atomic additions of signed integers. Emit also a `check` after integer divisions by
    a divisor that may be 0.

    The wrapped result is used in any case. Arithmetic marked by an attribute (addresses) is not checked.
    """
    return _CheckOverflow(ctx.options.warn_of_overflow).kernel(kernel)


class _CheckOverflow(Rewriter):
    def __init__(self, warns: bool) -> None:
        super().__init__()
        self.warns = warns
        self.handlers[ops.atomic] = self._atomic
        for code in _TESTS:
            self.handlers[code] = self._checked
        for code in _DIVISIONS:
            self.handlers[code] = self._divided

    def _divided(self, op: Op) -> Op:
        """Check a division. Division by zero gives an unspecified number, which the program did not intend. The quotient of the lowest
        number by -1 overflows."""
        new = self.copy(op)
        x, y = new.args
        t, expression = _dtype(y), _DIVISIONS[op.code]
        if op.attr is not None:
            return new
        if y.code is not ops.const:
            site = FaultSite("overflow", f"{expression}: integer division by zero", (_dtype(x), t), op.loc)
            self.b.emit(ops.check, self.b.emit(ops.ne, y, self.b.const(0, t)), x, y, attr=site, type=VOID)
        if op.code in _QUOTIENTS and t.kind == "int" and _may_be(x, int(t.min)) and _may_be(y, -1):
            fits = self.b.emit(ops.not_, _is_lowest_by_minus_one(self.b, x, y))
            self._require(fits, new.args, "Division", expression, op)
        return new

    def _checked(self, op: Op) -> Op:
        new = self.copy(op)
        t = op.type
        test, name, expression = _TESTS[op.code]
        if op.attr is not None or not isinstance(t, DType) or t.kind not in ("int", "uint") or all(a.code is ops.const for a in new.args):
            return new
        if len(op.args) == 1 and not t.is_signed:
            return new
        self._require(test(self.b, new.args, new), new.args, name, expression, op)
        return new

    def _atomic(self, op: Op) -> Op:
        """Check an atomic addition. Those of unsigned integers are not checked, because a subtraction is an addition that wraps around."""
        new = self.copy(op)
        kind, t = op.attr[0], op.type
        if kind == "add" and isinstance(t, DType) and t.kind == "int":
            args = (new, new.args[-1])
            self._require(_add(self.b, args, self.b.emit(ops.add, *args)), args, "Addition", "{0} + {1}", op)
        return new

    def _require(self, fits: Op, operands: Sequence[Op], name: str, expression: str, op: Op) -> None:
        """Raise a fault, or print a report that begins like Taichi's, if ``op``, an operation called ``name``, overflows."""
        b, types = self.b, tuple([_dtype(x) for x in operands])
        message = f"{expression} does not fit {_dtype(op).name}"
        if not self.warns:
            b.emit(ops.check, fits, *operands, attr=FaultSite("overflow", message, types, op.loc), type=VOID)
            return
        where = "" if op.loc is None else f" at {op.loc.file}:{op.loc.line}"
        parts: list[str | tuple[int, str]] = [(int(part), "") if part.isdigit() else part for part in re.split(r"[{}]", message) if part]
        parts.insert(0, f"{name} overflow detected: ")
        overflows = b.emit(ops.not_, fits)
        b.begin()
        b.emit(ops.print_, *operands, attr=PrintSite((*parts, f"{where}\n"), types, op.loc), type=VOID)
        report = b.end()
        b.begin()
        b.if_(overflows, report, b.end())


def _dtype(op: Op) -> DType:
    assert isinstance(op.type, DType)
    return op.type


def _may_be(op: Op, number: int) -> bool:
    return op.code is not ops.const or op.attr == number


def _not_negative(b: Builder, x: Op) -> Op:
    return b.emit(ops.ge, x, b.const(0, _dtype(x)))


def _add(b: Builder, args: tuple[Op, ...], r: Op) -> Op:
    """Return whether a signed addition is exact: at least one operand has the sign of the result."""
    x, y = args
    if not _dtype(r).is_signed:
        return b.emit(ops.ge, r, x)
    return _not_negative(b, b.emit(ops.and_, b.emit(ops.xor, x, r), b.emit(ops.xor, y, r)))


def _sub(b: Builder, args: tuple[Op, ...], r: Op) -> Op:
    x, y = args
    if not _dtype(r).is_signed:
        return b.emit(ops.ge, x, y)
    differ = b.emit(ops.and_, b.emit(ops.xor, x, y), b.emit(ops.xor, x, r))
    return _not_negative(b, differ)


def _mul(b: Builder, args: tuple[Op, ...], r: Op) -> Op:
    """Return whether a product is exact: dividing it by one operand gives the other. (For 64 bits there is no wider type.)"""
    x, y = args
    t = _dtype(r)
    zero = b.const(0, t)
    back = b.emit(ops.eq, b.emit(ops.idiv, r, y), x)
    fits = b.emit(ops.or_, b.emit(ops.eq, y, zero), back)
    if not t.is_signed:
        return fits
    return b.emit(ops.and_, fits, b.emit(ops.not_, _is_lowest_by_minus_one(b, x, y)))


def _is_lowest_by_minus_one(b: Builder, x: Op, y: Op) -> Op:
    """Return whether ``x / y`` is the only signed division that wraps."""
    t = _dtype(x)
    return b.emit(ops.and_, b.emit(ops.eq, x, b.const(int(t.min), t)), b.emit(ops.eq, y, b.const(-1, t)))


def _not_lowest(b: Builder, args: tuple[Op, ...], r: Op) -> Op:
    t = _dtype(r)
    return b.emit(ops.ne, args[0], b.const(int(t.min), t))


def _shl(b: Builder, args: tuple[Op, ...], r: Op) -> Op:
    """Return whether a shift is exact: the count is smaller than the width, and shifting back restores the operand."""
    x, count = args
    t = _dtype(r)
    back = b.emit(ops.eq, b.emit(ops.shr, r, count), x)
    small = b.emit(ops.and_, b.emit(ops.ge, count, b.const(0, t)), b.emit(ops.lt, count, b.const(t.bits, t)))
    return b.emit(ops.and_, back, small)


_DIVISIONS: dict[OpCode, str] = {
    ops.idiv: "{0} // {1}",
    ops.irem: "{0} % {1}",
    ops.floordiv: "{0} // {1}",
    ops.floormod: "{0} % {1}",
}
_QUOTIENTS = (ops.idiv, ops.floordiv)
_TESTS: dict[OpCode, tuple[Test, str, str]] = {
    ops.add: (_add, "Addition", "{0} + {1}"),
    ops.sub: (_sub, "Subtraction", "{0} - {1}"),
    ops.mul: (_mul, "Multiplication", "{0} * {1}"),
    ops.shl: (_shl, "Shift left", "{0} << {1}"),
    ops.neg: (_not_lowest, "Negation", "-({0})"),
    ops.abs_: (_not_lowest, "Absolute value", "abs({0})"),
}
