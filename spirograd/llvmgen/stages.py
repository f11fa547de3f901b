"""Where to cut the body of a large parallel loop into stages, and what crosses the cuts.

Stages are runs of operations of the body. Iterations of a parallel loop are independent, so a block of iterations may pass one stage before
any of them begins the next (strip mining and loop distribution; Kennedy and McKinley, "Loop distribution with arbitrary control flow"). Not
so where the order of iterations can be seen: thread slots serve one iteration after the other, prints come in order, and a loop that waits
for another iteration would wait for a later stage of it. There a block is one iteration.

A cut is where few values cross. No vector and no result of a control operation that is not taken apart crosses. Of each accumulator of the
loop exactly one value crosses, which is the accumulator so far: what all iterations of the block have added in the stages before. Where
memory is updated without atomics, no cut parts the load of an update from its store: another iteration may update the same element.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate, pairwise

from spirograd.base.dtypes import DType
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import BufferRef, Op, Region, ref_of

# Operations in a body that is cut, and in a stage. Bodies of 8,000 operations run up to 1.5 times as fast in stages: registers suffice.
LARGE = 600
_SMALLEST, LARGEST_STAGE = 250, 500
# Iterations in a block, and bytes that its values take on the stack, at best: half of a first-level cache.
_BLOCK, _SMALLEST_BLOCK, _FRAME = 64, 16, 1 << 14
# What is made again in each stage that uses it.
REMADE = frozenset((ops.const, ops.slot, ops.thread_slot))
_ORDERED = frozenset((ops.thread_slot, ops.cas, ops.barrier, ops.clock, ops.call_memory))
_SLOTS_IN_ORDER = frozenset(("adstacks", "print", "locks"))
_ALONE = frozenset(("pure", "control", "structure"))  # effects of what no other iteration hears of


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """``body``: its parameters are the index and the accumulators so far, its results the accumulators after it. ``remade``: operations
    that run first. ``loaded``, ``stored``: values that cross from an earlier stage, and to a later one."""

    body: Region
    remade: tuple[Op, ...]
    loaded: tuple[Op, ...]
    stored: tuple[Op, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """``places``: where the values that cross lie in the frame: bytes before them for each iteration of a block, of ``frame`` in all.
    ``block``: iterations that pass a stage together. ``outer``: values from outside of the loop."""

    stages: tuple[Stage, ...]
    places: dict[Op, int]
    frame: int
    block: int
    outer: tuple[Op, ...]


def find_stages(body: Region, updated: Collection[BufferRef] = ()) -> Stages | None:
    """The stages of the body of a parallel loop; None if it is small, or cannot be cut. ``updated``: memory that the body updates without
    atomics."""
    sizes = [1 + sum([1 for region in op.regions for _ in region.walk()]) for op in body.ops]
    if sum(sizes) <= LARGE:
        return None
    uses = _Uses(body)
    bounds = [0, *cuts(sizes, uses.crossing(_updates(body, updated))), len(body.ops)]
    if len(bounds) == 2:
        return None
    stages = tuple(_stages(body, bounds, uses))
    places, frame = _placed(stages)
    block = 1 if _is_ordered(body) else _BLOCK
    while block * frame > _FRAME and block > _SMALLEST_BLOCK:
        block //= 2
    return Stages(stages, places, frame, block, tuple(uses.outer))


def _is_ordered(body: Region) -> bool:
    """Whether the order can be seen in which one thread runs iterations of ``body``."""
    for op in body.walk():
        ref = ref_of(op)
        if op.code in _ORDERED or (isinstance(ref, BufferRef) and ref.slot.kind in _SLOTS_IN_ORDER):
            return True
        if op.code is ops.while_ and any(inner.code.effect not in _ALONE for r in op.regions for inner in r.walk()):
            return True
    return False


def _updates(body: Region, updated: Collection[BufferRef]) -> Iterator[tuple[int, int]]:
    """Where updates begin and end, by the number of the operation: a load, and the next store to the same element."""
    begun: dict[tuple[BufferRef, Op], int] = {}
    for k, op in enumerate(body.ops):
        if op.code is ops.load and op.attr in updated:
            begun[op.attr, op.args[0]] = k
        elif op.code is ops.store and (op.attr, op.args[0]) in begun:
            yield begun.pop((op.attr, op.args[0])), k


class _Uses:
    """Where the values of ``body`` are defined and used last, by the number of the operation; parameters at -1."""

    def __init__(self, body: Region) -> None:
        self.body = body
        self.defined: dict[Op, int] = dict.fromkeys(body.params, -1)
        self.last: dict[Op, int] = {}
        self.used: list[dict[Op, None]] = []  # by operation: values of the body that it uses, what is remade included
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

    def crossing(self, whole: Iterable[tuple[int, int]]) -> list[int | None]:
        """By cut before each operation, how many values cross; None where there can be none. ``whole``: numbers of the first and the last
        of operations that stay together."""
        count = len(self.body.ops)
        values, refused = [0] * (count + 1), [0] * (count + 1)
        for first, last in whole:
            refused[first + 1] += 1
            refused[last + 1] -= 1
        sums = [[0] * (count + 1) for _ in self.body.params[1:]]
        for value, end in self.last.items():
            start = self.defined.get(value)
            if start is None or value.code in REMADE or value is self.body.params[0]:
                continue
            mine = self.sums.get(value, frozenset())
            allowed = isinstance(value.type, DType) and len(mine) <= 1
            for counts in (values, *([] if allowed else [refused]), *[sums[k] for k in mine]):
                counts[start + 1] += 1
                counts[end + 1] -= 1
        columns = zip(accumulate(values), accumulate(refused), *map(accumulate, sums))
        return [None if bad or any(n != 1 for n in each) else crossing for crossing, bad, *each in columns][:count]


def _accumulated(body: Region) -> dict[Op, frozenset[int]]:
    """On which accumulators of the loop each value depends, by their numbers."""
    found: dict[Op, frozenset[int]] = {p: frozenset((k,)) for k, p in enumerate(body.params[1:])}
    if found:
        _spread(body, found)
    return found


def _spread(region: Region, found: dict[Op, frozenset[int]]) -> None:
    none: frozenset[int] = frozenset()
    of_results: dict[tuple[Op, int], frozenset[int]] = {}
    for op in region.ops[:-1]:
        own = none.union(*[found[a] for a in op.args if a in found])
        if op.code is ops.result:
            own = of_results.get((op.args[0], op.attr), own)
        many = len(op.type) if isinstance(op.type, tuple) and op.regions and op.code is not ops.if_ else 0
        carried = op.args[len(op.args) - many :]
        for inner in op.regions:
            params = inner.params[len(inner.params) - many :]
            found.update({p: found[a] for p, a in zip(params, carried) if a in found})
            _spread(inner, found)
        for inner in op.regions if op.code is ops.if_ else op.regions[-1:]:
            for k, value in enumerate(inner.results):
                of_results[op, k] = of_results.get((op, k), none) | found.get(value, none)
        for k, value in enumerate(carried):
            of_results[op, k] |= found.get(value, none)
        if own:
            found[op] = own


def cuts(sizes: list[int], crossing: list[int | None]) -> Iterator[int]:
    """The operations before which to cut: of those that make a stage neither small nor large, where least crosses."""
    total, left = 0, sum(sizes)
    best: int | None = None
    for k, size in enumerate(sizes):
        here = crossing[k]
        if total >= _SMALLEST and here is not None and left > _SMALLEST // 2:
            least = crossing[best] if best is not None else None
            if least is None or here < least:
                best = k
        if best is not None and total + size > LARGEST_STAGE:
            yield best
            total = sum(sizes[best:k])
            best = None
        total += size
        left -= size


def _stages(body: Region, bounds: list[int], uses: _Uses) -> Iterator[Stage]:
    index, *sums = body.params
    for start, end in pairwise(bounds):
        used = list(dict.fromkeys(v for k in range(start, end) for v in uses.used[k]))
        earlier = [v for v in used if uses.defined.get(v, start) < start and v is not index and v not in uses.sums]
        remade = tuple([v for v in earlier if v.code in REMADE])
        loaded = tuple([v for v in earlier if v.code not in REMADE])
        crossing = [op for op in body.ops[start:end] if uses.last.get(op, -1) >= end and op.code not in REMADE]
        stored = tuple([op for op in crossing if op not in uses.sums])
        last = body.ops[-1]
        if end < len(body.ops):
            after = {next(iter(uses.sums[op])): op for op in crossing if op in uses.sums}
            sums_after = tuple([after.get(k, p) for k, p in enumerate(sums)])
            operations = (*body.ops[start:end], Op(ops.yield_, last.type, sums_after, loc=last.loc))
        else:
            sums_after, operations = (), body.ops[start:]
        yield Stage(Region((index, *sums), operations), remade, loaded, stored)
        sums = list(sums_after)


def _placed(stages: tuple[Stage, ...]) -> tuple[dict[Op, int], int]:
    """A place in the frame for each value that crosses, shared by values of one size that are not alive together."""
    last = {value: k for k, stage in enumerate(stages) for value in stage.loaded}
    free: dict[int, list[int]] = {}
    places: dict[Op, int] = {}
    ends: dict[int, list[Op]] = {}
    frame = 0
    for k, stage in enumerate(stages):
        for value in stage.stored:
            size = _bytes(value)
            waiting = free.setdefault(size, [])
            if waiting:
                places[value] = waiting.pop()
            else:
                frame = -(-frame // size) * size
                places[value], frame = frame, frame + size
            ends.setdefault(last[value], []).append(value)
        for value in ends.get(k, ()):
            free[_bytes(value)].append(places[value])
    return places, frame


def _bytes(value: Op) -> int:
    assert isinstance(value.type, DType)
    return max(value.type.size, 1)
