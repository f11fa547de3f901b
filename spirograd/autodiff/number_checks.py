"""Checks in kernels for numbers that are not finite: where a NaN or an infinity comes from numbers that are neither.

`checking_numbers` adds them to a kernel, for its values; `reverse` emits them for derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base.artifact import FaultSite
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, DType
from spirograd.base.loc import Loc
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.inline_calls import inline_calls

_MOVES = (ops.const, ops.result, ops.select, ops.stop_grad, ops.recall, ops.with_partial, ops.opaque, ops.extract, ops.arg, ops.call)
_COMPUTES = tuple([code for code in ops.ALL if code.effect == "pure" and "kernel" in code.levels and code not in _MOVES])
# What a check shows: words, and the numbers that they are about.
Shown = Sequence[tuple[str, Sequence[Op]]]


def check_number(
    b: Builder, what: str, number: Op, sources: Sequence[Op], shown: Shown, indices: Sequence[Op], loc: Loc | None, infinities: bool = True
) -> None:
    """Emit a check that ``number``, which is ``what``, is no NaN (with ``infinities``: is finite), unless one of its ``sources`` is none
    either. ``indices``: of the loops around it."""
    good = b.emit(ops.not_, _is_bad(b, number, infinities))
    for source in sources:
        good = b.emit(ops.or_, good, _is_bad(b, source, infinities))
    operands, texts = [*indices], []
    at = ", ".join([f"{{{k}}}" for k in range(len(indices))])
    for words, numbers in shown:
        if numbers:
            texts.append(f"{words} " + ", ".join([f"{{{len(operands) + k}}}" for k in range(len(numbers))]))
            operands += numbers
    place = f", at index ({at})" if at else ""
    message = f"{what} is {'not finite' if infinities else 'NaN'} here{place}; " + ", ".join(texts)
    dtypes = tuple([operand.type for operand in operands])
    b.emit(ops.check, good, *operands, attr=FaultSite("nan", message, dtypes, loc), type=VOID)  # type: ignore[arg-type]


def check_derivative(b: Builder, op: Op, part: Op, adjoint: Op, args: Sequence[Op], indices: Sequence[Op], infinities: bool) -> None:
    """Emit a check of what the derivative of ``op`` adds to the adjoint of an operand. ``adjoint``: that of the result; ``args``: the
    operands."""
    operands = [a for a in args if infinities and isinstance(a.type, DType)]
    shown = [("its adjoint is", [adjoint]), ("its operands are" if len(operands) > 1 else "its operand is", operands)]
    check_number(b, f"the derivative of `{op.code.name}`", part, [adjoint], shown, indices, op.loc, infinities)


def _is_bad(b: Builder, number: Op, infinities: bool) -> Op:
    nan = b.emit(ops.isnan, number)
    return b.emit(ops.or_, nan, b.emit(ops.isinf, number)) if infinities else nan


def checking_numbers(kernel: Kernel, caps: Capabilities, options: CompileOptions) -> Kernel:
    """Return a kernel that does what ``kernel`` (kernel IR) does, without prints, and fails at the first operation that makes a NaN or an
    infinity of finite numbers."""
    kernel = inline_calls(kernel, PassContext(caps, options))
    return _Checks().kernel(kernel)


class _Checks(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self._indices: list[Op] = []
        self.handlers = {
            **dict.fromkeys(_COMPUTES, self._computed),
            ops.for_: self._loop,
            ops.atomic: self._atomic,
            ops.print_: lambda op: None,
        }

    def _loop(self, op: Op) -> Op:
        self._indices.append(op.regions[0].params[0])
        copy = self.copy(op)
        self._indices.pop()
        return copy

    def _computed(self, op: Op) -> Op:
        copy = self.copy(op)
        if _is_float(copy):
            operands = [a for a in copy.args if isinstance(a.type, DType)]
            shown = [("it is", [copy]), ("its operands are" if len(operands) > 1 else "its operand is", operands)]
            self._check(f"the value of `{op.code.name}`", copy, [a for a in operands if _is_float(a)], shown, op.loc)
        return copy

    def _atomic(self, op: Op) -> Op:
        """Check a sum in memory, which may overflow."""
        kind, ref = op.attr
        copy = self.copy(op)
        if kind == "add" and _is_float(copy):
            value = copy.args[-1]
            total = self.b.emit(ops.add, copy, value)
            self._check(f"the sum in `{ref.name}`", total, [copy, value], [("it is", [total]), ("its operands are", [copy, value])], op.loc)
        return copy

    def _check(self, what: str, number: Op, sources: Sequence[Op], shown: Shown, loc: Loc | None) -> None:
        check_number(self.b, what, number, sources, shown, self._indices, loc)


def _is_float(op: Op) -> bool:
    return isinstance(op.type, DType) and op.type.is_float
