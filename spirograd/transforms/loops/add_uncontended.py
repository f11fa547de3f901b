"""Uncontended variants of loops whose atomics dominate: one thread runs the loop without atomics, which cost ten times as much."""

from __future__ import annotations

from spirograd.analysis.loop_costs import gains_without_atomics
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext


def add_uncontended(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Add the uncontended variant as a third region to tasks of kind "chunks" that gain from it: the body with loads and stores in place of
    atomics.

    One thread runs the variant while no other thread updates memory. Its iterations may update the same elements, so they run one after the
    other, in any order. A task with compare-and-swap, or with a `while` and results of atomics that are used, has no variant: its
    iterations may wait for each other, so it needs several threads. Nor has a task with fixed chunks: its variant would take sums in
    another order.
    """
    return _AddUncontended().kernel(kernel)


class _AddUncontended(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.handlers = {ops.task: self._task}

    def _task(self, op: Op) -> Op:
        if op.attr.kind != "chunks" or op.attr.grouped or op.attr.chunks.fixed or not gains_without_atomics(op.attr.chunks):
            return self.copy(op)
        bounds, body = op.regions
        if not all(map(_may_run_alone, [loop.regions[0] for loop in body.ops if loop.code is ops.for_ and loop.attr.independent])):
            return self.copy(op)
        variant = _WithoutAtomics().cloned(body)
        return self.b.append(Op(ops.task, op.type, (), op.attr, (bounds, body, variant), op.loc))


def _may_run_alone(body: Region) -> bool:
    """Return whether no iteration waits for another, and each atomic is a load, an operation and a store."""
    everything = list(body.walk())
    atomics = {op for op in everything if op.code.effect == "atomic"}
    if any(op.code in (ops.cas, ops.call_memory) for op in everything):
        return False
    return not (any(op.code is ops.while_ for op in everything) and any(a in atomics for op in everything for a in op.args))


class _WithoutAtomics(Rewriter):
    """A rewriter that replaces atomics in the loop over a chunk. The iterations of the new loop are not independent."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers = {ops.for_: self._for, ops.atomic: self._atomic}
        self.iterating = False

    def cloned(self, body: Region) -> Region:
        self.cloning = 1
        new = self.region(body)
        self.release()
        return new

    def _for(self, op: Op) -> Op:
        if not op.attr.independent:
            return self.copy(op)
        args, self.iterating = self.args(op), True
        body, self.iterating = self.region(op.regions[0]), False
        attr = replace(op.attr, independent=False, any_order=True, vectorise="no")
        return self.b.append(Op(op.code, op.type, args, attr, (body,), op.loc, op.primal))

    def _atomic(self, op: Op) -> Op:
        if not self.iterating:
            return self.copy(op)
        return self.b.update(*op.attr, *self.args(op))
