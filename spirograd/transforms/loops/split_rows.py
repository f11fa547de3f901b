"""Splitting of loops over several axes into rows, in which only the last index changes.

A loop over an index space runs over one flat index, from which each iteration computes its indices by division. LLVM neither vectorises a
division nor detects that neighbouring iterations access neighbouring elements. Therefore the range is cut at the multiples of the last
extent.

If a condition that is invariant in a row guards all effects, such as whether the cell of a sparse field is active, it is tested once for
each row.
"""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.analysis.loop_costs import rows_are_long
from spirograd.base.dtypes import DType, i64, unsigned
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.chunk_loops import ChunkLoop
from spirograd.ir.nodes import BufferRef, Kernel, LoopAttr, Op, Region, accesses_of
from spirograd.ir.rewrite import Rewriter, copied
from spirograd.transforms.loops.chunk_loop_rewriter import ChunkLoopRewriter
from spirograd.transforms.pass_context import PassContext


def split_rows(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Turn loops over chunks that divide their index by one invariant, and begin at 0 or above, into loops over rows around loops over
    columns.

    The index of the inner loop remains the flat index. Chunks may begin and end anywhere in a row, and extents may be negative.
    """
    return _SplitRows().kernel(kernel)


class _SplitRows(ChunkLoopRewriter):
    def chunk_loop(self, loop: ChunkLoop) -> Op | None:
        op, body = loop.loop, loop.body
        first = loop.task.regions[0].results[0]
        divisor = _divisor(body) if first.code is ops.const and first.attr >= 0 else None
        if divisor is None:
            return self.keep(op)
        b, (setup, extent), (begin, end, *initial) = self.b, divisor, self.args(op)
        rows = _Rows(b, copied(b, setup)[extent], begin, end)
        types = (*[a.type for a in initial], rows.type)
        _, *totals, start = b.begin(rows.type, *types)
        rows.enter(start)
        by_row = _ByRow(body.params[0], extent, rows.row, rows.first)
        inner = by_row.region(body)
        by_row.release()
        guarded = _guarded(inner, (extent, rows.row, rows.first))
        if guarded is None:
            results = rows.columns(totals, inner, op)
        else:
            b.ops += guarded.of_row
            b.begin()
            then = b.end(rows.columns(totals, guarded.body, op))
            b.begin()
            results = b.if_(guarded.guard, then, b.end(totals))
        attr = LoopAttr(row=int(extent.attr) if extent.code is ops.const else -1)
        regions = (b.end([*results, rows.stop]),)
        return b.append(Op(ops.for_, types, (rows.low, rows.high, *initial, begin), attr, regions, op.loc, op.primal))


def _divisor(body: Region) -> tuple[list[Op], Op] | None:
    """Return the first divisor of the index of ``body``, if it is invariant, and the operations that compute it."""
    index = body.params[0]
    if body.codes.isdisjoint((ops.idiv, ops.irem)):
        return None
    invariant: dict[Op, None] = {}
    for op in body.ops:
        if op.code in (ops.const, ops.slot) or (op.code.effect == "pure" and op.args and all(a in invariant for a in op.args)):
            invariant[op] = None
        elif op.code in (ops.idiv, ops.irem) and op.args[0] is index and op.args[1] in invariant:
            extent = op.args[1]
            return (_needed(extent, invariant), extent) if rows_are_long(extent) else None
    return None


def _needed(value: Op, known: dict[Op, None]) -> list[Op]:
    """Return ``value`` and the operations that compute it, in order."""
    needed = {value}
    for op in reversed(known):
        if op in needed:
            needed.update(op.args)
    return [op for op in known if op in needed]


class _Rows:
    """The rows of the iterations from ``begin`` to ``end``, numbered from ``low`` to ``high``. In the current row, ``row`` is the quotient
    of the index by ``extent``, ``first`` the index of the first column, and iterations ``start`` to ``stop`` are in the chunk.

    The loop over rows carries ``start``; division gives its column. LLVM would otherwise derive both from the number of the row, compute
    trip counts in more steps, and not unroll loops over columns."""

    def __init__(self, b: Builder, extent: Op, begin: Op, end: Op) -> None:
        assert isinstance(begin.type, DType)
        self.b, self.type, self.extent, self.end = b, begin.type, extent, end
        # If an extent is not constant, its absolute value is the number of columns, an unsigned number because of the smallest integer.
        self.counts_down = self.type.is_signed and extent.code is not ops.const
        self.length = b.emit(ops.abs_, extent) if self.counts_down else extent
        one = b.const(1, self.type)
        # In 64 bits, if that is wider: if LLVM knew that rows are not negative, it would widen values computed from them, such as indices
        # of gathers.
        wide = i64 if self.type.bits < i64.bits else self.type
        self.low = b.cast(b.emit(ops.idiv, b.cast(begin, wide), b.cast(self.length, wide)), self.type)
        self.high = b.emit(ops.add, b.emit(ops.idiv, b.emit(ops.sub, end, one), self.length), one)

    def enter(self, start: Op) -> None:
        """Compute the invariants of the row whose first iteration in the chunk is ``start``.

        They do not depend on the number of the row: LLVM would recognise it as an induction variable, and not vectorise loops over columns
        whose body has conditions on the row.
        """
        b = self.b
        self.row = b.emit(ops.idiv, start, self.extent)
        self.first = b.emit(ops.mul, self.row, self.extent)
        self.start = start
        steps = [b.emit(ops.sub, self.end, self.start), b.emit(ops.sub, self.length, b.emit(ops.irem, self.start, self.length))]
        if self.counts_down:
            natural = unsigned(self.type)
            fewest = b.emit(ops.min_, *[b.emit(ops.bitcast, x, type=natural) for x in steps])
            count = b.emit(ops.bitcast, fewest, type=self.type)
        else:
            count = b.emit(ops.min_, *steps)
        self.stop = b.emit(ops.add, self.start, count)

    def columns(self, totals: Sequence[Op], body: Region, op: Op) -> tuple[Op, ...]:
        """Emit the loop over the columns of the row that are in the chunk. Return the accumulators after it."""
        return self.b.for_(self.start, self.stop, totals, body, op.attr)


@dataclass(frozen=True, slots=True, eq=False)
class _Guarded:
    """A body that does nothing unless ``guard`` holds. The guard and the results of the operations ``of_row`` are invariant in a row."""

    guard: Op
    of_row: tuple[Op, ...]
    body: Region


def _guarded(body: Region, known: tuple[Op, ...]) -> _Guarded | None:
    """Return the guard of ``body`` if all of its effects are under one condition that is invariant in a row, as ``known`` values are; else
    None."""
    own = [op for op in body.ops[:-1] if op.code is not ops.result]
    if not own or own[-1].code is not ops.if_ or any(op.code is ops.if_ for op in own[:-1]):
        return None
    branch = own[-1]
    then, otherwise = branch.regions
    written = {accessed for op in body.walk() for effect, accessed in accesses_of(op) if effect != "read"}
    same: dict[Op, None] = dict.fromkeys(known)
    for op in own[:-1]:
        reads = op.code is ops.load and isinstance(op.attr, BufferRef) and not any(_may_be(op.attr, ref) for ref in written)
        if (op.code.effect == "pure" or reads) and all(a in same for a in op.args):
            same[op] = None
        elif op.code.effect != "pure":
            return None
    unchanged = dict(zip(otherwise.results, then.results))
    results = [then.results[r.attr] if r.code is ops.result and r.args[0] is branch else None for r in body.results]
    carried = [otherwise.results[r.attr] if r.code is ops.result and r.args[0] is branch else None for r in body.results]
    if branch.args[0] not in same or len(otherwise.ops) > 1 or carried != list(body.params[1:]) or not unchanged.keys() <= set(body.params):
        return None
    end = Op(body.ops[-1].code, body.ops[-1].type, tuple(r for r in results if r is not None), body.ops[-1].attr, (), body.ops[-1].loc)
    inside = tuple(op for op in own[:-1] if op not in same)
    of_row = tuple(op for op in own[:-1] if op in same)
    return _Guarded(branch.args[0], of_row, Region(body.params, (*inside, *then.ops[:-1], end)))


def _may_be(a: BufferRef, b: object) -> bool:
    """Return whether two accesses of independent iterations may alias."""
    return not isinstance(b, BufferRef) or a.slot == b.slot


class _ByRow(Rewriter):
    """A rewriter that replaces index / extent by the number of the row, and the remainder by index - first."""

    def __init__(self, index: Op, extent: Op, row: Op, first: Op) -> None:
        super().__init__()
        self.index, self.extent, self.row, self.first = index, extent, row, first
        self.handlers = {ops.idiv: self._idiv, ops.irem: self._irem}

    def _is_split(self, op: Op) -> bool:
        return op.args[0] is self.index and op.args[1] is self.extent

    def _idiv(self, op: Op) -> Op:
        return self.row if self._is_split(op) else self.copy(op)

    def _irem(self, op: Op) -> Op:
        return self.b.emit(ops.sub, self.index, self.first, attr="nsw") if self._is_split(op) else self.copy(op)
