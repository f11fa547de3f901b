"""Dead code elimination for gradient kernels: removes adstacks and shared arrays that no derivative reads."""

from __future__ import annotations

from collections.abc import Collection

from spirograd.autodiff.sweep import capacity_of
from spirograd.autodiff.unread_arrays import without_unread_arrays
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.nodes import AdstackRef, Kernel, Op, Ref, TempRef, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.temp_kinds import TempKind
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.simplify import simplify


def clean(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Remove adstacks and shared arrays that are never read, and the computations that only they used. Number the capacities of the other
    adstacks from 0 in order of appearance."""
    while True:
        kernel = simplify(without_unread_arrays(kernel, ctx), ctx)
        read = [op.attr for op in kernel.walk() if op.code is ops.load and isinstance(op.attr, AdstackRef)]
        written = {op.attr for op in kernel.walk() if op.code is ops.store and isinstance(op.attr, AdstackRef)}
        if written <= set(read):
            numbers = {k: n for n, k in enumerate(dict.fromkeys(sorted(adstack.capacity for adstack in written)))}
            return _Adstacks(written, numbers).kernel(kernel)
        kernel = _Adstacks(set(read), {adstack.capacity: adstack.capacity for adstack in read}).kernel(kernel)


class _Adstacks(Rewriter):
    """A rewriter that keeps the given adstacks, and renumbers their capacities."""

    def __init__(self, kept: Collection[Ref], numbers: dict[int, int]) -> None:
        super().__init__()
        self.kept = kept
        self.numbers = numbers
        self.handlers = {ops.store: self._access, ops.load: self._access, ops.atomic: self._count}

    def _access(self, op: Op) -> Op | None:
        if not isinstance(op.attr, AdstackRef):
            return self.copy(op)
        if op.attr not in self.kept:
            return None
        adstack = replace(op.attr, capacity=self.numbers[op.attr.capacity])
        return self.copy(op) if adstack == op.attr else self.b.append(Op(op.code, op.type, self.args(op), adstack, (), op.loc))

    def _count(self, op: Op) -> Op | None:
        ref = ref_of(op)
        if not isinstance(ref, TempRef) or ref.kind is not TempKind.CAPACITY:
            return self.copy(op)
        number = self.numbers.get(ref.number)
        if number is None:
            return None
        kept = capacity_of(number)
        return self.copy(op) if kept == ref else self.b.append(Op(op.code, op.type, self.args(op), (op.attr[0], kept), (), op.loc))
