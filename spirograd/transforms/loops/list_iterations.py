"""Listing of iterations: a guarded nest of serial loops becomes loops without branches that are hard to predict.

The nest evaluates its guard for several iterations at once, in lanes of vectors, and lists those that pass (stream compaction). When the
list is full, and at the end, the listed iterations run: first their independent parts, in lanes, which store what the ordered parts use in
local arrays (scalar expansion); then the ordered parts, one by one in the order of the loop. So sums round as they do in the loop, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spirograd.analysis.fission import Fission
from spirograd.analysis.guarded_nests import GuardedNest, find_guarded_nest
from spirograd.analysis.loop_costs import LISTED, MOST_KNOWN, compresses, has_masks, is_worth_listing, takes_vectors
from spirograd.analysis.uniformity import Diverges, Uniformity
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, DType, Type, i32, i64, u1
from spirograd.base.options import CompileOptions
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.chunk_loops import ChunkLoop
from spirograd.ir.integer_ranges import Range
from spirograd.ir.nodes import Op, Region, SharedRef
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.loops.vector_loops import LaneBody, VectorLoop, list_passing, loop_over_blocks

# A builder of the innermost loop, given its bounds and what it carries; one of the levels of a nest from some depth on.
Innermost = Callable[[Op, Op, Sequence[Op]], Sequence[Op]]
Deeper = Callable[[int, Sequence[Op], Innermost], Sequence[Op]]


@dataclass(frozen=True, slots=True, eq=False)
class ListedNest:
    """A plan for ``nest``: which values of its guard, and of the independent part of an iteration, vary between iterations."""

    nest: GuardedNest
    guard: Uniformity
    independent: Uniformity


def find_listed_nests(loop: ChunkLoop, options: CompileOptions, caps: Capabilities) -> list[ListedNest]:
    """Return the guarded nests in the body of ``loop`` whose iterations are worth a list."""
    if not takes_vectors(options) or not has_masks(caps) or options.check_bounds or options.check_overflow:
        return []
    most_known = MOST_KNOWN if compresses(caps) else 0
    found: list[ListedNest] = []

    def search(region: Region, earlier: tuple[Op, ...]) -> None:
        for k, op in enumerate(region.ops):
            nest = find_guarded_nest(op, (*earlier, *region.ops[:k]), most_known) if op.code is ops.for_ else None
            listed = _planned(nest) if nest is not None and is_worth_listing(nest) else None
            if listed is not None:
                found.append(listed)
                continue
            for inner in op.regions:
                search(inner, (*earlier, *region.ops[:k]))

    if loop.body.codes & {ops.for_}:
        search(loop.body, ())
    return found


def _planned(nest: GuardedNest) -> ListedNest | None:
    try:
        guard = Uniformity(nest.guard)
        return ListedNest(nest, guard, Uniformity(nest.fission.independent, guard))
    except Diverges:
        return None


class ListIterations(Rewriter):
    """A rewriter of the body of a loop over a chunk, in which ``nests`` are replaced, at the cursor of ``b``. ``lanes``: how many
    iterations run at once; ``functions``, ``ranges``: as in `VectorLoop`."""

    def __init__(self, b: Builder, nests: Sequence[ListedNest], lanes: int, functions: frozenset[str], ranges: dict[Op, Range]) -> None:
        super().__init__()
        self.b = b
        self.nests = {listed.nest.loop: listed for listed in nests}
        self.lanes, self.functions, self.ranges = lanes, functions, ranges
        self.results: dict[Op, Sequence[Op]] = {}  # results of loops that were replaced
        self.handlers = {ops.for_: self._for, ops.result: self._result}
        self._count = 0

    def _for(self, op: Op) -> Op | None:
        listed = self.nests.get(op)
        if listed is None:
            return self.copy(op)
        self._count += 1
        self.results[op] = _Nest(self, listed, self._count).build()
        return None

    def _result(self, op: Op) -> Op:
        results = self.results.get(op.args[0])
        return self.copy(op) if results is None else results[op.attr]


class _Nest:
    """A builder of a nest, at the cursor of ``rewriter``. ``number``: the number of the nest, in names of local memory."""

    def __init__(self, rewriter: ListIterations, listed: ListedNest, number: int) -> None:
        self.rewriter, self.plans, self.nest, self.b = rewriter, listed, listed.nest, rewriter.b
        self.number = number
        length = LISTED + rewriter.lanes
        fission = self.nest.fission
        kept = [fission.index.type, *[value.type for value in fission.known]]
        self.listed = [SharedRef(f"listed{number}.{k}", _dtype(t), length) for k, t in enumerate(kept)]
        self.arrays = [SharedRef(f"value{number}.{k}", _dtype(v.type), length) for k, v in enumerate(fission.independent.results)]

    def build(self) -> Sequence[Op]:
        """Build the nest. Return the final loop-carried values."""
        state = [self.b.const(0, i64), *self.rewriter.args(self.nest.loop)[2:]]
        count, *carried = self._over_ranges(state) if self.nest.most_ranges else self._level(0, state, self._list)
        return self._run(count, carried)

    def _level(self, depth: int, state: Sequence[Op], innermost: Innermost, deeper: Deeper | None = None) -> Sequence[Op]:
        """Build the levels of the nest from ``depth`` on, which carry ``state``. ``innermost`` builds the last one, given its bounds,
        ``deeper`` the others."""
        b, rewriter, level = self.b, self.rewriter, self.nest.levels[depth]
        if depth + 1 == len(self.nest.levels):
            begin, end = rewriter.args(level.op)[:2]
            return innermost(begin, end, state)

        def inside(state: Sequence[Op]) -> Region:
            rewriter.visit_all(level.others)
            return b.end((deeper or self._level)(depth + 1, state, innermost))

        if not level.is_loop:
            condition = rewriter.value(level.op.args[0])
            b.begin()
            then = inside(state)
            b.begin()
            return b.if_(condition, then, b.end(state))
        index, *_ = level.body.params
        begin, end = rewriter.args(level.op)[:2]
        rewriter.env[index], *inner = b.begin(index.type, *_types(state))
        return b.for_(begin, end, state, inside(inner), level.op.attr)

    # --- ranges of the innermost loop ---

    def _over_ranges(self, state: Sequence[Op]) -> Sequence[Op]:
        """Build a loop over the ranges of the innermost loop, after code that lists them: those that follow each other are one."""
        b = self.b
        begins, ends = (SharedRef(f"{name}{self.number}", i32, self.nest.most_ranges + 1) for name in ("begins", "ends"))

        def note(begin: Op, end: Op, noted: Sequence[Op]) -> Sequence[Op]:
            """Note a range without branches. Element 0 takes the ends of empty ranges before the first one."""
            count, last = noted
            some = b.emit(ops.lt, begin, end)
            new = b.emit(ops.and_, some, b.emit(ops.or_, b.emit(ops.ne, begin, last), b.emit(ops.eq, count, b.const(0))))
            following = b.emit(ops.add, count, b.const(1))
            b.store(begins, following, begin)
            count, last = b.emit(ops.select, new, following, count), b.emit(ops.select, some, end, last)
            b.store(ends, count, last)
            return [count, last]

        count, _ = self._unrolled(0, [b.const(0), b.const(0)], note)
        number, *inner = b.begin(i32, *_types(state))
        body = b.end(self._list(b.load(begins, number), b.load(ends, number), inner))
        return b.for_(b.const(1), b.emit(ops.add, count, b.const(1)), state, body)

    def _unrolled(self, depth: int, state: Sequence[Op], innermost: Innermost) -> Sequence[Op]:
        """Build the levels from ``depth`` on, whose loops have constant bounds: LLVM computes the parts of the index that are constant."""
        b, rewriter, level = self.b, self.rewriter, self.nest.levels[depth]
        if not level.is_loop or depth + 1 == len(self.nest.levels):
            return self._level(depth, state, innermost, self._unrolled)
        index, *_ = level.body.params
        rewriter.cloning += 1
        for k in range(int(level.op.args[0].attr), int(level.op.args[1].attr)):
            rewriter.env[index] = b.const(k, _dtype(index.type))
            rewriter.visit_all(level.others)
            state = self._unrolled(depth + 1, state, innermost)
        rewriter.cloning -= 1
        return state

    # --- guards ---

    def _list(self, begin: Op, end: Op, state: Sequence[Op]) -> Sequence[Op]:
        """Build the innermost loop: list the iterations that pass the guard, and run them whenever the list is full. ``state``: the number
        of listed iterations, and the loop-carried values."""
        b, body = self.b, self._lanes(self.plans.guard)
        begin, end = b.cast(begin, i64), b.cast(end, i64)
        stride = b.const(self.rewriter.lanes, i64)

        def block(first: Op, count: Op, *carried: Op) -> Sequence[Op]:
            count = list_passing(body, self.listed, first, end, stride, count)
            full = b.emit(ops.ge, count, b.const(LISTED, i64))
            b.begin()
            run = b.end([b.const(0, i64), *self._run(count, carried)])
            b.begin()
            return b.if_(full, run, b.end([count, *carried]))

        return loop_over_blocks(body, begin, end, stride, state, block)

    # --- listed iterations ---

    def _run(self, count: Op, carried: Sequence[Op]) -> Sequence[Op]:
        """Run the ``count`` listed iterations. Return the loop-carried values."""
        b, body = self.b, self._lanes(self.plans.independent)
        zero, stride = b.const(0, i64), b.const(self.rewriter.lanes, i64)

        def block(first: Op) -> Sequence[Op]:
            for array, value in zip(self.arrays, body.block(first, count, stride, self.listed, ())):
                b.emit(ops.store_lanes, first, value, attr=(1, array), type=VOID)
            return ()

        if self.arrays:
            loop_over_blocks(body, zero, count, stride, (), block)
        number, *inner = b.begin(i64, *_types(carried))
        ordered = _OrderedPart(self.rewriter, self.nest.fission, self.arrays, number)
        ordered.env[self.nest.fission.index] = b.load(self.listed[0], number)
        return b.for_(zero, count, carried, b.end(ordered.results(inner)))

    def _lanes(self, plan: Uniformity) -> LaneBody:
        rewriter = self.rewriter
        body = LaneBody(self.b, VectorLoop(plan, (), rewriter.lanes, True, rewriter.functions, rewriter.ranges), plan)
        body.v.env.update(rewriter.env)
        return body


class _OrderedPart(Rewriter):
    """A builder of the ordered part of the listed iteration ``number``, which loads the values of the independent part from ``arrays``."""

    def __init__(self, outside: Rewriter, fission: Fission, arrays: Sequence[SharedRef], number: Op) -> None:
        super().__init__()
        self.b, self.env, self.cloning = outside.b, dict(outside.env), 1
        self.fission, self.number = fission, number
        self.arrays = dict(zip(fission.passed, arrays))
        self.inside = {op for op in fission.body.walk() if op.code is ops.const}
        self.branches: dict[Op, dict[int, Op]] = {}

    def results(self, carried: Sequence[Op]) -> list[Op]:
        self.env.update(zip(self.fission.carried, carried))
        self._operations(self.fission.body)
        return [self._use(value) for value in self.fission.results]

    def args(self, op: Op) -> tuple[Op, ...]:
        return tuple([self._use(a) for a in op.args])

    def region(self, region: Region) -> Region:
        kept = dict(self.env)
        new = super().region(region)
        self.env = kept
        return new

    def _operations(self, region: Region) -> None:
        for op in region.ops[:-1]:
            if op in self.fission.mixed:
                self._branch(op)
            elif op in self.fission.ordered:
                branch = self.branches.get(op.args[0]) if op.code is ops.result else None
                if branch is None:
                    self.visit(op)
                else:
                    self.env[op] = branch[op.attr]

    def _branch(self, op: Op) -> None:
        ordered = [k for k in range(len(op.regions[0].results)) if any(r.results[k] in self.fission.ordered for r in op.regions)]
        condition, kept = self._use(op.args[0]), self.env
        regions = []
        for region in op.regions:
            self.env = dict(kept)
            self.b.begin()
            self._operations(region)
            regions.append(self.b.end([self._use(region.results[k]) for k in ordered]))
        self.env = kept
        self.branches[op] = dict(zip(ordered, self.b.if_(condition, *regions)))

    def _use(self, value: Op) -> Op:
        """Return the value that stands for ``value`` here: from outside, of the ordered part, or from memory."""
        if value not in self.env and value in self.arrays:
            stored = self.b.load(self.arrays[value], self.number)
            self.env[value] = self.b.emit(ops.ne, stored, self.b.const(0, i32)) if value.type is u1 else stored
        elif value not in self.env and value in self.inside:
            self.env[value] = self.b.append(Op(ops.const, value.type, (), value.attr, (), value.loc))
        return self.value(value)


def _types(values: Sequence[Op]) -> list[Type]:
    return [value.type for value in values]


def _dtype(t: Type) -> DType:
    assert isinstance(t, DType)
    return t
