"""Marks on arrays that passes assume to be disjoint (`ArrayRef.disjoint`). Before each launch, the launcher checks whether they are
disjoint, and otherwise runs code that was compiled without marks (`CompileOptions.overlapping`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from spirograd.analysis.compared_arrays import Array, array_of
from spirograd.analysis.dependence import private_updates
from spirograd.analysis.effects import touches
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, Kernel, Op, Ref
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

# The largest number of arrays with marks in a kernel, because each launch compares every pair of them.
MOST_DISJOINT = 8


def marked_arrays(kernel: Kernel) -> set[Array]:
    """Return the arrays of ``kernel`` that have marks."""
    return {array_of(ref) for _, ref in kernel.accesses if isinstance(ref, ArrayRef) and ref.disjoint}


def fits(kernel: Kernel, arrays: Iterable[Array]) -> bool:
    """Return whether ``arrays`` may get marks in addition to those that have marks already, so that a launch compares few arrays."""
    return len(marked_arrays(kernel).union(arrays)) <= MOST_DISJOINT


def assume_disjoint(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Mark the arrays of loops in which only one iteration updates each element, provided that no other array overlaps the updated one.
    Then these updates need not be atomic. Loops of gradients are an example: ``x.grad[i] += ...; y.grad[i] += ...``."""
    if not ctx.options.optimize or ctx.options.overlapping or ops.atomic not in kernel.codes:
        return kernel
    for number, loop in enumerate(kernel.body.ops):
        if loop.code is ops.for_ and loop.attr.parallel and ops.atomic in loop.regions[0].codes:
            arrays = {array_of(ref) for ref in touches(loop) if isinstance(ref, ArrayRef)}
            if len(arrays) > 1 and fits(kernel, arrays):
                marked = mark_disjoint(kernel, arrays)
                if _private_updates(marked.body.ops[number]) > _private_updates(loop):
                    kernel = marked
    return kernel


def _private_updates(loop: Op) -> int:
    return len(private_updates(loop.regions[0], loop.args[:2]))


def mark_disjoint(kernel: Kernel, arrays: Collection[Array]) -> Kernel:
    """Return ``kernel`` with marks on all accesses to ``arrays``. Accesses of functions that it calls get no marks, which is
    conservative."""
    return _Marking(arrays).kernel(kernel) if arrays else kernel


class _Marking(Rewriter):
    def __init__(self, arrays: Collection[Array]) -> None:
        super().__init__()
        self.arrays = arrays
        self.refs: dict[Ref, Ref] = {}  # one object for each reference, because passes look references up by identity first
        self.handlers = {ops.load: self._access, ops.store: self._access, ops.cas: self._access, ops.atomic: self._atomic}

    def _rewritten(self, kernel: Kernel) -> Kernel:
        return kernel.with_body(self.region(kernel.body))

    def _access(self, op: Op) -> Op:
        return self._with(op, self._marked(op.attr))

    def _atomic(self, op: Op) -> Op:
        kind, ref = op.attr
        return self._with(op, (kind, self._marked(ref)))

    def _marked(self, ref: Ref) -> Ref:
        if not isinstance(ref, ArrayRef) or ref.disjoint or array_of(ref) not in self.arrays:
            return ref
        if ref not in self.refs:
            self.refs[ref] = replace(ref, disjoint=True)
        return self.refs[ref]

    def _with(self, op: Op, attr: object) -> Op:
        """Return a copy of ``op`` with ``attr``."""
        if attr == op.attr:
            return self.copy(op)
        return self.b.append(Op(op.code, op.type, self.args(op), attr, (), op.loc, op.primal))
