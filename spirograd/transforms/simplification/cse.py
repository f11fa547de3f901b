"""Merge equal values: pure operations, and loads with no write in between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spirograd.analysis.effects import WriteEpochs
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region, accesses_of, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

_WRITING = frozenset(("write", "atomic"))


def cse(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Let one operation stand for all that compute the same, within a region and those nested in it.

    A load takes the value of an earlier load of, or store to, the same element where nothing in between may have written it. Memory that
    other invocations write at the same time is not a concern: such a program has no defined order.
    """
    return _Cse().kernel(kernel)


class _Cse(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[tuple[object, ...], Op] = {}
        self.added: list[list[tuple[object, ...]]] = []  # the keys of ``known`` that are of each open region, innermost last
        self.loaded: dict[tuple[int, tuple[Op, ...]], tuple[int, Op, int]] = {}
        self.memory = WriteEpochs()
        self.written_in: dict[Op, frozenset[int] | None] = {}
        self.depth_ids: list[int] = []
        self.next_region = 0

    def visit_all(self, body: Sequence[Op]) -> None:
        """Most operations are pure: these are merged here, without a call for each."""
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
                    attr = repr(attr)  # which tells -0.0 from 0.0 and lets NaN equal itself
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
        """An operation that is not pure."""
        effect = op.code.effect
        if effect == "read":
            self._load(op)
        else:
            if op.code is ops.for_ or op.code is ops.while_:
                self._forget(self._written(op))
            new = self.copy(op)
            if new is not op:
                self.env[op] = new
            if effect in _WRITING:
                self._write(op, new)
            elif effect == "call":
                self._forget([self.memory.number(ref) for done, ref in accesses_of(op) if done in _WRITING])
            elif effect == "barrier":
                self.memory.wrote_all()

    def region(self, region: Region) -> Region:
        self.added.append([])
        self.next_region += 1
        self.depth_ids.append(self.next_region)
        new = super().region(region)
        for key in self.added.pop():
            del self.known[key]
        self.depth_ids.pop()
        return new

    # --- memory ------------------------------------------------------------------------------------------------------------

    def _written(self, op: Op) -> frozenset[int] | None:
        """The numbers of what ``op``, or anything inside, writes. None if there is a barrier inside: anything may change there."""
        if op not in self.written_in:
            self.written_in[op] = self._find_written(op)
        return self.written_in[op]

    def _find_written(self, op: Op) -> frozenset[int] | None:
        numbers: set[int] = set()
        for region in op.regions:
            for inner in region.ops:
                effect = inner.code.effect
                if inner.regions:
                    within = self._written(inner)
                    if within is None:
                        return None
                    numbers |= within
                elif effect in _WRITING or effect == "call":
                    numbers.update([self.memory.number(ref) for done, ref in accesses_of(inner) if done in _WRITING])
                elif effect == "barrier":
                    return None
        return frozenset(numbers)

    def _forget(self, numbers: Iterable[int] | None) -> None:
        """Note writes to these references; None: to any."""
        if numbers is None:
            self.memory.wrote_all()
            return
        for number in numbers:
            self.memory.wrote(number)

    def _load(self, op: Op) -> None:
        args = self.args(op)
        number = self.memory.number(op.attr)
        epoch = self.memory.epoch(number)
        found = self.loaded.get((number, args))
        if found is not None and found[0] == epoch and found[2] in self.depth_ids and found[1].type == op.type:
            self.env[op] = found[1]
            return
        new = self.copy(op)
        if new is not op:
            self.env[op] = new
        self.loaded[number, args] = (epoch, new, self.depth_ids[-1])

    def _write(self, op: Op, new: Op) -> None:
        ref = ref_of(op)
        assert ref is not None
        number = self.memory.number(ref)
        self.memory.wrote(number)
        if op.code is ops.store:
            *indices, value = new.args
            self.loaded[number, tuple(indices)] = (self.memory.epoch(number), value, self.depth_ids[-1])
