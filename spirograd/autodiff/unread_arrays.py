"""Dead code elimination for groups of threads: removes shared arrays that are never read, and what is left of loops without effects."""

from __future__ import annotations

from collections.abc import Collection

from spirograd.ir import ops
from spirograd.ir.nodes import AdstackRef, Kernel, Op, Ref, Region, SharedRef, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.simplify import simplify

_WRITING = frozenset(("write", "atomic"))


def without_unread_arrays(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Remove shared arrays that are never read, barriers that directly follow another one, and grouped loops that change only their own
    memory."""
    if not any(op.code is ops.for_ and op.attr.grouped for op in kernel.body.ops):
        return kernel
    while True:
        kernel = simplify(kernel, ctx)
        used = {a for op in kernel.walk() for a in op.args}
        accesses = [(ref, op) for op in kernel.walk() if isinstance(ref := ref_of(op), SharedRef)]
        read = {ref for ref, op in accesses if op.code is ops.load or op in used}
        new = _Unread(read).kernel(kernel)
        if new is kernel:
            return kernel
        kernel = new


class _Unread(Rewriter):
    """A rewriter that keeps the shared arrays ``read``."""

    def __init__(self, read: Collection[Ref]) -> None:
        super().__init__()
        self.read = read
        self.waited = False  # whether nothing has happened in the current region since a barrier of the group

    def region(self, region: Region) -> Region:
        outer, self.waited = self.waited, False
        new = super().region(region)
        self.waited = outer
        return new

    def visit(self, op: Op) -> None:
        if (isinstance(ref := ref_of(op), SharedRef) and ref not in self.read) or (op.code is ops.workgroup_barrier and self.waited):
            return
        if op.code is ops.for_ and op.attr.grouped and not _has_effects(op):
            return
        super().visit(op)
        if op.code.effect != "pure":
            self.waited = op.code is ops.workgroup_barrier


def _has_effects(loop: Op) -> bool:
    """Return whether a grouped loop changes more than its own memory."""
    for op in loop.regions[0].walk():
        effect, ref = op.code.effect, ref_of(op)
        if effect in ("check", "print", "call") or (effect in _WRITING and not isinstance(ref, (SharedRef, AdstackRef))):
            return True
    return False
