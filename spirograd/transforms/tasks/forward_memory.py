"""Forwarding of stores of an iteration of a parallel loop to its loads, and removal of stores that the iteration overwrites."""

from __future__ import annotations

from spirograd.analysis.effects import may_alias, nested, reads
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Ref, Region, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.cse import cse
from spirograd.transforms.simplification.dce import dce

_ACCESSING = frozenset(("read", "write", "atomic"))


def forward_memory(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Forward stores in tasks, where fused loops, and atomics that became loads and stores, leave redundant accesses."""
    if not ctx.options.optimize or not any(_returns(region) for task in kernel.body.ops for region in task.regions):
        return kernel
    forwarded = cse(kernel, ctx)
    stored = _DeadStores().kernel(forwarded)
    return kernel if stored is kernel else dce(stored, ctx)


def _returns(region: Region) -> bool:
    """Return whether an operation in ``region`` accesses memory to which an earlier operation stores."""
    stored: set[Ref] = set()
    for op in region.walk():
        if op.code.effect in _ACCESSING:
            ref = ref_of(op)
            if stored and ref in stored:
                return True
            if op.code is ops.store:
                stored.add(op.attr)
    return False


class _DeadStores(Rewriter):
    """A rewriter that removes dead stores outside of control flow."""

    def __init__(self) -> None:
        super().__init__()
        self.dead: set[Op] = set()
        self.handlers = {ops.task: self._task, ops.store: self._store}

    def _task(self, op: Op) -> Op:
        self.dead = _dead(op.regions[1]) if op.attr.kind == "range_for" else set()
        return self.copy(op) if self.dead else self.b.append(op)

    def _store(self, op: Op) -> Op | None:
        return None if op in self.dead else self.copy(op)


def _dead(body: Region) -> set[Op]:
    """Return the stores to elements that are overwritten before they are read, by a backward scan."""
    dead: set[Op] = set()
    elements = [(op.attr, op.args[:-1]) for op in body.ops if op.code is ops.store]
    if len(set(elements)) == len(elements):
        return dead
    overwritten: set[tuple[Ref, tuple[Op, ...]]] = set()
    for op in reversed(body.ops[:-1]):
        if op.code is ops.store:
            element = (op.attr, op.args[:-1])
            if element in overwritten:
                dead.add(op)
            overwritten.add(element)
        elif any(inner.code.effect in ("check", "print", "barrier") for inner in nested(op)):
            overwritten.clear()
        elif op.code.effect != "pure":
            seen = reads(op)
            overwritten = {element for element in overwritten if not any(may_alias(element[0], ref) for ref in seen)}
    return dead
