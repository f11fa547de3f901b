"""Vector loops: a loop whose iterations are independent becomes a loop over several iterations at once.

Values that are uniform across lanes stay scalars. The last block of iterations may have spare lanes: they repeat the computation of the
first lane without effects, so one copy of the body suffices. CPUs without masked loads and stores run the last iterations one by one.

If few iterations pass a guard, the passing ones are listed first, strip by strip (stream compaction), so that they fill whole vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from spirograd.analysis.loop_costs import GUARD_STRIP
from spirograd.analysis.uniformity import Uniformity, is_adstack
from spirograd.base.dtypes import VOID, DType, i32, i64
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.integer_ranges import Range
from spirograd.ir.nodes import LoopAttr, Op, Reduction, Region, SharedRef
from spirograd.ir.ops import OpCode
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.loops import lane_memory
from spirograd.transforms.loops.grouped_values import GroupedValues
from spirograd.transforms.loops.lane_control import LaneControl
from spirograd.transforms.loops.lane_values import LaneValues

# Operations whose values in the first lane are also computed as scalars, if they grow by a constant from lane to lane.
_EVEN = frozenset((ops.add, ops.sub, ops.mul, ops.cast))


@dataclass(frozen=True, slots=True, eq=False)
class VectorLoop:
    """A plan of a vector loop: ``lanes`` iterations at once, with masks if the CPU has them (``masked``). ``functions``: the names of the
    functions with vector forms. ``ranges``: ranges of integers from outside of the loop."""

    plan: Uniformity
    reductions: Sequence[Reduction]
    lanes: int
    masked: bool
    functions: Collection[str]
    ranges: dict[Op, Range]


class LaneBody:
    """A builder of several iterations of ``plan`` at once."""

    def __init__(self, b: Builder, loop: VectorLoop, plan: Uniformity) -> None:
        self.v = LaneValues(b, plan, loop.lanes, loop.masked, loop.ranges)
        self._functions = loop.functions
        self._control = LaneControl(self.v, self.region)
        self._groups = None if plan.groups is None else GroupedValues(self.v, plan.groups)

    def take_part(self, slots: Op, full: Op) -> None:
        """Use ``slots`` lanes, an i64. ``full``: whether these are all lanes."""
        self.v.slots, self.v.full = slots, full

    def block(self, first: Op, end: Op | None, stride: Op, listed: Sequence[SharedRef], carried: Sequence[Op]) -> Sequence[Op]:
        """Build the iterations from ``first`` on, up to ``end`` (None: each lane has an iteration). Return their results.

        ``listed``: local memory that holds their indices, and values that they take after the ``carried`` ones.
        """
        v, body = self.v, self.v.plan.body
        self._number_lanes(first, end, stride, listed)
        kept = [v.like_first_lane(v.emit(ops.load_lanes, first, attr=(1, ref), type=v.lanes_of(ref.dtype))) for ref in listed[1:]]
        v.bind(body.params[1:], [*carried, *kept])
        values = self.region(body)
        if v.mask is None or not carried:
            return values
        return [v.choose(v.mask, new, old) for new, old in zip(values, carried)]

    def _number_lanes(self, first: Op, end: Op | None, stride: Op, listed: Sequence[SharedRef]) -> None:
        """Set the indices of the lanes, given the index of the first one, and the mask of the lanes that have an iteration."""
        v, index = self.v, self.v.plan.index
        assert isinstance(index.type, DType)
        numbers = v.numbers(range(v.lanes), index.type)
        start = v.b.cast(first, index.type)
        if self._groups is not None:
            self._groups.begin(index, start)
        elif end is not None:
            active = v.emit(ops.min_, v.emit(ops.sub, end, first), stride)
            v.mask = v.emit(ops.lt, v.numbers(range(v.lanes), i32), v.splat(v.b.cast(active, i32)))
            if listed:
                indices = v.emit(ops.load_lanes, first, attr=(1, listed[0]), type=numbers.type)
                v.env[index] = v.like_first_lane(indices)
                return
            numbers = v.choose(v.mask, numbers, v.splat(v.number(0, index.type)))
        v.firsts = {index: start}
        v.env[index] = v.emit(ops.add, v.splat(start), numbers, attr="nsw")

    def region(self, region: Region) -> Sequence[Op]:
        """Build the operations of ``region``. Return its results."""
        v = self.v
        for op in region.ops[:-1]:
            v.b.at(op)
            self._operation(op)
        varying = v.plan.yields[region]
        return [v.vector(r) if varies else v.scalar(r) for r, varies in zip(region.results, varying)]

    def _operation(self, op: Op) -> None:
        v, plan = self.v, self.v.plan
        if self._groups is not None and plan.grouped(op):
            self._groups.emit(op)
        elif op in plan.counts:
            v.env[op] = self._control.counters[plan.counts[op]]
        elif op.regions:
            self._control.emit(op)
        elif op.code is ops.result:
            v.env[op] = v.results[op.args[0]][op.attr]
        elif op.code is ops.store:
            lane_memory.store(v, op)
        elif op.code is ops.atomic:
            lane_memory.atomic(v, op)
        elif not plan.varies(op):
            v.env[op] = v.copy(op)
        elif op.code is ops.load:
            lane_memory.load(v, op)
        elif op.code.elementary or (op.code is ops.call and op.attr not in self._functions):
            lane_memory.lane_by_lane(v, op)
        else:
            v.env[op] = v.elementwise(op)
            if op.code in _EVEN and plan.lane_stride(op):
                v.firsts[op] = v.copy(op, [v.first(a) for a in op.args])


def loop_over_blocks(
    body: LaneBody, begin: Op, end: Op, stride: Op, carried: Sequence[Op], block: Callable[..., Sequence[Op]]
) -> Sequence[Op]:
    """Build a loop over blocks of ``stride`` iterations, from ``begin`` up to ``end`` (i64). ``block`` builds one, given its first
    iteration and the loop-carried values, of which ``carried`` are the initial ones. Return the final ones."""
    v = body.v
    b = v.b
    missing = b.emit(ops.sub, b.emit(ops.add, end, stride), b.const(1, i64))
    count = b.emit(ops.idiv, b.emit(ops.sub, missing, begin), stride)

    def once(_: Op, first: Op, *values: Op) -> Sequence[Op]:
        results = block(first, *values)
        return [b.emit(ops.add, first, stride, attr="nsw"), *results]

    region = v.block([i64, i64, *[c.type for c in carried]], once)
    return b.for_(b.const(0, i64), count, [begin, *carried], region, LoopAttr(vectorise="vectors"))[1:]


def list_passing(body: LaneBody, listed: Sequence[SharedRef], first: Op, end: Op, stride: Op, count: Op) -> Op:
    """Build one block of the guard ``body``: append the iterations from ``first`` on, up to ``end``, that pass to the ``count`` ones in
    ``listed``, by index and by further values that the guard yields. Return how many there are then."""
    b = body.v.b
    passes, *values = body.block(first, end, stride, (), ())
    assert body.v.mask is not None
    passing = b.emit(ops.and_, passes, body.v.mask)
    for ref, value in zip(listed, (body.v.env[body.v.plan.index], *values)):
        b.emit(ops.store_compressed, count, value, passing, attr=ref, type=VOID)
    bits = b.emit(ops.ballot_lanes, passing, type=i64)
    return b.emit(ops.add, count, b.emit(ops.popcnt, bits))


def build_vector_loop(b: Builder, loop: VectorLoop, begin: Op, end: Op, initial: Sequence[Op]) -> Sequence[Op]:
    """Append to ``b`` the iterations of ``loop`` from ``begin`` up to ``end``. Return the accumulators, whose initial values are
    ``initial``."""
    built = _Loop(b, loop)
    return built.masked(begin, end, initial) if loop.masked else built.unmasked(begin, end, initial)


class _Loop:
    """A builder of a vector loop."""

    def __init__(self, b: Builder, loop: VectorLoop) -> None:
        self.b, self.loop = b, loop
        self.body = LaneBody(b, loop, loop.plan)
        self.stride, self.full = b.const(loop.lanes, i64), None
        if any(map(is_adstack, loop.plan.body.walk())):
            slots = b.emit(ops.lane_slots, type=i32)
            self.stride, self.full = b.cast(slots, i64), b.emit(ops.eq, slots, b.const(loop.lanes))
            self.body.take_part(self.stride, self.full)

    def _neutral(self) -> list[Op]:
        return [self.body.v.splat(self.b.const(r.start, r.dtype)) for r in self.loop.reductions]

    def masked(self, begin: Op, end: Op, initial: Sequence[Op]) -> Sequence[Op]:
        """Build the loop for CPUs with masked loads and stores. It counts in 64 bits, in which the last block cannot overflow."""
        begin, end = (self.b.cast(bound, i64) for bound in (begin, end))
        if self.loop.plan.guard is not None:
            values = self._strips(begin, end, self.loop.plan.guard)
        else:
            bound = None if self.loop.plan.groups is not None else end
            values = loop_over_blocks(
                self.body,
                begin,
                end,
                self.stride,
                self._neutral(),
                lambda first, *old: self.body.block(first, bound, self.stride, (), old),
            )
        return self._totals(values, initial)

    def unmasked(self, begin: Op, end: Op, initial: Sequence[Op]) -> Sequence[Op]:
        """Build a loop over full vectors, then a loop over the remaining iterations."""
        b, first, last = self.b, self.b.cast(begin, i64), self.b.cast(end, i64)
        zero = b.const(0, i64)
        steps = b.emit(ops.max_, b.emit(ops.and_, b.emit(ops.sub, last, first), b.const(-self.loop.lanes, i64)), zero)
        if self.full is not None:
            steps = b.emit(ops.select, self.full, steps, zero)
        middle = b.emit(ops.add, first, steps)
        lanes = b.const(self.loop.lanes, i64)
        values = loop_over_blocks(
            self.body, first, middle, lanes, self._neutral(), lambda start, *old: self.body.block(start, None, lanes, (), old)
        )
        index = self.loop.plan.index.type
        assert isinstance(index, DType)
        rest = _OneByOne(self.stride).region_once(self.loop.plan.body)
        return b.for_(b.cast(middle, index), end, self._totals(values, initial), rest)

    def _totals(self, vectors: Sequence[Op], initial: Sequence[Op]) -> list[Op]:
        totals = []
        for reduction, vector, total in zip(self.loop.reductions, vectors, initial):
            for k in range(self.loop.lanes):
                total = self.b.emit(ops.COMBINE[reduction.kind], total, self.b.emit(ops.extract, vector, self.b.const(k)))
            totals.append(total)
        return totals

    # --- guarded loops ---

    def _strips(self, begin: Op, end: Op, guard: Uniformity) -> Sequence[Op]:
        """Build a loop over strips, which lists the iterations that pass ``guard``, then runs them."""
        b, listed = self.b, SharedRef("listed", i32, GUARD_STRIP + self.loop.lanes)

        def strip(first: Op, *old: Op) -> Sequence[Op]:
            stop = b.emit(ops.min_, b.emit(ops.add, first, b.const(GUARD_STRIP, i64)), end)
            count = self._list(guard, listed, first, stop)
            zero = b.const(0, i64)
            return loop_over_blocks(
                self.body, zero, count, self.stride, old, lambda at, *values: self.body.block(at, count, self.stride, (listed,), values)
            )

        return loop_over_blocks(self.body, begin, end, b.const(GUARD_STRIP, i64), self._neutral(), strip)

    def _list(self, guard: Uniformity, listed: SharedRef, begin: Op, end: Op) -> Op:
        """List the iterations from ``begin`` up to ``end`` that pass ``guard``. Return their number."""
        b, body = self.b, LaneBody(self.b, self.loop, guard)
        lanes = b.const(self.loop.lanes, i64)
        (count,) = loop_over_blocks(
            body, begin, end, lanes, [b.const(0, i64)], lambda first, count: [list_passing(body, (listed,), first, end, lanes, count)]
        )
        return count


class _OneByOne(Rewriter):
    """A copy of the body of a loop for single iterations, which use the thread slot of the first lane of ``slots``."""

    def __init__(self, slots: Op) -> None:
        super().__init__()
        self.slots = slots
        self.handlers: dict[OpCode, Callable[[Op], Op | None]] = {ops.load: self._access, ops.store: self._access}

    def region_once(self, body: Region) -> Region:
        self.cloning = 1
        return self.region(body)

    def _access(self, op: Op) -> Op:
        if not is_adstack(op):
            return self.copy(op)
        index, *value = self.args(op)
        place = self.b.emit(ops.mul, self.b.cast(index, i64), self.slots, attr="nsw")
        return self.b.emit(op.code, place, *value, attr=op.attr, type=op.type)
