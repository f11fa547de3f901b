"""Recurrences: the operations of loops whose results the same operations of later iterations wait for.

The latency of such an operation is part of every iteration; other operations of neighbouring iterations overlap, so that their throughput
counts. Dependences through memory are ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region

_Sources = frozenset[Op]
_NONE: _Sources = frozenset()


def overlapping(region: Region, codes: Collection[ops.OpCode]) -> set[Op]:
    """Return the operations with one of ``codes`` in loops of ``region`` that are no part of a recurrence."""
    found = _Recurrences(codes)
    found.visit(region)
    return found.in_loops - found.recurrent


class _Recurrences:
    """For each value, the loop-carried values and the operations with one of ``codes`` that it depends on."""

    def __init__(self, codes: Collection[ops.OpCode]) -> None:
        self.codes = codes
        self.sources: dict[Op, _Sources] = {}
        self.in_loops: set[Op] = set()
        self.recurrent: set[Op] = set()

    def visit(self, region: Region) -> list[_Sources]:
        for op in region.ops[:-1]:
            if op.code in (ops.for_, ops.while_):
                self._loop(op)
            elif op.code is ops.result:
                self.sources[op] = self.sources.get(op.args[0], _NONE)
            else:
                inner = [found for below in op.regions for found in self.visit(below)]
                own = frozenset((op,)) if op.code in self.codes else _NONE
                self.sources[op] = _union([own, *inner, *self._of(op.args)])
        return self._of(region.results)

    def _of(self, values: Iterable[Op]) -> list[_Sources]:
        return [self.sources.get(value, _NONE) for value in values]

    def _loop(self, op: Op) -> None:
        """Find the recurrences of a loop. Its results together depend on what any of them depends on."""
        carried = op.regions[0].params[1:] if op.code is ops.for_ else op.regions[0].params
        for param in carried:
            self.sources[param] = frozenset((param,))
        condition = _NONE
        if op.code is ops.while_:
            condition, *more = self.visit(op.regions[0])
            self.sources.update(zip(op.regions[1].params, [*self._of(carried), *more]))
        following = dict(zip(carried, self.visit(op.regions[-1])))
        changed = True
        while changed:  # Close `following` over the loop-carried values.
            changed = False
            for param, found in following.items():
                closed = _union([found, *[following[p] for p in found if p in following]])
                changed |= closed != found
                following[param] = closed
        for below in [o for region in op.regions for o in region.walk() if o.code in self.codes]:
            self.in_loops.add(below)
            operands = _union(self._of(below.args))
            needed = _union([operands, *[following[p] for p in operands if p in following]])
            if any(below in following[p] for p in needed if p in following):
                self.recurrent.add(below)
        self.sources[op] = _union([*following.values(), condition, *self._of(op.args)])


def _union(sources: Iterable[_Sources]) -> _Sources:
    return frozenset().union(*sources)
