"""Loops in order: under `CompileOptions.deterministic`, parallel loops of the CPU run their iterations one after the other on one thread,
if their results would otherwise depend on the order, or if they do little but update memory.

One thread without atomics is as fast as several threads with them, see `transforms.loops.add_uncontended`.
"""

from __future__ import annotations

from spirograd.analysis.loop_costs import is_dominated_by_atomics
from spirograd.base.dtypes import VOID
from spirograd.ir import ops
from spirograd.ir.nodes import AdstackRef, Kernel, Op, Region, TaskAttr
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.checks.check_order import is_sum, unordered
from spirograd.transforms.pass_context import PassContext

_CALLS = frozenset((ops.call, ops.call_memory))


def loops_in_order(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Make such tasks serial, on targets without workgroups. Groups of threads stay: see `check_order`."""
    return kernel if ctx.caps.target.invocations else _LoopsInOrder().kernel(kernel)


class _LoopsInOrder(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.handlers = {ops.task: self._task}

    def _task(self, op: Op) -> Op:
        if op.attr.kind != "range_for" or op.attr.grouped or not _runs_in_order(op.regions[1]):
            return self.b.append(op)
        b, (bounds, body, finish) = self.b, op.regions
        b.begin()
        begin, end = self.inline(bounds, ())
        initial = [b.const(r.start, r.dtype) for r in op.attr.reductions]
        self.inline(_WithoutAtomics().region(finish), b.for_(begin, end, initial, _WithoutAtomics().region(body)))
        return b.append(Op(ops.task, VOID, (), TaskAttr("serial", op.attr.name), (b.end(),), op.loc))


def _runs_in_order(body: Region) -> bool:
    """Return whether the iterations of a loop over ``body`` run in order."""
    if any(True for _ in unordered(body)):
        return True
    if not any(map(is_sum, body.having((ops.atomic,)))) or not body.codes.isdisjoint(_CALLS) or ops.claim in body.codes:
        return False
    return is_dominated_by_atomics(body) and not any(isinstance(ref, AdstackRef) for _, ref in body.accesses)


class _WithoutAtomics(Rewriter):
    """A rewriter that replaces atomics by a load, an operation and a store."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers = {ops.atomic: lambda op: self.b.update(*op.attr, *self.args(op))}
