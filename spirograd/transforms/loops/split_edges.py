"""Index-set splitting of loops whose first and last iterations differ, as in stencils that skip, clamp or wrap at the ends of rows.

Conditions such as `0 < j` and `j < n - 1`, where ``j`` counts the iterations, are known for all but a few iterations at either end.
Therefore the iterations in between run in a loop of their own without the conditions, which LLVM vectorises; with the conditions it would
emit gathers and masked stores, which some CPUs execute lane by lane. The others run one by one. This changes the order of iterations, which
is unspecified in a parallel loop.
"""

from __future__ import annotations

from spirograd.analysis.loop_costs import EDGE_MARGIN, is_worth_copying
from spirograd.base.dtypes import DType, i64
from spirograd.base.records import dataclass, replace
from spirograd.ir import ops
from spirograd.ir.chunk_loops import ChunkLoop
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.ir.ops import OpCode
from spirograd.ir.rewrite import Rewriter, copied
from spirograd.transforms.loops.chunk_loop_rewriter import ChunkLoopRewriter
from spirograd.transforms.pass_context import PassContext

# Operations whose results are close to an operand that is an extent: the extent less one, or guarded against zero.
_NEAR = frozenset((ops.add, ops.sub, ops.min_, ops.max_, ops.bitcast, ops.select, ops.lt, ops.le, ops.eq))
# Operations that become constant between the edges.
_CONDITIONS = frozenset((ops.lt, ops.le, ops.gt, ops.ge, ops.eq, ops.ne, ops.min_, ops.max_, ops.irem, ops.and_))
_EFFECTS = frozenset(("pure", "read", "write", "control", "structure"))
_MIRRORED = {ops.lt: ops.gt, ops.le: ops.ge, ops.gt: ops.lt, ops.ge: ops.le, ops.eq: ops.eq, ops.ne: ops.ne}
# Comparisons of the counter with a number that all but the first iterations have passed: the result for these, and whether they must have
# passed it by one.
_AFTER = {ops.lt: (False, 0), ops.le: (False, 1), ops.gt: (True, 1), ops.ge: (True, 0), ops.eq: (False, 1), ops.ne: (True, 1)}
# The same for a number that only the last iterations reach, with the distance by which the other iterations may exceed "less".
_BEFORE = {ops.lt: (True, 0), ops.le: (True, 1), ops.gt: (False, 1), ops.ge: (False, 0), ops.eq: (False, 0), ops.ne: (True, 0)}


