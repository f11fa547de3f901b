"""Hoisting of loads from temporaries out of parallel loops that only read them."""

from __future__ import annotations

from math import prod

from spirograd.analysis.effects import writes
from spirograd.analysis.existence import exists
from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region, TempRef
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

# The largest number of entries that are loaded to select one of them.
_MAX_ENTRIES = 64


def hoist_temps(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Hoist loads from temporaries that an outermost parallel loop does not write to.

    The loop then uses the contents of the temporaries as values, and does not depend on later writes. If indices are not constant, all
    entries of the temporary become a vector before the loop, if there are at most 64.
    """
    if not any(isinstance(op.attr, TempRef) for op in kernel.walk() if op.code is ops.load):
        return kernel
    return _Hoist().kernel(kernel)


class _Hoist(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.depth = 0
        self.scalars: dict[tuple[TempRef, tuple[int, ...]], Op] = {}
        self.vectors: dict[TempRef, Op] = {}
        self.handlers = {ops.for_: self._for, ops.load: self._load}

    def region(self, region: Region) -> Region:
        self.depth += 1
        new = super().region(region)
        self.depth -= 1
        return new

    def _for(self, op: Op) -> Op:
        if self.depth != 1 or not op.attr.parallel:
            return self.copy(op)
        written = writes(op)
        for load in op.regions[0].walk():
            if load.code is ops.load and isinstance(load.attr, TempRef) and load.attr not in written:
                self._before(load)
        new = self.copy(op)
        self.scalars.clear()
        self.vectors.clear()
        return new

    def _before(self, load: Op) -> None:
        """Load the element of ``load``, or all entries of its temporary, before the loop."""
        ref: TempRef = load.attr
        self.b.loc = load.loc
        at = _constant(load)
        if at is not None:
            if (ref, at) not in self.scalars:
                self.scalars[ref, at] = self.b.load(ref, *[self.b.const(i) for i in at])
        elif ref not in self.vectors and prod(ref.shape) <= _MAX_ENTRIES:
            parts = [self.b.load(ref, *[self.b.const(i) for i in at]) for at in _entries(ref.shape)]
            self.vectors[ref] = self.b.emit(ops.vec, *parts)

    def _load(self, op: Op) -> Op:
        ref = op.attr
        if not isinstance(ref, TempRef):
            return self.copy(op)
        at = _constant(op)
        if at is not None:
            scalar = self.scalars.get((ref, at))
            return self.copy(op) if scalar is None else scalar
        vector = self.vectors.get(ref)
        return self.copy(op) if vector is None else self.b.emit(ops.extract, vector, self._flat(ref, op.args))

    def _flat(self, ref: TempRef, indices: tuple[Op, ...]) -> Op:
        """Return the number of an entry in row-major order."""
        at = self.value(indices[0])
        for size, i in zip(ref.shape[1:], indices[1:]):
            t = at.type
            assert isinstance(t, DType)
            row = self.b.emit(ops.mul, at, self.b.const(size, t), attr="nsw")
            at = self.b.emit(ops.add, row, self.b.cast(self.value(i), t), attr="nsw")
        return at


def _constant(load: Op) -> tuple[int, ...] | None:
    """Return the indices of a load if they are constant and in range, else None."""
    known = all(i.code is ops.const for i in load.args) and exists(load.attr, load.args, {})
    return tuple([int(i.attr) for i in load.args]) if known else None


def _entries(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the indices of all entries in row-major order."""
    out: list[tuple[int, ...]] = [()]
    for n in shape:
        out = [(*at, i) for at in out for i in range(n)]
    return out
