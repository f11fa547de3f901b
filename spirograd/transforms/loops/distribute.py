"""Loop distribution: bodies of large loops over chunks are cut into partitions, each of which is a function.

Partitions are runs of operations of the body. Iterations of a parallel loop are independent, so all iterations of a block may run one
partition before any of them runs the next (strip mining and loop distribution; Kennedy and McKinley, "Loop distribution with arbitrary
control flow"). If the order of iterations can be observed, a block is one iteration: iterations share a thread slot one after the other,
prints appear in order, and a loop that waits for another iteration would wait for a later partition of it.

The body is cut where few values are live. No vector, and no control operation with several results, is live at a cut. For each accumulator
of the loop exactly one value is live at a cut, the accumulator so far: the contributions of all iterations of the block in the partitions
before. If memory is updated without atomics, no cut separates the load of an update from its store, because another iteration may update
the same element. Other live values are stored in local memory, in a frame for each size of value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate, pairwise

from spirograd.analysis.loop_costs import block_of, cuts, is_large, prefers_scalar_iterations
from spirograd.base.dtypes import DType, i64, u1, u8, unsigned
from spirograd.base.records import dataclass, replace
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.chunk_loops import loops_of
from spirograd.ir.nodes import BufferRef, Kernel, Op, Region, SharedRef, ref_of
from spirograd.ir.rewrite import Rewriter, copied
from spirograd.transforms.pass_context import PassContext

# Operations that each function recomputes.
RECOMPUTED = frozenset((ops.const, ops.slot, ops.thread_slot))
_ORDERED = frozenset((ops.thread_slot, ops.cas, ops.barrier, ops.clock, ops.call_memory))
_SLOTS_IN_ORDER = frozenset(("adstacks", "print", "locks"))
_ALONE = frozenset(("pure", "control", "structure"))  # operations whose effects no other iteration observes


def distribute(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Turn large loops over chunks into loops over blocks of iterations, each around a loop for each partition."""
    return _Distribute().kernel(kernel)


@dataclass(frozen=True, slots=True, eq=False)
class _Partition:
    """A partition of a loop body. ``body``: its parameters are the index and the accumulators so far, its results the accumulators after
    it. ``recomputed``: operations that run first. ``loaded``, ``stored``: values that come from an earlier partition, and that go to a
    later one."""

    body: Region
    recomputed: tuple[Op, ...]
    loaded: tuple[Op, ...]
    stored: tuple[Op, ...]


def _find_partitions(body: Region, updated: Collection[BufferRef]) -> tuple[_Partition, ...]:
    """Return the partitions of the body of a loop over a chunk, or none if it is small or cannot be cut. ``updated``: memory that the body
    updates without atomics."""
    if not is_large(body):
        return ()
    sizes = [1 + sum([1 for region in op.regions for _ in region.walk()]) for op in body.ops]
    uses = _Uses(body)
    bounds = [0, *cuts(sizes, uses.crossing(_updates(body, updated))), len(body.ops)]
    return tuple(_partitions(body, bounds, uses)) if len(bounds) > 2 else ()


class _Frames:
    """The frames of values that are live between partitions: for each size, an array of local memory with numbered entries. Values that are
    not live at the same time share an entry. ``block``: the number of iterations in a block."""

    def __init__(self, partitions: tuple[_Partition, ...], ordered: bool) -> None:
        last = {value: k for k, partition in enumerate(partitions) for value in partition.loaded}
        free: dict[DType, list[int]] = {}
        ends: dict[int, list[Op]] = {}
        count: dict[DType, int] = {}
        self.places: dict[Op, int] = {}
        for k, partition in enumerate(partitions):
            for value in partition.stored:
                stored = _stored(value)
                waiting = free.setdefault(stored, [])
                self.places[value] = waiting.pop() if waiting else count.get(stored, 0)
                count[stored] = max(count.get(stored, 0), self.places[value] + 1)
                ends.setdefault(last[value], []).append(value)
            for value in ends.get(k, ()):
                free[_stored(value)].append(self.places[value])
        self.block = 1 if ordered else block_of(sum([t.size * n for t, n in count.items()]))
        self.arrays = {t: SharedRef(f"frame{t.size}", t, n * self.block) for t, n in count.items()}


def _stored(value: Op) -> DType:
    """Return the type of a value in local memory."""
    assert isinstance(value.type, DType)
    return u8 if value.type is u1 else unsigned(value.type)