def split_edges(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Split loops over chunks that LLVM may vectorise in two, over the iterations between the edges and over the others, if this makes
    conditions constant."""
    return _SplitEdges().kernel(kernel)


class _SplitEdges(ChunkLoopRewriter):
    def chunk_loop(self, loop: ChunkLoop) -> Op:
        attr = loop.loop.attr
        splits = attr.independent and not (attr.vectorise or attr.reductions)
        edges = _edges(loop) if splits else None
        return self.keep(loop.loop) if edges is None else self._split(loop.loop, edges)

    def _split(self, op: Op, edges: _Edges) -> Op:
        b, (start, stop), body = self.b, self.args(op), op.regions[0]
        index = start.type
        assert isinstance(index, DType)
        copies = copied(b, edges.setup)
        origin = b.const(0, i64) if edges.first is None else b.cast(self.value(edges.first), i64)
        begin = b.emit(ops.add, origin, b.const(edges.low, i64))
        wide_start, wide_stop = b.cast(start, i64), b.cast(stop, i64)
        begin = b.emit(ops.max_, b.emit(ops.min_, begin, wide_stop), wide_start)
        end = wide_stop
        for limit, offset in edges.limits:
            size = b.const(limit, i64) if isinstance(limit, int) else b.cast(copies[limit], i64)
            least = b.emit(ops.add, origin, b.emit(ops.sub, size, b.const(offset, i64)))
            end = b.emit(ops.min_, end, least)
        end = b.emit(ops.max_, end, begin)
        b.for_(b.cast(begin, index), b.cast(end, index), (), edges.inside, op.attr)
        before = b.emit(ops.sub, begin, wide_start)
        others = b.emit(ops.add, before, b.emit(ops.sub, wide_stop, end))
        shift = b.emit(ops.sub, end, before)
        (number,) = b.begin(i64)
        at_start = b.emit(ops.lt, number, before)
        own = b.emit(ops.add, number, b.emit(ops.select, at_start, wide_start, shift))
        self.inline(body, (b.cast(own, index),), clone=True)
        rest = b.end()
        return b.emit(ops.for_, b.const(0, i64), others, attr=replace(op.attr, vectorise="rest"), type=(), regions=(rest,))


@dataclass(frozen=True, slots=True, eq=False)
class _Edges:
    """The split of a loop. ``inside``: the body for the iterations whose counter, the index minus ``first``, is at least ``low``, and less
    than each limit (an invariant value or a number) minus its offset. ``setup``: operations that compute the limits."""

    inside: Region
    first: Op | None
    low: int
    limits: tuple[tuple[Op | int, int], ...]
    setup: tuple[Op, ...]


def _edges(loop: ChunkLoop) -> _Edges | None:
    """Return the split of ``loop``, or None if a split gains nothing.

    The counter is less than the number of columns, or than the bound of the task, where these are constant.
    """
    body, (end,) = loop.body, loop.task.regions[0].results[1:2]
    index = body.params[0].type
    assert isinstance(index, DType)
    codes = body.codes
    if not index.is_signed or len(body.params) > 1 or codes.isdisjoint(_CONDITIONS) or any(code.effect not in _EFFECTS for code in codes):
        return None
    if not is_worth_copying(body) or (loop.around is not None and loop.first is None):  # no column is compared
        return None
    extent = (loop.columns or None) if loop.around is not None else end.attr if end.code is ops.const else None
    rewriter = _Inside(body, loop.first, extent)
    inside = rewriter.region(body)
    rewriter.release()
    if not rewriter.has_edges:
        return None
    limits = tuple(rewriter.limits.items())
    wanted = {limit for limit, _ in limits if isinstance(limit, Op)}
    for op in reversed(rewriter.shapes):
        if op in wanted:
            wanted.update(op.args)
    return _Edges(inside, loop.first, rewriter.low, limits, tuple([op for op in rewriter.shapes if op in wanted]))


class _Inside(Rewriter):
    """A rewriter that replaces conditions that are known between the edges, and collects the positions of the edges.

    ``offsets``: values that equal the counter plus a constant there. ``shapes``: values computed from extents of arrays. Programs compare
    an index with them near the end of a row, not in the middle.
    """

    def __init__(self, body: Region, first: Op | None, extent: int | None) -> None:
        super().__init__()
        self.index, self.first, self.extent = body.params[0], first, extent
        self.low, self.limits, self.has_edges = 0, dict[Op | int, int](), False
        self.offsets: dict[Op, int] = {} if first is not None else {self.index: 0}
        self.shapes: dict[Op, None] = {}
        for op in body.walk():
            of_shape = op.code is ops.slot and op.attr.kind == "shape"
            if of_shape or op.code is ops.const or (op.code in _NEAR and self.shapes.keys() >= set(op.args)):
                self.shapes[op] = None
        self.handlers = {
            **dict.fromkeys(_MIRRORED, self._compare),
            **dict.fromkeys((ops.add, ops.sub), self._shift),
            **dict.fromkeys((ops.min_, ops.max_), self._choose),
            **dict.fromkeys((ops.irem, ops.and_), self._wrap),
        }

    def _after(self, offset: int, number: int, strict: int = 0) -> bool:
        """Make the iterations begin where counter + ``offset`` >= (> if ``strict``) ``number``, if nearly all iterations remain."""
        if offset > 0 or abs(number) > EDGE_MARGIN:  # counter + offset could overflow if there is no limit
            return False
        self.low = max(self.low, number - offset + strict)
        self.has_edges = True
        return True

    def _before(self, offset: int, limit: Op, closer: int = 0) -> bool:
        """Make the iterations end where counter + ``offset`` reaches (passes, if ``closer``) ``limit``, if nearly all iterations remain."""
        if limit.code is ops.const:
            if not self._is_last(limit.attr):
                return False
            self._limit(limit.attr, offset - closer)
            return True
        if limit not in self.shapes:
            return False
        self._limit(limit, offset - closer)
        return True

    def _is_last(self, number: int) -> bool:
        """Return whether only the last iterations reach ``number``. If the extent is unknown, large numbers are assumed to be near the
        end."""
        return number > EDGE_MARGIN if self.extent is None else abs(self.extent - number) <= EDGE_MARGIN

    def _limit(self, limit: Op | int, offset: int) -> None:
        self.limits[limit] = max(offset, self.limits.get(limit, offset))
        self.has_edges = True

    def _shift(self, op: Op) -> Op:
        a, b = op.args
        if op.code is ops.sub and a is self.index and b is self.first:
            self.offsets[op] = 0
        elif a in self.offsets and b.code is ops.const and abs(b.attr) <= EDGE_MARGIN:
            self.offsets[op] = self.offsets[a] + (b.attr if op.code is ops.add else -b.attr)
        elif b in self.offsets and op.code is ops.add and a.code is ops.const and abs(a.attr) <= EDGE_MARGIN:
            self.offsets[op] = self.offsets[b] + a.attr
        return self.copy(op)

    def _compare(self, op: Op) -> Op:
        (a, b), code = op.args, op.code
        if b in self.offsets:
            a, b, code = b, a, _MIRRORED[code]
        known: bool | None = None
        if a in self.offsets:
            known = self._outcome(code, self.offsets[a], b)
        elif code is ops.lt and a.code is ops.xor and b.code is ops.const and b.attr == 0 and self._same_sign(*a.args):
            known = False
        return self.copy(op) if known is None else self.b.const(known, op.type)  # type: ignore[arg-type]

    def _outcome(self, code: OpCode, offset: int, other: Op) -> bool | None:
        known, strict = _AFTER[code]
        if other.code is ops.const and self._after(offset, other.attr, strict):
            return known
        known, closer = _BEFORE[code]
        return known if self._before(offset, other, closer) else None

    def _same_sign(self, a: Op, b: Op) -> bool:
        """Return whether both are non-negative: one is the counter plus a constant, the other the size around which it wraps."""
        value, size = (a, b) if a in self.offsets else (b, a)
        return value in self.offsets and self._within(self.offsets[value], size)

    def _within(self, offset: int, size: Op | int) -> bool:
        """Make 0 <= counter + ``offset`` < ``size`` hold."""
        if abs(offset) > EDGE_MARGIN:
            return False
        if isinstance(size, Op):
            if not self._before(offset, size):
                return False
        elif not self._is_last(size):
            return False
        else:
            self._limit(size, offset)
        self.low = max(self.low, -offset)
        return True

    def _choose(self, op: Op) -> Op:
        value, other = op.args
        if other in self.offsets:
            value, other = other, value
        if value not in self.offsets:
            return self.copy(op)
        smaller = self._outcome(ops.le, self.offsets[value], other)
        if smaller is None:
            return self.copy(op)
        chosen = value if smaller == (op.code is ops.min_) else other
        if chosen is value:
            self.offsets[op] = self.offsets[value]
        return self.value(chosen)

    def _wrap(self, op: Op) -> Op:
        """Rewrite the remainder of a division by a size, which may also be a power of two with the remainder as a mask."""
        value, size = op.args
        mask = op.code is ops.and_
        if value not in self.offsets or (mask and (size.code is not ops.const or size.attr & (size.attr + 1))):
            return self.copy(op)
        if not self._within(self.offsets[value], size.attr + 1 if mask else size):
            return self.copy(op)
        self.offsets[op] = self.offsets[value]
        return self.value(value)
