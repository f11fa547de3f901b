"""Common subexpression elimination: pure operations, and loads with no write in between."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.analysis.available_values import AvailableValues
from spirograd.analysis.effects import WRITING
from spirograd.analysis.value_numbers import affine
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region, accesses_of, rank, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext


def cse(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Merge operations that compute the same value, within a region and the regions nested in it.

    A load takes the value of an earlier load of, or store to, the same element if no write in between may have changed it. Writes of other
    invocations at the same time are ignored, because such a program has no defined order.
    """
    return _Cse().kernel(kernel)


class _Cse(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[tuple[object, ...], Op] = {}
        self.added: list[list[tuple[object, ...]]] = []  # the keys of ``known`` for each open region, innermost last
        self.memory = AvailableValues(affine)

    def visit_all(self, body: Sequence[Op]) -> None:
        """Visit the operations of a region. Most are pure; these are merged here, which saves a call for each."""
        known, added, done, env = self.known, self.added[-1], self.b.ops, self.env
        is_unchanged, const = env.keys().isdisjoint, ops.const
        for op in body:
            code = op.code
            if code.effect != "pure":
                self.visit(op)
                continue
            args, attr = op.args, op.attr
            if code is const:
                if not attr or attr != attr:
                    attr = repr(attr)  # the text distinguishes -0.0 from 0.0, and NaN equals itself
            elif not is_unchanged(args):
                args = tuple([env.get(a, a) for a in args])
            ordered = (args[1], args[0]) if code.commutative and len(args) == 2 and id(args[0]) > id(args[1]) else args
            key = (code, op.type, attr, ordered)
            new = known.get(key)
            if new is None:
                new = op if args is op.args else Op(code, op.type, args, attr, (), op.loc, op.primal)
                known[key] = new
                added.append(key)
                done.append(new)
            if new is not op:
                env[op] = new

    def visit(self, op: Op) -> None:
        """Visit an operation with effects."""
        effect = op.code.effect
        if effect == "read":
            self._load(op)
            return
        is_loop = op.code is ops.for_ or op.code is ops.while_
        if is_loop:
            self.memory.clobber_inside(op)
        new = self.copy(op)
        if new is not op:
            self.env[op] = new
        if op.regions:
            if not is_loop:
                self.memory.clobber_inside(op)
        elif op.code is ops.store:
            indices = new.args[:-1]
            element = self.memory.element(op.attr, indices)
            self.memory.clobber(element)
            self.memory.set(element, new.args[-1], indices)
        elif effect in WRITING:
            ref = ref_of(op)
            assert ref is not None
            self.memory.clobber(self.memory.element(ref, new.args[: rank(ref)]))
        elif effect == "call":
            for done, ref in accesses_of(op):
                if done in WRITING:
                    self.memory.clobber_all(ref)
        elif effect == "barrier":
            self.memory.clear()

    def region(self, region: Region) -> Region:
        """Rewrite a region. Contents of memory that become known inside are unknown after it."""
        before = self.memory.mark()
        self.added.append([])
        new = super().region(region)
        for key in self.added.pop():
            del self.known[key]
        self.memory.restore(before)
        return new

    def _load(self, op: Op) -> None:
        args = self.args(op)
        element = self.memory.element(op.attr, args)
        known = self.memory.get(element)
        if known is not None and known[0].type == op.type:
            self.env[op] = known[0]
            return
        new = self.copy(op)
        if new is not op:
            self.env[op] = new
        self.memory.set(element, new, args)