class _Distribute(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.updated: frozenset[BufferRef] = frozenset()
        self.handlers = {ops.task: self._task, ops.for_: self._for}

    def _task(self, op: Op) -> Op:
        if op.attr.kind != "chunks" or not any(map(is_large, op.regions[1:])):
            return self.b.append(op)
        inside = [inner for loop in loops_of(op, op.regions[1]) for inner in loop.body.walk()] if len(op.regions) > 2 else []
        self.updated = frozenset([inner.attr[1] for inner in inside if inner.code is ops.atomic])
        return self.copy(op)

    def _for(self, op: Op) -> Op:
        if not op.attr.over_chunk:
            return self.copy(op)
        updated = self.updated if op.attr.any_order else frozenset()
        partitions = _find_partitions(op.regions[0], updated)
        return self._blocks(op, partitions, updated) if partitions else self.keep(op)

    def _blocks(self, op: Op, partitions: tuple[_Partition, ...], updated: frozenset[BufferRef]) -> Op:
        b, (begin, end, *initial), body = self.b, self.args(op), op.regions[0]
        t = begin.type
        assert isinstance(t, DType)
        frames = _Frames(partitions, _is_ordered(body))
        scalar = "no" if (op.attr.vectorise == "no" and op.attr.independent) or prefers_scalar_iterations(body) else ""
        types = (*[a.type for a in initial], t)
        *_, first = b.begin(*types)
        condition = b.end([b.emit(ops.lt, first, end)])
        *totals, first = b.begin(*types)
        left = b.emit(ops.bitcast, b.emit(ops.sub, end, first), type=unsigned(t))
        count = b.emit(ops.min_, left, b.const(frames.block, unsigned(t)))
        stop = b.emit(ops.add, first, b.emit(ops.bitcast, count, type=t))
        for partition in partitions:
            independent = op.attr.independent or not any(o.code is ops.store and o.attr in updated for o in partition.body.walk())
            attr = replace(op.attr, independent=independent, any_order=not independent, vectorise=scalar if independent else "no")
            b.begin()
            copies = copied(b, partition.recomputed)
            results = b.for_(first, stop, totals, self._partition(partition, frames, first, copies), attr)
            region = b.end(results)
            totals = list(b.results(b.emit(ops.outlined, attr="partition", type=types[:-1], regions=(region,))))
        return b.emit(ops.while_, *initial, begin, type=types, regions=(condition, b.end([*totals, stop])))

    def _partition(self, partition: _Partition, frames: _Frames, first: Op, copies: dict[Op, Op]) -> Region:
        """Return the body of the loop over ``partition``, which loads live-in values at its beginning, and stores live-out values at its
        end."""
        b, inside = self.b, Rewriter()  # other partitions map the same operations to other values
        inside.b, inside.env = b, self.env | copies
        params = b.begin(*[p.type for p in partition.body.params])
        number = b.cast(b.emit(ops.sub, params[0], first, attr="nsw"), i64)
        for value in partition.loaded:
            array = frames.arrays[_stored(value)]
            text = b.load(array, _place(b, frames, value, number))
            assert isinstance(value.type, DType)
            inside.env[value] = b.emit(ops.ne, text, b.const(0, u8)) if value.type is u1 else _as(b, text, value.type)
        results = inside.inline(partition.body, params, clone=True)
        for value in partition.stored:
            new, array = inside.value(value), frames.arrays[_stored(value)]
            stored = b.cast(new, u8) if value.type is u1 else _as(b, new, array.dtype)
            b.store(array, _place(b, frames, value, number), stored)
        return b.end(results)


def _as(b: Builder, value: Op, t: DType) -> Op:
    return value if value.type is t else b.emit(ops.bitcast, value, type=t)


def _place(b: Builder, frames: _Frames, value: Op, number: Op) -> Op:
    """Return the index in local memory of ``value`` of iteration ``number`` of the block."""
    at = frames.places[value] * frames.block
    return b.emit(ops.add, number, b.const(at, i64), attr="nsw") if at else number


def _is_ordered(body: Region) -> bool:
    """Return whether the order in which a thread runs iterations of ``body`` can be observed."""
    for op in body.walk():
        ref = ref_of(op)
        if op.code in _ORDERED or (isinstance(ref, BufferRef) and ref.slot.kind in _SLOTS_IN_ORDER):
            return True
        if op.code is ops.while_ and any(inner.code.effect not in _ALONE for r in op.regions for inner in r.walk()):
            return True
    return False


def _updates(body: Region, updated: Collection[BufferRef]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last operation of each update, as numbers: a load, and the next store to the same element."""
    begun: dict[tuple[BufferRef, Op], int] = {}
    for k, op in enumerate(body.ops):
        if op.code is ops.load and op.attr in updated:
            begun[op.attr, op.args[0]] = k
        elif op.code is ops.store and (op.attr, op.args[0]) in begun:
            yield begun.pop((op.attr, op.args[0])), k


class _Uses:
    """The definitions and last uses of the values of ``body``, by the number of the operation; parameters at -1."""

    def __init__(self, body: Region) -> None:
        self.body = body
        self.defined: dict[Op, int] = dict.fromkeys(body.params, -1)
        self.last: dict[Op, int] = {}
        self.used: list[dict[Op, None]] = []  # by operation: values of the body that it uses, recomputed ones included
        self.outer: dict[Op, None] = {}
        inner: set[Op] = set()
        for k, op in enumerate(body.ops):
            used: dict[Op, None] = dict.fromkeys(op.args)
            for region in op.regions:
                inner.update(region.params)
                for below in region.walk():
                    inner.add(below)
                    inner.update([p for r in below.regions for p in r.params])
                    used.update(dict.fromkeys(below.args))
            self.used.append({v: None for v in used if v not in inner})
            for value in self.used[-1]:
                self.last[value] = k
                if value not in self.defined:
                    self.outer[value] = None
            self.defined[op] = k
        self.sums = _accumulated(body)

    def crossing(self, together: Iterable[tuple[int, int]]) -> list[int | None]:
        """Return, for each cut before an operation, the number of values that are live there, or None if there can be no cut. ``together``:
        first and last numbers of operations that must stay together."""
        count = len(self.body.ops)
        values, refused = [0] * (count + 1), [0] * (count + 1)
        for first, last in together:
            refused[first + 1] += 1
            refused[last + 1] -= 1
        sums = [[0] * (count + 1) for _ in self.body.params[1:]]
        for value, end in self.last.items():
            start = self.defined.get(value)
            if start is None or value.code in RECOMPUTED or value is self.body.params[0]:
                continue
            mine = self.sums.get(value, frozenset())
            allowed = isinstance(value.type, DType) and len(mine) <= 1
            for counts in (values, *([] if allowed else [refused]), *[sums[k] for k in mine]):
                counts[start + 1] += 1
                counts[end + 1] -= 1
        columns = zip(accumulate(values), accumulate(refused), *map(accumulate, sums))
        return [None if bad or any(n != 1 for n in each) else crossing for crossing, bad, *each in columns][:count]


def _accumulated(body: Region) -> dict[Op, frozenset[int]]:
    """Return the accumulators of the loop on which each value depends, by their numbers."""
    dependences: dict[Op, frozenset[int]] = {p: frozenset((k,)) for k, p in enumerate(body.params[1:])}
    if dependences:
        _spread(body, dependences)
    return dependences


def _spread(region: Region, dependences: dict[Op, frozenset[int]]) -> None:
    none: frozenset[int] = frozenset()
    of_results: dict[tuple[Op, int], frozenset[int]] = {}
    for op in region.ops[:-1]:
        own = none.union(*[dependences[a] for a in op.args if a in dependences])
        if op.code is ops.result:
            own = of_results.get((op.args[0], op.attr), own)
        many = len(op.type) if isinstance(op.type, tuple) and op.regions and op.code is not ops.if_ else 0
        carried = op.args[len(op.args) - many :]
        for inner in op.regions:
            params = inner.params[len(inner.params) - many :]
            dependences.update({p: dependences[a] for p, a in zip(params, carried) if a in dependences})
            _spread(inner, dependences)
        for inner in op.regions if op.code is ops.if_ else op.regions[-1:]:
            for k, value in enumerate(inner.results):
                of_results[op, k] = of_results.get((op, k), none) | dependences.get(value, none)
        for k, value in enumerate(carried):
            of_results[op, k] |= dependences.get(value, none)
        if own:
            dependences[op] = own


def _partitions(body: Region, bounds: list[int], uses: _Uses) -> Iterator[_Partition]:
    index, *sums = body.params
    for start, end in pairwise(bounds):
        used = list(dict.fromkeys(v for k in range(start, end) for v in uses.used[k]))
        earlier = [v for v in used if uses.defined.get(v, start) < start and v is not index and v not in uses.sums]
        recomputed = tuple([v for v in earlier if v.code in RECOMPUTED])
        loaded = tuple([v for v in earlier if v.code not in RECOMPUTED])
        crossing = [op for op in body.ops[start:end] if uses.last.get(op, -1) >= end and op.code not in RECOMPUTED]
        stored = tuple([op for op in crossing if op not in uses.sums])
        last = body.ops[-1]
        if end < len(body.ops):
            after = {next(iter(uses.sums[op])): op for op in crossing if op in uses.sums}
            sums_after = tuple([after.get(k, p) for k, p in enumerate(sums)])
            operations = (*body.ops[start:end], Op(ops.yield_, last.type, sums_after, loc=last.loc))
        else:
            sums_after, operations = (), body.ops[start:]
        yield _Partition(Region((index, *sums), operations), recomputed, loaded, stored)
        sums = list(sums_after)
