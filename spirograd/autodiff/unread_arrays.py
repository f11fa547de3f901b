"""Dead code elimination for groups of threads: removes shared arrays from which no value comes, and loops that are left without effects."""

from __future__ import annotations

from collections.abc import Collection

from spirograd.ir import ops
from spirograd.ir.nodes import AdstackRef, Kernel, Op, Ref, Region, SharedRef, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.simplify import simplify

_WRITING = frozenset(("write", "atomic"))


def without_unread_arrays(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Remove shared arrays from which no value comes, barriers that directly follow another one, and grouped loops that change only their
    own memory."""
    if not any(op.code is ops.for_ and op.attr.grouped for op in kernel.body.ops):
        return kernel
    while True:
        kernel = simplify(kernel, ctx)
        new = _Unread(_live_arrays(kernel), {a for op in kernel.walk() for a in op.args}).kernel(kernel)
        if new is kernel:
            return kernel
        kernel = new


def _live_arrays(kernel: Kernel) -> set[Ref]:
    """Return the shared arrays from which values reach anything but shared arrays that are not among them."""
    changes: dict[Ref, list[Op]] = {}
    pending: list[Op] = []
    for op in kernel.walk():
        ref = ref_of(op)
        if isinstance(ref, SharedRef):
            if op.code is not ops.load:
                changes.setdefault(ref, []).append(op)
        elif op.code.effect not in ("pure", "read"):
            pending.append(op)
    needed: set[Op] = set()
    live: set[Ref] = set()
    while pending:
        op = pending.pop()
        if op in needed:
            continue
        needed.add(op)
        pending += op.args
        ref = ref_of(op)
        if isinstance(ref, SharedRef) and ref not in live:
            live.add(ref)
            pending += changes.get(ref, ())
    return live


class _Unread(Rewriter):
    """A rewriter that removes changes of other shared arrays than the ``live`` ones, unless their results are ``used``: uses go first."""

    def __init__(self, live: Collection[Ref], used: Collection[Op]) -> None:
        super().__init__()
        self.live, self.used = live, used
        self.waited = False  # whether nothing has happened in the current region since a barrier of the group

    def region(self, region: Region) -> Region:
        outer, self.waited = self.waited, False
        new = super().region(region)
        self.waited = outer
        return new

    def visit(self, op: Op) -> None:
        ref = ref_of(op)
        is_dead = isinstance(ref, SharedRef) and op.code is not ops.load and ref not in self.live and op not in self.used
        if is_dead or (op.code is ops.workgroup_barrier and self.waited):
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
