"""Nested checkpoints: serial loops become nests of loops, whose reverse takes little memory.

A loop of N iterations becomes a nest of L levels, whose loops have k iterations each, k**L >= N. The reverse of a nest recomputes an inner
loop for each iteration of the outer one (see `reverse`), so that its adstacks have L * k entries instead of N, and the innermost body runs
L - 1 times more. The iterations stay the same, in the same order, and so do the results, bit for bit. This is the multi-level form of the
checkpoints every sqrt(N) iterations of T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from spirograd.autodiff.sweep import segments, trip_count
from spirograd.base.dtypes import DType, i32, u1
from spirograd.base.nesting import Nesting
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.ir.rewrite import Rewriter

_LOOPS = (ops.for_, ops.while_)


@dataclass(slots=True)
class NestedLoops:
    """A primal with nests in place of loops. ``numbers``: for each loop, the number of the original loop. ``spans``: the number of
    iterations of the original loop in one iteration (1 if omitted). ``bounds``: the largest trip count of a loop, where it is limited.

    Copies of operations have the original as ``primal``.
    """

    kernel: Kernel
    numbers: dict[Op, int]
    spans: dict[Op, int] = field(default_factory=dict)
    bounds: dict[Op, int] = field(default_factory=dict)


def loop_numbers(kernel: Kernel) -> dict[Op, int]:
    """Return the loops of ``kernel`` with their numbers, in order."""
    return {op: k for k, op in enumerate([op for op in kernel.walk() if op.code in _LOOPS])}


def nested_loops(kernel: Kernel, nesting: Nesting | None) -> NestedLoops:
    """Return ``kernel`` (a prepared primal) with the loops of ``nesting`` as nests."""
    nests = NestedLoops(kernel, loop_numbers(kernel))
    if nesting is not None:
        nests.kernel = _Nests(nests, dict(nesting.levels), nesting.length).kernel(kernel)
    return nests


class _Nests(Rewriter):
    def __init__(self, nests: NestedLoops, levels: Mapping[int, int], length: int) -> None:
        super().__init__()
        self.nests = nests
        self.levels = levels
        self.length = length
        self.handlers = {ops.for_: self._for, ops.while_: self._while}

    def copy(self, op: Op) -> Op:
        """Copy an operation, with the original as its primal."""
        new = super().copy(op)
        if new is not op:
            new.primal = op.primal or op
            if op in self.nests.numbers:
                self.nests.numbers[new] = self.nests.numbers[op]
        return new

    def _add(self, loop: Op, old: Op, span: int, bounded: bool) -> Op:
        """Append a loop of the nest that replaces ``old``."""
        self.nests.numbers[loop] = self.nests.numbers[old]
        self.nests.spans[loop] = span
        if bounded:
            self.nests.bounds[loop] = self.length
        return self.b.append(loop)

    # --- for -------------------------------------------------------------------------------------------------------------

    def _for(self, op: Op) -> Op:
        count_type = op.args[0].type
        assert isinstance(count_type, DType)
        level = self.levels.get(self.nests.numbers[op], 1)
        while self.length ** (level - 1) > count_type.max // 2:
            level -= 1
        if level == 1 or op.attr.parallel:
            return self.copy(op)
        begin, end, *initial = self.args(op)
        region = self.region(op.regions[0])
        return self._for_level(op, region, begin, end, trip_count(self.b, begin, end), initial, level, False)

    def _for_level(self, old: Op, region: Region, begin: Op, end: Op, count: Op, initial: Sequence[Op], level: int, bounded: bool) -> Op:
        """Return the nest of ``level`` loops that runs the ``count`` iterations from ``begin`` to ``end``."""
        if level == 1:
            return self._add(Op(ops.for_, old.type, (begin, end, *initial), old.attr, (region,), old.loc), old, 1, bounded)
        b, t, span = self.b, begin.type, self.length ** (level - 1)
        assert isinstance(t, DType) and isinstance(count.type, DType)
        total = segments(b, count, span)
        zero = b.const(0, count.type)
        step, *carried = b.begin(count.type, *[a.type for a in initial], names=_names(region.params[1:]))
        first = b.emit(ops.mul, step, b.const(span, count.type), attr="nsw")
        within = b.emit(ops.min_, b.emit(ops.sub, count, first, attr="nsw"), b.const(span, count.type))
        inner_begin = b.emit(ops.add, begin, b.cast(first, t), attr="wrap")
        inner_end = b.emit(ops.add, inner_begin, b.cast(within, t), attr="wrap")
        inner = self._for_level(old, region, inner_begin, inner_end, within, carried, level - 1, True)
        body = b.end(b.results(inner))
        return self._add(Op(ops.for_, old.type, (zero, total, *initial), old.attr, (body,), old.loc), old, span, bounded)

    # --- while -----------------------------------------------------------------------------------------------------------

    def _while(self, op: Op) -> Op:
        level = self.levels.get(self.nests.numbers[op], 1)
        # The condition is evaluated once more at the end of each inner loop.
        if level == 1 or any(inner.code.effect in ("write", "atomic") for inner in op.regions[0].walk()):
            return self.copy(op)
        initial = self.args(op)
        condition, body = [self.region(r) for r in op.regions]
        return self._while_level(op, (condition, body), initial, level, False)[0]

    def _while_level(
        self, old: Op, regions: tuple[Region, Region], initial: Sequence[Op], level: int, bounded: bool
    ) -> tuple[Op, Sequence[Op], Op]:
        """Return a nest of ``level`` loops, its results, and whether its condition may still hold. ``bounded``: the nest also ends after
        the largest number of iterations that it may run."""
        if level == 1:
            return self._innermost(old, regions, initial)
        b, n = self.b, len(initial)
        start = (*initial, b.const(True, u1), *([b.const(0)] if bounded else []))
        types, names = [v.type for v in start], (*_names(regions[1].params), *[None] * (len(start) - n))
        again, *count = b.begin(*types, names=names)[n:]
        condition = b.end([b.emit(ops.and_, again, b.emit(ops.lt, count[0], b.const(self.length))) if bounded else again])
        params = b.begin(*types, names=names)
        _, values, more = self._while_level(old, regions, params[:n], level - 1, True)
        body = b.end([*values, more, *[b.emit(ops.add, c, b.const(1), attr="nsw") for c in params[n + 1 :]]])
        span = self.length ** (level - 1)
        loop = self._add(Op(ops.while_, tuple(types), start, old.attr, (condition, body), old.loc), old, span, bounded)
        results = b.results(loop)
        return loop, results[:n], results[n]

    def _innermost(self, old: Op, regions: tuple[Region, Region], initial: Sequence[Op]) -> tuple[Op, Sequence[Op], Op]:
        """Return what `_while_level` returns for the loop itself, which counts its iterations."""
        b, n = self.b, len(initial)
        (count,) = b.begin(i32)
        goes_on = b.emit(ops.and_, regions[0].results[0], b.emit(ops.lt, count, b.const(self.length)))
        condition = _extended(regions[0], count, b.end([goes_on]))
        (count,) = b.begin(i32)
        body = _extended(regions[1], count, b.end([*regions[1].results, b.emit(ops.add, count, b.const(1), attr="nsw")]))
        start = (*initial, b.const(0))
        types = tuple([v.type for v in start])
        loop = self._add(Op(ops.while_, types, start, old.attr, (condition, body), old.loc), old, 1, True)
        results = b.results(loop)
        return loop, results[:n], b.emit(ops.eq, results[n], b.const(self.length))


def _extended(region: Region, param: Op, end: Region) -> Region:
    """Return ``region`` with an additional parameter and another terminator."""
    return Region((*region.params, param), (*region.ops[:-1], *end.ops))


def _names(params: Sequence[Op]) -> list[str | None]:
    """Return the names of loop-carried values in the source."""
    return [p.attr for p in params]
