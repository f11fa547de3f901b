"""Values that operations of a region accumulate into instead of memory: all control operations around these carry them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region
from spirograd.ir.rewrite import Rewriter


class Accumulating(Rewriter):
    """A subclass handles the operations that change accumulators, by setting entries of ``current``, what accumulators are at this point.

    ``types``: of the accumulators, by number. ``changes``: for each operation that changes some, their numbers.
    """

    def __init__(self, types: Sequence[DType], changes: Mapping[Op, Sequence[int]]) -> None:
        super().__init__()
        self.types = types
        self.changes = changes
        self.inside: dict[Op, list[int]] = {}
        self.current: dict[int, Op] = {}
        self.handlers = {ops.if_: self._if, ops.for_: self._for, ops.while_: self._while}

    def params(self, carried: Sequence[int]) -> tuple[Op, ...]:
        return tuple([Op(ops.param, self.types[k]) for k in carried])

    def carrying(self, region: Region, carried: Sequence[int], params: tuple[Op, ...] = (), yields: bool = True) -> Region:
        """``region`` with accumulators as further parameters and results."""
        outer = self.current
        self.current = {**outer, **dict(zip(carried, params))}
        self.b.begin()
        for op in region.ops[:-1]:
            self.visit(op)
        results = self.args(region.ops[-1])
        if yields:
            results = (*results, *[self.current[k] for k in carried])
        new = self.b.end(results)
        self.current = outer
        return Region((*region.params, *params), new.ops)

    def _carried_by(self, op: Op) -> list[int]:
        """The accumulators that change inside ``op``."""
        found = self.inside.get(op)
        if found is None:
            numbers: set[int] = set()
            for region in op.regions:
                for inner in region.ops:
                    numbers.update(self._carried_by(inner) if inner.regions else self.changes.get(inner, ()))
            found = self.inside[op] = sorted(numbers)
        return found

    def _extended(self, op: Op, carried: list[int], args: tuple[Op, ...], regions: tuple[Region, ...]) -> Op:
        """Append ``op`` with further results, which become the current accumulators."""
        assert isinstance(op.type, tuple)
        types = tuple(self.types[k] for k in carried)
        self.b.loc = op.loc
        new = self.b.append(Op(op.code, (*op.type, *types), args, op.attr, regions, op.loc))
        for n, k in enumerate(carried, len(op.type)):
            self.current[k] = self.b.emit(ops.result, new, attr=n, type=self.types[k])
        return new

    def _if(self, op: Op) -> Op:
        carried = self._carried_by(op)
        if not carried:
            return self.copy(op)
        regions = tuple(self.carrying(r, carried) for r in op.regions)
        return self._extended(op, carried, self.args(op), regions)

    def _for(self, op: Op) -> Op:
        carried = self._carried_by(op)
        if not carried:
            return self.copy(op)
        args = (*self.args(op), *[self.current[k] for k in carried])
        return self._extended(op, carried, args, (self.carrying(op.regions[0], carried, self.params(carried)),))

    def _while(self, op: Op) -> Op:
        carried = self._carried_by(op)
        if not carried:
            return self.copy(op)
        args = (*self.args(op), *[self.current[k] for k in carried])
        condition = self.carrying(op.regions[0], carried, self.params(carried), yields=False)
        return self._extended(op, carried, args, (condition, self.carrying(op.regions[1], carried, self.params(carried))))
