"""Store-to-load forwarding: a load takes the value that was stored to its element, or loaded from it, before."""

from __future__ import annotations

from spirograd.autodiff.prepare.element_aliases import Memory, Numbers, Spans, accesses, indices_of, invariant, memory_of, same_memory
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.dce import dce

# An element by its memory and the numbers of its indices.
_Key = tuple[Memory, tuple[int, ...]]
# What is known: element -> (an access to it, the value that it holds).
_Known = dict[_Key, tuple[Op, Op]]


def forward_stores(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Let a load take the value that was stored to, or loaded from, its element before, if nothing can have written the element since.

    Beyond `cse` it knows elements that surely differ (``x[i]`` and ``x[i + 1]``, entries of a vector), takes arrays for different memory
    (see `elements`), and joins what the two sides of an `if` leave in an element that is loaded later. Memory that other invocations
    write at the same time is not a concern: such a program has no defined order.
    """
    if ops.load not in kernel.codes:
        return kernel
    new = _Forward(kernel).kernel(kernel)
    return kernel if new is kernel else dce(new, ctx)


class _Forward(Rewriter):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.numbers = Numbers()
        self.spans = Spans(kernel)
        self.known: _Known = {}
        self.loaded = {self._key(op) for op in kernel.walk() if op.code is ops.load and memory_of(op) is not None}
        self.handlers = {ops.load: self._load, ops.store: self._store, ops.atomic: self._update, ops.cas: self._update}
        self.handlers |= {ops.if_: self._if, ops.for_: self._loop, ops.while_: self._loop}

    def _key(self, op: Op) -> _Key:
        ref = memory_of(op)
        assert ref is not None
        return ref, self.numbers.all(indices_of(op))

    def _load(self, op: Op) -> Op:
        if memory_of(op) is None:
            return self.copy(op)
        key = self._key(op)
        found = self.known.get(key)
        if found is not None:
            return found[1]
        new = self.copy(op)
        self.known[key] = (op, new)
        return new

    def _store(self, op: Op) -> Op:
        new = self.copy(op)
        self._forget(op)
        if memory_of(op) is not None:
            self.known[self._key(op)] = (op, new.args[-1])
        return new

    def _update(self, op: Op) -> Op:
        new = self.copy(op)
        self._forget(op)
        return new

    def _forget(self, write: Op) -> None:
        """Forget what ``write`` may change."""
        ref = memory_of(write)
        if ref is None:
            return
        indices = indices_of(write)
        for key, (access, _) in list(self.known.items()):
            if same_memory(key[0], ref) and not (key[0] == ref and self.numbers.distinct(indices_of(access), indices)):
                del self.known[key]

    def _loop(self, op: Op) -> Op:
        for inner, _ in accesses(op.regions):
            if inner.code is not ops.load:
                # What is known has indices from outside of the loop; one that differs from them by a constant does so in each iteration.
                self._forget(inner)
        before = self.known
        args = self.args(op)
        regions = []
        for region in op.regions:
            self.known = dict(before)
            regions.append(self.region(region))
        self.known = before
        if args == op.args and tuple(regions) == op.regions:
            return self.b.append(op)
        return self.b.append(Op(op.code, op.type, args, op.attr, tuple(regions), op.loc))

    def _if(self, op: Op) -> Op:
        b, before, inside = self.b, self.known, self.spans.inside(op)
        condition = self.args(op)
        halves, ends = [], []
        for region in op.regions:
            self.known = dict(before)
            b.begin()
            for inner in region.ops[:-1]:
                self.visit(inner)
            halves.append((b.suspend(), self.args(region.ops[-1])))
            ends.append(self.known)
        first, second = ends
        # What both sides know, of elements that there are outside.
        both = [key for key in first if key in second and all(invariant(i, inside) for i in indices_of(first[key][0]))]
        joined = [key for key in both if first[key][1] is not second[key][1] and key in self.loaded]
        regions = []
        for region, (half, results), known in zip(op.regions, halves, ends):
            b.resume(half)
            b.loc = region.ops[-1].loc
            new = b.end([*results, *[known[key][1] for key in joined]])
            same = not joined and new.results == region.results and new.ops[:-1] == region.ops[:-1]
            regions.append(region if same else new)
        assert isinstance(op.type, tuple)
        types = tuple([first[key][1].type for key in joined])
        b.loc = op.loc
        if condition == op.args and tuple(regions) == op.regions:
            out = b.append(op)
        else:
            out = b.append(Op(op.code, (*op.type, *types), condition, op.attr, tuple(regions), op.loc))
        self.known = {key: first[key] for key in both if first[key][1] is second[key][1]}
        for k, (key, t) in enumerate(zip(joined, types)):
            self.known[key] = (first[key][0], b.emit(ops.result, out, attr=len(op.type) + k, type=t))
        return out
