"""Loop fusion: parallel loops of a kernel that have the same index space become one loop, and therefore one dispatch.

Fusion saves launches and memory traffic, because a value that an iteration wrote is still in a register when it is read. `analysis.fusion`
decides which loops may be fused; this pass decides which fusions pay, and which loops become neighbours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from itertools import pairwise

from spirograd.analysis.compared_arrays import Array, array_of
from spirograd.analysis.effects import may_alias, touches, writes
from spirograd.analysis.fusion import Arrays, commutes, conflict, obstacle
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, Kernel, LoopAttr, Op, Ref
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.checks.check_loops import inner_iterations
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.cse import cse
from spirograd.transforms.tasks.contract import Contraction, decides_rounding
from spirograd.transforms.tasks.disjoint_arrays import MOST_DISJOINT, fits, mark_disjoint

# The largest number of operations of a fused loop, by whether tasks run as invocations: `python -m benchmarks.fusing` shows the cost of
# more. On CPUs, LLVM interleaves iterations of short loops only: with 32 operations in total, a fused loop is 1.5 times as fast; with 96 it
# takes 1.4 times as long.
_LONGEST = {False: 48, True: 400}
# The number of fields and arrays that a fused loop may access if the loops share less than a quarter of them, because hardware does not
# prefetch more streams (two loops over 4 each take the same time when fused, over 8 each up to 1.5 times as long).
_MOST_STREAMS = 8
# The number of earlier loops with which a loop may be fused that are tried.
_FARTHEST = 8


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about two loops, given by their lines. ``reason``: why they were not fused, or "" if they were. ``disjoint``: arrays that
    must not overlap in a launch of the fused loops."""

    first: Loc | None
    second: Loc | None
    reason: str
    disjoint: Collection[Arrays] = ()

    def __str__(self) -> str:
        pairs = ", or ".join([f"`{a.name}` and `{b.name}`" for a, b in self.disjoint])
        verdict = f"not fused: {self.reason}" if self.reason else f"fused, unless {pairs} overlap" if pairs else "fused"
        return f"{_place(self.first)} and {_place(self.second)}: {verdict}"


def _place(loc: Loc | None) -> str:
    return f"{loc.file}:{loc.line}" if loc is not None else "?"


def fuse_loops(kernel: Kernel, ctx: PassContext) -> tuple[Kernel, tuple[Decision, ...]]:
    """Fuse loops if `analysis.fusion` allows it and it pays. Return also the decisions about loops that are, or became, neighbours.

    Settings may keep loops apart that would be fused, and so does compilation for overlapping arrays. Contraction is decided for these
    loops as if they were fused, so that results do not depend on the settings.
    """
    loops = [op for op in kernel.body.ops if op.code is ops.for_ and op.attr.parallel]
    if len(loops) < 2:
        return kernel, ()
    if not ctx.options.optimize:
        return kernel, tuple([Decision(a.loc, b.loc, "optimisation is switched off") for a, b in pairwise(loops)])
    plan = _Plan(kernel, ctx)
    groups = {loop: item for item in plan.items if len(item.loops) > 1 for loop in item.loops}
    options = ctx.options
    if options.unfused_by or options.disjoint_by or options.overlapping or any(loop.attr.apart for loop in loops):
        plan = _Plan(kernel, ctx, groups)
    if groups:
        contraction = Contraction(kernel.body, ctx.caps, options)
        kernel = _Build(plan, groups, contraction, ctx).kernel(kernel)
        kernel = mark_disjoint(kernel, plan.disjoint)
    if any(len(item.loops) > 1 for item in plan.items):
        # Indices are merged, because later passes compare them by identity, such as `demote_atomics`.
        kernel = cse(kernel, ctx)
    return kernel, tuple(plan.decisions)


@dataclass(slots=True, eq=False)
class _Item:
    """An operation of the kernel's body, or ``loops`` to be fused, in the position of the last one."""

    op: Op
    loops: list[Op] = field(default_factory=list)
    obstacle: str | None = None


