"""Uncontended variants of parallel loops whose atomics dominate: one thread runs the loop without atomics, which cost ten times as much."""

from __future__ import annotations

from collections.abc import Mapping

from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region, accesses_of
from spirograd.ir.rewrite import Rewriter
from spirograd.llvmgen.cost import cost_of

# The estimated gain from which on a second version of a task is worth its compile time.
_GAIN = 2


def updates_memory(task: Op) -> bool:
    """Whether a range task has atomics, so that no other launch may update memory without them at the same time."""
    for region in task.regions[1:]:
        if any(effect == "atomic" for effect, _ in region.accesses):
            return True
        if ops.call_memory in region.codes and any(effect == "atomic" for op in region.walk() for effect, _ in accesses_of(op)):
            return True
    return False


def uncontended_body(body: Region, calls: Mapping[str, int]) -> Region | None:
    """The body of a loop without atomics, for one thread. None if that is not worth it, or one iteration may wait for another.

    An iteration that waits, in a `while`, for what an atomic returns needs other threads. ``calls``: as for `cost_of`.
    """
    everything = list(body.walk())
    atomics = {op for op in everything if op.code.effect == "atomic"}
    if any(op.code in (ops.cas, ops.call_memory) for op in everything):
        return None
    if any(op.code is ops.while_ for op in everything) and any(a in atomics for op in everything for a in op.args):
        return None
    if cost_of(body, calls, uncontended=True) * _GAIN > cost_of(body, calls):
        return None
    return _WithoutAtomics().region(body)


class _WithoutAtomics(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.handlers[ops.atomic] = self._atomic

    def _atomic(self, op: Op) -> Op:
        return self.b.update(*op.attr, *self.args(op))
