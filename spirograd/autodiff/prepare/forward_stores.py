"""Store-to-load forwarding: a load takes the value that was last stored to its element, or loaded from it."""

from __future__ import annotations

from spirograd.analysis.available_values import AvailableValues, Element
from spirograd.analysis.effects import WRITING, orders
from spirograd.analysis.loop_invariants import Invariants, Spans
from spirograd.analysis.value_numbers import ValueNumbers
from spirograd.ir import ops
from spirograd.ir.nodes import VARIABLES, Kernel, Op, Region, rank, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.dce import dce


def forward_stores(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Replace a load by the value that was last stored to, or loaded from, its element, if no write can have changed the element since.

    Unlike `cse`, this pass assumes that arrays do not overlap, as derivatives do, finds equal indices in different regions, and joins the
    values that the two sides of an `if` leave in an element that is loaded later. It ignores writes of other invocations at the same time,
    because such a program has no defined order; across barriers it knows no values.
    """
    if ops.load not in kernel.codes:
        return kernel
    new = _Forward(kernel).kernel(kernel)
    return kernel if new is kernel else dce(new, ctx)


class _Forward(Rewriter):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.spans = Spans(kernel)
        numbers = ValueNumbers()
        self.memory = AvailableValues(lambda index: numbers.affine(index)[:2], separate_arrays=True)
        self.loaded = {self._element(op) for op in kernel.walk() if op.code is ops.load}
        self.handlers = {ops.load: self._load, ops.store: self._store, ops.atomic: self._update, ops.cas: self._update}
        self.handlers |= {ops.if_: self._if, ops.for_: self._loop, ops.while_: self._loop}
        self.handlers |= dict.fromkeys((ops.workgroup_barrier, ops.subgroup_barrier), self._barrier)

    def _element(self, op: Op) -> Element:
        ref = ref_of(op)
        assert ref is not None
        return self.memory.element(ref, op.args[: rank(ref)])

    def _load(self, op: Op) -> Op:
        element = self._element(op)
        known = self.memory.get(element)
        if known is not None:
            return known[0]
        new = self.copy(op)
        if isinstance(op.attr, VARIABLES):
            self.memory.set(element, new, op.args)
        return new

    def _store(self, op: Op) -> Op:
        new = self._update(op)
        if isinstance(op.attr, VARIABLES):
            self.memory.set(self._element(op), new.args[-1], op.args[:-1])
        return new

    def _update(self, op: Op) -> Op:
        self.memory.clobber(self._element(op))
        return self.copy(op)

    def region(self, region: Region) -> Region:
        before = self.memory.mark()
        new = super().region(region)
        self.memory.restore(before)
        return new

    def _barrier(self, op: Op) -> Op:
        self.memory.clear()
        return self.copy(op)

    def _loop(self, op: Op) -> Op:
        if orders(op):
            self.memory.clear()
        for inner in (inner for region in op.regions for inner in region.walk()):
            if inner.code.effect in WRITING:
                # Available values have indices from outside of the loop. An index that differs from such an index by a constant differs
                # from it in each iteration.
                self.memory.clobber(self._element(inner))
        return self.copy(op)

    def _if(self, op: Op) -> Op:
        b, before, invariant = self.b, self.memory.mark(), Invariants(self.spans.inside(op))
        condition = self.args(op)
        halves, ends = [], []
        for region in op.regions:
            b.begin()
            self.visit_all(region.ops[:-1])
            halves.append((b.suspend(), self.args(region.ops[-1])))
            ends.append(dict(self.memory.items()))
            self.memory.restore(before)
        first, second = ends
        # Keep elements whose values are available on both sides and whose indices exist outside.
        both = [key for key in first if key in second and all(i in invariant for i in first[key][1])]
        joined = [key for key in both if first[key][0] is not second[key][0] and key in self.loaded]
        regions = []
        for region, (half, results), known in zip(op.regions, halves, ends):
            b.resume(half)
            b.loc = region.ops[-1].loc
            new = b.end([*results, *[known[key][0] for key in joined]])
            same = not joined and new.results == region.results and new.ops[:-1] == region.ops[:-1]
            regions.append(region if same else new)
        assert isinstance(op.type, tuple)
        types = tuple([first[key][0].type for key in joined])
        b.loc = op.loc
        if condition == op.args and tuple(regions) == op.regions:
            out = b.append(op)
        else:
            out = b.append(Op(op.code, (*op.type, *types), condition, op.attr, tuple(regions), op.loc))
        self.memory.clear()
        for key in both:
            if first[key][0] is second[key][0]:
                self.memory.set(key, *first[key][:2])
        for k, (key, t) in enumerate(zip(joined, types)):
            self.memory.set(key, b.emit(ops.result, out, attr=len(op.type) + k, type=t), first[key][1])
        return out