class _Plan:
    """A plan of the loops to be fused, made loop by loop. ``groups``: the groups of the plan that ignores settings which keep loops apart,
    or None while that plan is made. ``disjoint``: the arrays that the plan assumes to be disjoint."""

    def __init__(self, kernel: Kernel, ctx: PassContext, groups: Mapping[Op, _Item] | None = None) -> None:
        self.kernel = kernel
        self.ctx = ctx
        self.groups = groups
        self.disjoint: set[Array] = set()
        self.decisions: list[Decision] = []
        self.items: list[_Item] = []
        for op in kernel.body.ops[:-1]:
            self._add(op)

    def _add(self, op: Op) -> None:
        if op.code is not ops.for_ or not op.attr.parallel:
            self.items.append(_Item(op))
            return
        caps, options = self.ctx.caps, self.ctx.options
        ordered = caps.target.ordered_sums
        # On graphics cards the length of the body determines the number of iterations that an invocation runs at a time.
        item = _Item(op, [op], obstacle(op, options.fast_math, ordered, same_partition=ordered and caps.cpu_driver))
        before = [k for k, other in enumerate(self.items) if other.loops][-_FARTHEST:]
        for k in reversed(before):
            first = self.items[k]
            reason, disjoint = self._reason(first, item, self.items[k + 1 :])
            if not reason or k == before[-1]:
                self.decisions.append(Decision(first.op.loc, op.loc, reason, () if reason else disjoint))
            if not reason:
                del self.items[k]
                item.loops = [*first.loops, op]
                self.disjoint |= _arrays_of(disjoint)
                break
        self.items.append(item)

    def _reason(self, first: _Item, second: _Item, between: Sequence[_Item]) -> tuple[str, Collection[Arrays]]:
        """Return why two loops are not fused, or "" if they are. Return also the arrays that must not overlap for fusion."""
        apart = first.op.attr.apart or second.op.attr.apart
        if apart and self.groups is not None:
            return f"{apart} keeps the loops of this kernel apart", ()
        for which, item in (("first", first), ("second", second)):
            if item.obstacle is not None:
                return f"the {which} {item.obstacle}", ()
        for loop in first.loops:
            for other in between:
                if not all(commutes(loop, op) for op in other.loops or [other.op]):
                    return "the code between them must run between them", ()
        assumed: set[Arrays] | None = None if self.ctx.options.overlapping and self.groups is not None else set()
        for loop in first.loops:
            obstacle = conflict(loop, second.op, "" if self.groups is None else self.ctx.options.disjoint_by, assumed)
            if obstacle is not None:
                return obstacle, ()
        disjoint = sorted(assumed or (), key=lambda pair: [(ref.arg, ref.role) for ref in pair])
        if not fits(self.kernel, self.disjoint | _arrays_of(disjoint)):
            return f"more than {MOST_DISJOINT} arrays of this kernel would have to be disjoint", ()
        return _cost(first.loops, second.op, self.ctx.caps) or self._setting(first.op, second.op), disjoint

    def _setting(self, first: Op, second: Op) -> str:
        """Return the setting that keeps two loops apart, or "" if there is none."""
        if self.groups is None:
            return ""
        if self.ctx.options.unfused_by:
            return f"{self.ctx.options.unfused_by} switches fusion off"
        alike = first in self.groups and self.groups[first] is self.groups.get(second)
        if alike:
            return ""
        return f"without {self.ctx.options.disjoint_by or 'arrays that overlap'} they would be fused with other loops"


def _arrays_of(pairs: Collection[Arrays]) -> set[Array]:
    return {array_of(ref) for pair in pairs for ref in pair}


def _cost(loops: Sequence[Op], last: Op, caps: Capabilities) -> str:
    """Return why fusion would not pay, or would exceed limits of the device, or "" if it pays."""
    longest = _LONGEST[caps.target.invocations]
    if caps.loop_limit and sum(inner_iterations(loop.regions[0]) for loop in (*loops, last)) >= caps.loop_limit:
        return f"together their inner loops may run {caps.loop_limit:,} iterations, after which this driver ends loops"
    size = sum(op.code is not ops.const for loop in (*loops, last) for op in loop.regions[0].walk())
    if size > longest:
        return f"together they have {size} operations, more than {longest}"
    if len({_has_loops(loop) for loop in (*loops, last)}) > 1:
        return "only one of them has inner loops"
    before, after = {ref for loop in loops for ref in touches(loop)}, touches(last)
    streams, shared = len(before | after), len(before & after)
    if streams > _MOST_STREAMS and 4 * shared < streams:
        return f"together they access {streams} fields or arrays, more than {_MOST_STREAMS}, and share {shared} of them"
    return ""


