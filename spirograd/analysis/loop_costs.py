"""Cost models of loops of the CPU: the decisions of the compiler, and the estimates that they are made from. None changes what a loop
computes.

Each decision is a function of this file, or of the pass that takes the number, and each number is a constant of this file:

| decision | function, or number | made from |
|---|---|---|
| whether to wake the workers, and for how large chunks | `cost_of` | weights of the operations, trip counts |
| a variant without atomics | `gains_without_atomics` | `cost_of` with atomics and without |
| copies of few elements for blocks of iterations | `is_dominated_by_atomics` | the same |
| rows for a loop over several axes | `rows_are_long` | the last extent, if it is constant |
| lanes of vectors, built by `vectorise` | `lanes_of`, `lane_gain` | arithmetic against accesses that are not contiguous, by weights |
| groups of lanes that share a value | `MOST_GROUPS` | the number of groups |
| a list of the iterations that pass a guard | `GUARD_STRIP` | the number of iterations that are tested together |
| a list of the iterations of a guarded nest that pass | `is_worth_listing`, `LISTED` | arithmetic behind the guard; loads in it |
| scalar iterations, where LLVM would vectorise | `prefers_scalar_iterations` | wide accesses against arithmetic |
| loops of their own for the edges of rows | `is_worth_copying`, `EDGE_MARGIN` | operations; distance of conditions from the ends |
| stores past the caches | `bypasses_caches` | bytes written, alignment; operations of the body |
| partitions of a large body | `is_large`, `cuts`, `block_of` | operations, values that cross, bytes that these take on the stack |
| functions for parts of large code | `is_large_operation`, `cuts` | operations, and how many of them are branches |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from spirograd.analysis.guarded_loops import find_guarded_loop
from spirograd.analysis.lane_groups import whole_vectors
from spirograd.analysis.strides import stride
from spirograd.analysis.uniformity import Diverges, Uniformity, is_adstack, is_print, is_report
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import i32
from spirograd.base.options import CompileOptions
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.chunk_loops import ChunkLoop
from spirograd.ir.nodes import ChunkAttr, Kernel, Op, Region, callee_of

if TYPE_CHECKING:
    from spirograd.analysis.guarded_nests import GuardedNest

# --- work of an iteration: whether to wake the workers ----------------------------------------------------------------------------------

# Units: roughly one scalar instruction. Operations that are not listed count 1; operations that are no instruction count 0.
_WEIGHTS = {
    **dict.fromkeys((ops.const, ops.result, ops.thread_slot, ops.slot, ops.bitcast), 0),
    **dict.fromkeys((ops.div, ops.idiv, ops.irem, ops.sqrt, ops.rsqrt), 6),
    **dict.fromkeys(ops.ELEMENTARY, 25),
    **dict.fromkeys((ops.atomic, ops.cas), 80),  # 20 cycles without overlap
    ops.barrier: 20,
    **dict.fromkeys((ops.extract, ops.insert), 3),
}
# An atomic as a load, an operation and a store.
_UPDATE = 10
# The assumed trip count of a loop whose bounds are not constants. It is high, because waking workers without need costs microseconds, but
# leaving them asleep may cost any amount.
_UNKNOWN_TRIPS = 256
# The limit of estimates. Beyond it every launch is distributed; it keeps products far from overflow.
_LIMIT = 1 << 24


def trips(op: Op) -> int:
    """Return the trip count of the loop ``op``, or an estimate."""
    if op.code is ops.for_ and op.args[0].code is ops.const and op.args[1].code is ops.const:
        return max(int(op.args[1].attr) - int(op.args[0].attr), 0)
    return _UNKNOWN_TRIPS


def costs_of_calls(kernel: Kernel) -> dict[str, int]:
    """Return the units of work of a call of each function of ``kernel``."""
    calls: dict[str, int] = {}
    for function in kernel.functions:
        calls[function.name] = cost_of(function.body, calls)
    return calls


def cost_of(region: Region, calls: Mapping[str, int], uncontended: bool = False) -> int:
    """Return the units of work of running ``region`` once (at least 1); both branches of an `if` count. ``calls``: the work of functions
    (see `costs_of_calls`). ``uncontended``: whether no update is atomic."""
    total = 0
    for op in region.ops[:-1]:
        code = op.code
        total += _UPDATE if uncontended and code is ops.atomic else _WEIGHTS.get(code, 1)
        if op.regions:
            work = sum([cost_of(r, calls, uncontended) for r in op.regions])
            total += work * trips(op) if code in (ops.for_, ops.while_) else work
        elif code in (ops.call, ops.call_memory):
            total += calls.get(callee_of(op) or "", _LIMIT)  # recursive functions are not known yet
    return min(max(total, 1), _LIMIT)


# --- uncontended variants: whether one thread may run a loop without atomics -------------------------------------------------------------

# The estimated gain from which on a second version of a task is worth its compile time.
_GAIN = 2


def gains_without_atomics(chunks: ChunkAttr) -> bool:
    """Return whether atomics take most of the time of a task."""
    return 0 < chunks.uncontended_work * _GAIN <= chunks.work


def is_dominated_by_atomics(body: Region) -> bool:
    """Return whether atomics take most of the time of ``body``, which has no calls."""
    return cost_of(body, {}, uncontended=True) * _GAIN <= cost_of(body, {})


# --- rows and their edges: whether a loop becomes several --------------------------------------------------------------------------------

# Shorter rows are not worth a loop of their own.
_SHORTEST_ROW = 16
# The distance from the first or last value of the counter at which constants separate few iterations from the rest.
EDGE_MARGIN = 8
# There are two copies of the body.
_LARGEST_COPIED = 400


def rows_are_long(extent: Op) -> bool:
    """Return whether rows of ``extent`` columns are worth a loop of their own. An extent that is known at launch counts as long."""
    return extent.code is not ops.const or bool(extent.attr >= _SHORTEST_ROW)


def is_worth_copying(body: Region) -> bool:
    """Return whether the iterations at the edges are worth a copy of ``body``, the body of an innermost loop that is not large."""
    return body.codes.isdisjoint((ops.for_, ops.while_)) and _size(body) - 1 <= _LARGEST_COPIED


# --- scalar iterations: whether LLVM may vectorise a loop -------------------------------------------------------------------------------

# LLVM combines accesses of neighbouring iterations that are up to 8 elements apart; beyond that it gathers element by element, which its
# cost model underrates (matrices of 4x4: 66 ns against 9 ns each without).
_WIDEST_INTERLEAVED = 8
# The number of arithmetic operations whose vectorisation gains as much as a gathered access costs.
_OPERATIONS_PER_ACCESS = 4
_UNCOUNTED = frozenset((ops.const, ops.result, ops.slot, ops.cast, ops.bitcast, ops.yield_))


def prefers_scalar_iterations(body: Region) -> bool:
    """Return whether the loop over ``body`` is better left to the SLP vectoriser, because its iterations work on small matrices, element by
    element."""
    strides: dict[Op, int | None] = {body.params[0]: 1, **dict.fromkeys(body.live_ins, 0)}
    wide = arithmetic = 0
    for op in body.walk():
        if op.code in (ops.for_, ops.while_):
            return False  # only innermost loops are vectorised
        if op.code in (ops.load, ops.store):
            step = stride(op.args[0], strides)
            wide += step is not None and abs(step) > _WIDEST_INTERLEAVED
        elif op.code not in _UNCOUNTED:
            arithmetic += op.attr != "nsw"
    return wide * _OPERATIONS_PER_ACCESS > arithmetic


# --- vectors: whether iterations run as lanes of vectors -------------------------------------------------------------------------------

MASKED_LANES = 16  # where CPUs have masks
# The number of arithmetic operations whose vectorisation gains as much as an access costs that is not contiguous. A load costs less if
# lanes diverge: there LLVM would vectorise nothing, and mispredicted branches cost more.
_ACCESS, _DIVERGENT_LOAD = 8, 4
# The same for a division of integers by a variable. Divisions take as long in vectors as one by one, or nearly, also those of lanes that
# have ended: in a divergent loop, these are most of the lanes (trial division: six of seven).
_DIVISION, _DIVERGENT_DIVISION = 16, 64
# The share of lanes that need a loop behind a branch in a loop in which lanes diverge. Each lane enters it in an iteration of its own, so
# the inner loop runs again and again for a few lanes, as where a ray that has hit something searches for the place.
_BEHIND_BRANCH = 0.5
# The same for vectors that are loaded completely, to take every n-th element.
_INTERLEAVED_LOAD = 2
# A body without loops, or with loops that LLVM unrolls: LLVM vectorises it unless there are branches with effects, or around loads, which
# few lanes may take.
_BRANCHES, _LEAST_WORK, _MOST_OPERATIONS = 2, 100, 6000
# The least trips of loops that LLVM does not unroll. It vectorises the code around unrolled loops.
_SHORTEST = 12
# The least trips of a serial loop that LLVM vectorises better than the parallel one around it.
_SHORT = 16
# The most groups of lanes for which a value is computed once for each group. With more groups, vectors are faster.
MOST_GROUPS = 4
# The ratio of gains and costs up to which either may be larger.
_UNSURE = 4
# The number of iterations whose guard is tested before those that pass run: so large that the last vector, which is not full, matters
# little.
GUARD_STRIP = 4096
# The number of iterations of a guarded nest that are listed before they run. Their values shall stay in the first-level cache.
LISTED = 256
# The least work of an iteration behind the guard for which a list is worth its time, in the units of `cost_of`: what a branch costs whose
# outcome the CPU does not predict. The most values of the guard that are listed, too, instead of being computed again: stores of each test
# cost more than the few loads and operations of those that pass.
_LEAST_LISTED, MOST_KNOWN = 10, 1
# The most work of a guard, as a multiple of the work behind it. Behind larger guards, as whether a ray hits a triangle, is a small part
# of the loop. Loops over few triangles also test them for vectors that are mostly empty.
_LARGEST_GUARD = 4
_UNSEEN = ("pure", "read", "structure")  # effects that change nothing
_FREE_IN_LANES = frozenset((ops.const, ops.result, ops.slot, ops.thread_slot, ops.bitcast, ops.cast))


def lane_count(caps: Capabilities) -> int:
    """Return how many iterations run at once: two vectors of f32, so that one computes while the other waits."""
    return MASKED_LANES if has_masks(caps) else 8


def has_masks(caps: Capabilities) -> bool:
    """Return whether loads and stores of some lanes are instructions."""
    return "+avx2" in caps.cpu_features


def takes_vectors(options: CompileOptions) -> bool:
    """Return whether the level of optimisation includes vectors."""
    return options.optimize and options.opt_level >= 2


def lanes_of(loop: ChunkLoop, options: CompileOptions, masks: bool, sums: bool = False) -> Uniformity | None:
    """Return the values of ``loop`` that differ between lanes, if its iterations can run as lanes of vectors and might gain from it; else
    None. ``masks``: whether the CPU has masked loads and stores. ``sums``: the loop takes sums that LLVM must not vectorise, because their
    order is fixed."""
    body = loop.body
    if not takes_vectors(options) or body.params[0].type is not i32:
        return None
    loops = bool(body.codes & {ops.for_, ops.while_})
    vectors = whole_vectors(loop, MASKED_LANES, MOST_GROUPS) if masks else None
    divides = vectors is not None and not body.codes.isdisjoint((ops.idiv, ops.irem))
    if not loops and not sums and (not masks or not (divides or ops.if_ in body.codes) or sum(1 for _ in body.walk()) > _MOST_OPERATIONS):
        return None
    guarded = find_guarded_loop(body) if masks else None
    try:
        guard = guarded and Uniformity(guarded.guard)
        plan = Uniformity(guarded.body, guard) if guarded and guard and guard.reads_elements() else Uniformity(body)
    except Diverges:
        return None
    if plan.divergent and (not masks or options.check_bounds or options.check_overflow):
        return None  # with checks, the first iteration that fails is reported
    if vectors is not None and not (options.check_bounds or options.check_overflow):
        plan.find_groups(vectors)
    return plan if sums or loops or plan.divergent or plan.groups else None


def compresses(caps: Capabilities) -> bool:
    """Return whether one instruction moves the chosen lanes of a vector together."""
    return "+avx512f" in caps.cpu_features


def is_worth_listing(nest: GuardedNest) -> bool:
    """Return whether the iterations of ``nest`` that pass the guard are worth a list: the CPU cannot predict the guard, which depends on
    elements, and much work waits behind it, compared with the guard, too."""
    work = cost_of(nest.fission.body, {})
    return ops.load in nest.guard.codes and work >= _LEAST_LISTED and work * _LARGEST_GUARD >= cost_of(nest.guard, {})


@dataclass(frozen=True, slots=True)
class LaneGain:
    """The estimate whether iterations should run as lanes. ``is_unsure``: whether a measurement may show the contrary."""

    runs_in_lanes: bool
    is_unsure: bool


def lane_gain(plan: Uniformity, masks: bool) -> LaneGain:
    """Return whether the iterations that `lanes_of` describes should run as lanes: else LLVM does better on its own."""
    work = _Work(plan, masks)
    work.add(plan.body, 1)
    if not work.chain and (plan.divergent or plan.body.codes.isdisjoint((ops.for_, ops.while_))):
        cost = max(work.scattered * _BRANCHES, _LEAST_WORK)
        return LaneGain(cost <= work.arithmetic, cost <= work.arithmetic * _UNSURE and work.arithmetic <= cost * _UNSURE)
    cost = work.scattered
    unsure = cost <= work.arithmetic * _UNSURE and work.arithmetic <= cost * _UNSURE
    return LaneGain(work.chain and cost <= work.arithmetic, unsure)


class _Work:
    """The operations of an iteration, by the gain of vectors: ``scattered`` is the cost, in operations, of accesses that stay scalar."""

    def __init__(self, plan: Uniformity, masks: bool) -> None:
        self.plan = plan
        self.masks = masks
        self.load = _DIVERGENT_LOAD if plan.divergent else _ACCESS
        self.chain = False
        self.arithmetic = 0.0
        self.scattered = 0

    def add(self, region: Region, times: int, entered: int = 0, diverged: bool = False, share: float = 1.0, behind: float = 1.0) -> None:
        """Count the operations of a region. ``times``: the number of its runs for each iteration; ``entered``: for a loop, the number of
        its entries; ``diverged``: whether lanes diverge in a loop around; ``share``: of the lanes, those that need the region; ``behind``:
        those that would need a loop in it."""
        for op in region.ops[:-1]:
            if op.code in (ops.for_, ops.while_):
                trip_count = times * trips(op)
                self.chain |= op.code is ops.while_ or (trip_count >= _SHORTEST and self._gains(op))
                for inner in op.regions:
                    self.add(inner, trip_count, times, diverged or op in self.plan.divergent, behind, behind)
                continue
            within = behind * _BEHIND_BRANCH if diverged and op in self.plan.divergent else behind
            for inner in op.regions:
                self.add(inner, times, 0, diverged, share, within)
            if is_report(op) or is_print(op):  # runs rarely
                continue
            if op.code is ops.atomic or (op.code in (ops.load, ops.store) and not is_adstack(op)):
                hoisted = entered and op.code is ops.load and region.live_ins.issuperset(op.args)
                cost = self._cost(op)
                self.scattered += (entered if hoisted else times) * cost * self._is_scattered(op)
            elif op.code in (ops.idiv, ops.irem) and self.plan.varies(op) and op.args[1].code is not ops.const:
                self.scattered += times * (_DIVERGENT_DIVISION if diverged else _DIVISION)
            elif op.code not in _FREE_IN_LANES and op in self.plan.varying:
                self.arithmetic += times * share

    def _cost(self, op: Op) -> int:
        if op.code is not ops.load:
            return _ACCESS
        return _INTERLEAVED_LOAD if self.masks and (self.plan.interleaved(op) or self.plan.grouped(op)) else self.load

    def _is_scattered(self, op: Op) -> bool:
        if op.code is ops.atomic:
            return not self.plan.adds_together(op)
        return (op.code is ops.store or self.plan.varies(op)) and not self.plan.contiguous(op.args[0])

    def _gains(self, loop: Op) -> bool:
        """Return whether lanes gain more from ``loop`` than LLVM does."""
        return self._is_chain(loop.regions[0]) or self._runs_across(loop)

    def _is_chain(self, body: Region) -> bool:
        """Return whether iterations depend on each other in more than sums, which LLVM splits."""
        pairs = zip(body.params[1:], body.results)
        return any(p in self.plan.varying and not (v.attr == "reassoc" and p in v.args) for p, v in pairs)

    def _runs_across(self, loop: Op) -> bool:
        """Return whether ``loop`` sums elements that are far apart, or has few iterations, while neighbouring lanes read neighbours or the
        same element."""
        (body,) = loop.regions
        if not body.params[1:] or any(op.code.effect not in _UNSEEN for op in body.walk()):
            return False
        steps: dict[Op, int | None] = {body.params[0]: 1, **dict.fromkeys(body.live_ins, 0)}
        loads = [op.args[0] for op in body.ops if op.code is ops.load]
        if any(self.plan.varies(index) and not self.plan.contiguous(index) and stride(index, steps) != 0 for index in loads):
            return False
        return trips(loop) < _SHORT or any(stride(index, steps) not in (0, 1) for index in loads)


# --- streaming stores: whether a loop writes past the caches ----------------------------------------------------------------------------

# The least bytes that a loop writes to a field to bypass caches. AMD EPYC with 32 MiB of cache, y[i] = x[i] * a + b on one core: 64 MiB in
# 0.63 to 0.70 of the time, 16 MiB in 0.65 to 0.80, 4 MiB in 1.0 to 1.3.
LEAST_STREAM = 32 << 20
STREAM_BLOCK = 256  # iterations whose elements lie in local memory before they are written
LONGEST_STREAMING = 96  # operations of a body
_STREAM_ALIGNMENT = 32  # bytes


def has_streaming_stores(caps: Capabilities) -> bool:
    """Return whether the CPU is an x86: every 64-bit one lists SSE2, and no other CPU does."""
    return "+sse2" in caps.cpu_features


def bypasses_caches(written: range) -> bool:
    """Return whether a loop that writes the bytes ``written`` of a field should not read them into caches first."""
    return len(written) >= LEAST_STREAM and written.start % _STREAM_ALIGNMENT == 0


# --- functions: how much code LLVM gets at once -----------------------------------------------------------------------------------------

# LLVM's time grows with the square of the size of a function, above all where there are many branches.
# Operations in a body that is cut, and in a partition. Bodies of 8,000 operations run up to 1.5 times as fast in partitions, because
# registers suffice.
LARGE = 600
SMALLEST_PARTITION, LARGEST_PARTITION = 250, 500
# The least operations in one operation of a parallel loop whose regions are cut: if LLVM does not vectorise it in any case, and if it may.
LARGE_OPERATION, LARGE_VECTORISED = 2000, 4000
# The number of operations for each control operation below which all branches together would take too long for vectors.
_FEW_BRANCHES = 32
# The most iterations in a block that passes a partition, and the best number of bytes of its values on the stack: half of a first-level
# cache.
_BLOCK, _SMALLEST_BLOCK, _FRAME = 64, 16, 1 << 14


def is_large(region: Region) -> bool:
    """Return whether ``region`` is too large for one function."""
    return _size(region) > LARGE


def _size(region: Region) -> int:
    """Return the number of operations, nested ones included."""
    return len(region.ops) + sum([_size(inner) for op in region.ops if op.regions for inner in op.regions])


def is_large_operation(op: Op) -> bool:
    """Return whether the regions of ``op``, in the body of a parallel loop, are too large for one function."""
    inner = [below for region in op.regions for below in region.walk()]
    if len(inner) <= LARGE_OPERATION:
        return False
    control = sum([bool(below.regions) for below in inner])
    vectorised = control * _FEW_BRANCHES < len(inner) and not any(loop in r.codes for r in op.regions for loop in (ops.for_, ops.while_))
    return not (vectorised and op.code is ops.if_) or len(inner) > LARGE_VECTORISED


def cuts(sizes: Sequence[int], crossing: Sequence[int | None]) -> Iterator[int]:
    """Yield the operations before which to cut a sequence of operations of these ``sizes`` into functions that are neither small nor large.

    ``crossing``: for each cut, the number of values that cross it, or None if there can be no cut. Cuts are where few values cross.
    """
    total, left = 0, sum(sizes)
    best: int | None = None
    for k, size in enumerate(sizes):
        here = crossing[k]
        if total >= SMALLEST_PARTITION and here is not None and left > SMALLEST_PARTITION // 2:
            least = crossing[best] if best is not None else None
            if least is None or here < least:
                best = k
        if best is not None and total + size > LARGEST_PARTITION:
            yield best
            total = sum(sizes[best:k])
            best = None
        total += size
        left -= size


def block_of(frame: int) -> int:
    """Return how many iterations pass a partition together, for ``frame`` bytes that each of them has on the stack."""
    block = _BLOCK
    while block * frame > _FRAME and block > _SMALLEST_BLOCK:
        block //= 2
    return block
