"""The global data access rule: within a tape, memory with a gradient is not overwritten once it has been read.

Taichi's tapes compute wrong gradients for programs that break this rule. `checking` turns a kernel into one that does the same and fails
where the rule is broken: it marks each element that it reads, and checks the mark of each element that it writes.
"""

from __future__ import annotations

from spirograd.autodiff.activity import ShadowOf
from spirograd.autodiff.derivative import Outer
from spirograd.base.artifact import FaultSite
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, i32
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayArg, ArrayRef, FieldRef, Kernel, Op, Ref, rank, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.inline_calls import inline_calls


def checking(kernel: Kernel, shadow: ShadowOf, caps: Capabilities, options: CompileOptions) -> tuple[Kernel, tuple[Outer, ...]]:
    """Return a kernel that does what ``kernel`` (kernel IR) does, without prints, and checks the rule. Return also the memory whose
    elements it marks.

    The marks are arrays of i32 after the arguments of ``kernel``, one for each such memory, with its shape. The mark of an element that was
    not read is zero.
    """
    kernel = inline_calls(kernel, PassContext(caps, options))
    marks: dict[Outer, ArrayRef] = {}
    for op in kernel.walk():
        ref = ref_of(op)
        if isinstance(ref, (FieldRef, ArrayRef)) and ref.role == "primal" and ref not in marks and shadow(ref) is not None:
            marks[ref] = ArrayRef(f"reads of {ref.name}", len(kernel.args) + len(marks), i32, rank(ref))
    body = _Checks(marks).region(kernel.body)
    args = (*kernel.args, *[ArrayArg(mark.name, i32, mark.ndim) for mark in marks.values()])
    return Kernel(kernel.name, args, body, kernel.returns, kernel.loc), tuple(marks)


class _Checks(Rewriter):
    def __init__(self, marks: dict[Outer, ArrayRef]) -> None:
        super().__init__()
        self._marks = marks
        self.handlers = {ops.load: self._read, ops.store: self._write, ops.atomic: self._write, ops.print_: lambda op: None}

    def _mark(self, ref: Ref | None) -> ArrayRef | None:
        return self._marks.get(ref) if isinstance(ref, (FieldRef, ArrayRef)) else None

    def _read(self, op: Op) -> Op:
        copy, mark = self.copy(op), self._mark(ref_of(op))
        if mark is not None:
            self.b.store(mark, *self._place(op), self.b.const(1))
        return copy

    def _place(self, op: Op) -> list[Op]:
        """Return the indices of the mark of the element that ``op`` accesses: arrays count from 0, fields from their origin."""
        ref = ref_of(op)
        assert isinstance(ref, (FieldRef, ArrayRef))
        indices, origin = self.args(op)[: rank(ref)], ref.layout.origin if isinstance(ref, FieldRef) else ()
        starts = (*origin, *[0] * (len(indices) - len(origin)))
        return [self.b.emit(ops.sub, i, self.b.const(start, i.type)) if start else i for i, start in zip(indices, starts)]  # type: ignore[arg-type]

    def _write(self, op: Op) -> Op:
        ref = ref_of(op)
        mark = self._mark(ref)
        if mark is not None:
            assert ref is not None
            unread = self.b.emit(ops.eq, self.b.load(mark, *self._place(op)), self.b.const(0))
            message = f"breaks the global data access rule: `{ref.name}` is overwritten after it was read in the same tape"
            self.b.emit(ops.check, unread, attr=FaultSite("assert", message.replace("{", "{{").replace("}", "}}"), (), op.loc), type=VOID)
        return self.copy(op)