def _has_loops(loop: Op) -> bool:
    return not loop.regions[0].codes.isdisjoint((ops.for_, ops.while_))


class _Build(Rewriter):
    """A rewriter that emits the planned loops. ``contracted``: loops whose contraction is decided here, before they are fused."""

    def __init__(self, plan: _Plan, contracted: Collection[Op], contraction: Contraction, ctx: PassContext) -> None:
        super().__init__()
        self.plan = plan
        self.contracted = contracted
        self.contraction = contraction
        self.ctx = ctx
        # Whether the driver would simplify arithmetic across the two loops, which memory between them used to prevent: drivers of graphics
        # cards rewrite 1 / (x * a) as two other products, regardless of the marks on the first one (seen with NVIDIA's driver).
        caps = ctx.caps
        self.opaque = decides_rounding(caps) or (caps.target.simplifies_floats and 32 not in caps.exact_specials and ctx.options.fast_math)
        self.earlier: set[Ref] = set()  # memory that earlier loops wrote, and the current loop has not
        self.handlers = {ops.atomic: self._atomic}
        if self.opaque:
            self.handlers |= {ops.load: self._load, ops.store: self._store}

    def _rewritten(self, kernel: Kernel) -> Kernel:
        self.b.begin()
        for item in self.plan.items:
            loops = [self._contract(loop) for loop in item.loops]
            if len(loops) < 2:
                self.visit(self._contract(item.op))
            else:
                self._fused(loops)
        self.b.loc = kernel.body.ops[-1].loc
        return kernel.with_body(self.b.end(self.args(kernel.body.ops[-1])))

    def _contract(self, op: Op) -> Op:
        return self.contraction.loop(op) if op in self.contracted else op

    def _fused(self, loops: Sequence[Op]) -> None:
        first, bounds = loops[0], self.args(loops[0])
        self.b.at(first)
        (index,) = self.b.begin(first.regions[0].params[0].type)
        for k, loop in enumerate(loops):
            self.earlier = set().union(*[writes(before) for before in loops[:k]]) if self.opaque else set()
            self.inline(loop.regions[0], (index,), clone=True)
        self.earlier = set()
        names = dict.fromkeys([loop.attr.name for loop in loops if loop.attr.name])
        attr = LoopAttr(True, "+".join(names), first.attr.group_size)
        self.b.loc = first.loc
        body = self.b.end()
        self.b.emit(ops.for_, *bounds, attr=attr, type=(), regions=(body,))

    def _load(self, op: Op) -> Op:
        """Emit a load. A value that an earlier loop wrote counts as a value from memory, which is rounded in all uses."""
        new = self.copy(op)
        return self._rounded(new) if op.attr in self.earlier else new

    def _store(self, op: Op) -> Op:
        self._wrote(op.attr)
        return self.copy(op)

    def _atomic(self, op: Op) -> Op:
        """Emit an atomic on floats that an earlier loop wrote. The element belongs to the iteration; otherwise the loops would not be
        fused."""
        kind, ref = op.attr
        written = ref in self.earlier and ref.dtype.is_float
        if not written:
            return self.copy(op)
        *indices, value = self.args(op)
        old = self._rounded(self.b.load(ref, *indices))
        self.b.store(ref, *indices, self.b.combined(kind, old, value))
        self._wrote(ref)
        return old

    def _wrote(self, ref: Ref) -> None:
        self.earlier = {other for other in self.earlier if not self._may_alias(other, ref)}

    def _may_alias(self, a: Ref, b: Ref) -> bool:
        """Return whether two references may alias, with the marks that they get."""
        arrays = [array_of(ref) for ref in (a, b) if isinstance(ref, ArrayRef)]
        assumed = len({*arrays}) == 2 and self.plan.disjoint.issuperset(arrays)
        return not assumed and may_alias(a, b)

    def _rounded(self, value: Op) -> Op:
        return self.b.emit(ops.opaque, value) if isinstance(value.type, DType) and value.type.is_float else value
