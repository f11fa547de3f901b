"""Guarded nests: serial loops, one in another, whose innermost body is a guard around all that it does, as in sums over the neighbours of a
particle: loop over cells, loop over the particles of a cell, test the distance, add.

Few iterations pass the guard, and which ones is hard to predict. The values that the nest carries pass through all of its levels and change
behind the guard only; nothing else in it depends on them. So the iterations that pass can be listed first and run afterwards, in the same
order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from spirograd.analysis.effects import may_alias
from spirograd.analysis.fission import HARMLESS, Fission, find_fission, used_by
from spirograd.analysis.guarded_loops import needed_operations
from spirograd.base.dtypes import DType, Type, i32, u1
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Op, Ref, Region, accesses_of

_PROGRAM = frozenset(("tree", "array", "temps"))
# What a level computes before a test, and its condition.
_Test = tuple[tuple[Op, ...], Op]
# Loops with fewer iterations, if that number is constant, are no level of a nest, but a part of the body of one.
_SHORT = 16
# The most ranges of the innermost loop that are listed, and joined, before it runs: the code that lists them is unrolled.
_MOST_RANGES = 32


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """A loop or branch of a nest; for a branch, its first region. ``others``: what the region computes besides the next level. ``carried``:
    the parameter of the innermost loop here that holds each value that the nest carries; ``results``: what the region yields for it."""

    op: Op
    others: tuple[Op, ...]
    carried: tuple[Op, ...]
    results: tuple[Op, ...]

    @property
    def body(self) -> Region:
        return self.op.regions[0]

    @property
    def is_loop(self) -> bool:
        return self.op.code is ops.for_


@dataclass(frozen=True, slots=True, eq=False)
class GuardedNest:
    """A guarded nest of ``levels``, outermost first; the last one is the innermost loop.

    ``most_ranges``: how often that loop runs at most, if that is few times and the guard depends on its index only; else 0. ``guard``: a
    region of the index of that loop that yields whether an iteration passes, and the values that ``fission``, the parts of an iteration
    that passes, knows then.
    """

    levels: tuple[Level, ...]
    most_ranges: int
    guard: Region
    fission: Fission

    @property
    def loop(self) -> Op:
        """Return the outermost loop."""
        return self.levels[0].op


def find_guarded_nest(loop: Op, earlier: Sequence[Op], most_known: int) -> GuardedNest | None:
    """Return the guarded nest that begins with ``loop``, a serial `for`, or None. ``earlier``: operations that have run before it;
    ``most_known``: the most values of a guard that are kept instead of computed again."""
    if loop.code is not ops.for_ or not loop.type:
        return None
    levels = _levels(loop)
    innermost = max(k for k, level in enumerate(levels) if level.is_loop)
    tests = [(level.others, inner.op.args[0]) for level, inner in zip(levels[innermost:], levels[innermost + 1 :])]
    index = levels[innermost].body.params[0]
    if not tests or index.type is not i32:
        return None
    tests = _joined(index, tests, earlier)
    before, last = [op for others, _ in tests for op in others], levels[-1]
    known = _known(before, last.body)
    known = known if len(known) <= most_known else ()
    fission = find_fission(index, before, known, last.body, last.carried, last.results)
    carried = {value for level in levels for value in level.carried}.difference(last.carried)
    if fission is None or not carried.isdisjoint(last.results) or any(not carried.isdisjoint(op.args) for op in last.body.walk()):
        return None
    outside = [op for level in levels[:innermost] for op in level.others]
    read = {ref for op in (*outside, *before, *last.body.ops) for ref in _read(op)}
    if not all(map(_is_memory_of_program, read | fission.written)) or not all(_are_apart(a, b) for a in fission.written for b in read):
        return None
    outer, guard = levels[:innermost], _guard(index, tests, known)
    if any(_uses_levels(region, outer) for region in (fission.independent, last.body)):
        return None  # what is listed runs after these levels
    return GuardedNest(tuple(levels[: innermost + 1]), 0 if _uses_levels(guard, outer) else _most_ranges(outer), guard, fission)


def _uses_levels(region: Region, levels: Sequence[Level]) -> bool:
    """Return whether ``region`` uses values that differ between iterations of ``levels``."""
    values = {*[op for level in levels for op in level.others], *[level.body.params[0] for level in levels if level.is_loop]}
    return not values.isdisjoint(region.live_ins)


def _most_ranges(outer: Sequence[Level]) -> int:
    """Return how often a loop inside of the levels ``outer`` runs at most; 0 if that is often, or there are no levels."""
    loops = [level.op for level in outer if level.is_loop]
    count = math.prod([_constant_trips(loop) or _MOST_RANGES + 1 for loop in loops])
    return count if loops and count <= _MOST_RANGES else 0


def _known(before: Sequence[Op], body: Region) -> tuple[Op, ...]:
    """Return the values that the guard has computed of loads and that ``body`` uses."""
    loaded: set[Op] = set()
    for op in before:
        if op.code is ops.load or not loaded.isdisjoint(op.args):
            loaded.add(op)
    return tuple([op for op in before if op in loaded and op in body.live_ins and isinstance(op.type, DType) and op.type.bits >= 32])


def _joined(index: Op, tests: list[_Test], earlier: Sequence[Op]) -> list[_Test]:
    """Join the first two tests if the first one excludes an index whose elements were loaded before, such as those of the particle itself:
    then the second one may run for that index, too."""
    if len(tests) < 2:
        return tests
    (others, condition), (later, following), *rest = tests
    if condition.code is not ops.ne or index not in condition.args:
        return tests
    excluded = condition.args[condition.args[0] is index]
    harmless = all(not op.regions and op.code not in (ops.idiv, ops.irem) for op in later)
    loads = [op for op in later if op.code is ops.load]
    if not harmless or not all(any(_is_same(a, b, index, excluded) for b in earlier if b.code is ops.load) for a in loads):
        return tests
    both = Op(ops.and_, u1, (condition, following))
    return [((*others, *later, both), both), *rest]


def _is_same(a: Op, b: Op, index: Op, value: Op) -> bool:
    """Return whether ``a`` computes what ``b`` does if ``index`` is ``value``."""
    a = value if a is index else a
    if a is b:
        return True
    if a.code is not b.code or a.type != b.type or a.attr != b.attr or a.code is ops.param or a.regions or len(a.args) != len(b.args):
        return False
    return all(_is_same(x, y, index, value) for x, y in zip(a.args, b.args))


def _levels(loop: Op) -> list[Level]:
    """Return the loops and branches, from ``loop`` inwards, that loop-carried values pass through."""
    levels, op = list[Level](), loop
    carried, results = loop.regions[0].params[1:], loop.regions[0].results
    varying = set(carried)
    while True:
        body = op.regions[0]
        inner = _next(body, carried, results)
        others = tuple([o for o in body.ops[:-1] if o is not inner and not (o.code is ops.result and o.args[0] is inner)])
        if inner is not None and not (_is_outside(others, varying) and _is_entered_alike(inner, varying)):
            inner = None
        levels.append(Level(op, others, carried, results))
        if inner is None:
            return levels
        op = inner
        results = tuple([op.regions[0].results[r.attr] if _is_result_of(r, op) else r for r in results])
        if op.code is ops.for_:
            carried = op.regions[0].params[1:]
            varying.update(carried)


def _next(body: Region, carried: Sequence[Op], results: Sequence[Op]) -> Op | None:
    """Return the loop or branch of ``body`` that all of ``carried`` pass through, to become ``results``; None if there is none."""
    sources = {r.args[0] for r in results if r.code is ops.result}
    op = sources.pop() if len(sources) == 1 else None
    if op is None or op not in body.ops:
        return None
    if op.code is ops.for_:
        in_order = len(op.args) == 2 + len(carried) and all(
            op.args[2 + k] is c and _is_result_of(r, op) and r.attr == k for k, (c, r) in enumerate(zip(carried, results))
        )
        return op if in_order and not _is_short(op) else None
    if op.code is not ops.if_ or len(op.regions[1].ops) > 1:
        return None
    kept = [op.regions[1].results[r.attr] if _is_result_of(r, op) else r for r in results]
    return op if all(a is b for a, b in zip(kept, carried)) else None


def _is_result_of(value: Op, op: Op) -> bool:
    return value.code is ops.result and value.args[0] is op


def _constant_trips(loop: Op) -> int | None:
    """Return the number of iterations of ``loop`` if it is a constant."""
    begin, end = loop.args[:2]
    return max(int(end.attr) - int(begin.attr), 0) if begin.code is ops.const and end.code is ops.const else None


def _is_short(loop: Op) -> bool:
    count = _constant_trips(loop)
    return count is not None and count < _SHORT


def _is_outside(others: Iterable[Op], varying: set[Op]) -> bool:
    """Return whether operations have no effect and do not depend on the loop-carried values ``varying``."""
    return all(op.code.effect in HARMLESS and varying.isdisjoint(used_by(op)) for op in others) and all(
        inner.code.effect in HARMLESS for op in others for region in op.regions for inner in region.walk()
    )


def _is_entered_alike(op: Op, varying: set[Op]) -> bool:
    """Return whether the condition or the bounds of ``op`` do not depend on loop-carried values."""
    return varying.isdisjoint(op.args[: 1 if op.code is ops.if_ else 2])


def _read(op: Op) -> list[Ref]:
    inside = (op, *[inner for region in op.regions for inner in region.walk()])
    return [ref for o in inside for effect, ref in accesses_of(o) if effect == "read"]


def _is_memory_of_program(ref: Ref) -> bool:
    """Return whether ``ref`` is memory that any thread may read at any time, as adstacks, reports and locks are not."""
    return isinstance(ref, BufferRef) and ref.slot.kind in _PROGRAM


def _are_apart(a: Ref, b: Ref) -> bool:
    """Return whether two references never access the same bytes. Fields of a tree are apart, unless words hold several elements."""
    if not may_alias(a, b):
        return True
    fields = all(isinstance(ref, BufferRef) and ref.slot.kind == "tree" and ref.dtype.bits >= 32 for ref in (a, b))
    return fields and a.name != b.name


def _guard(index: Op, tests: Sequence[_Test], known: Sequence[Op]) -> Region:
    """Return the tests of a guard as one region. A test runs if those before it hold."""
    b = Builder()

    def rest(k: int) -> list[Op]:
        others, condition = tests[k]
        for op in others:
            b.append(op)
        if k + 1 == len(tests):
            return [condition, *known]
        b.begin()
        then = b.end(rest(k + 1))
        b.begin()
        return list(b.if_(condition, then, b.end([b.const(0, _dtype(value.type)) for value in then.results])))

    b.begin()
    region = Region((index,), b.end(rest(0)).ops)
    return Region(region.params, (*needed_operations(region, set(region.results)), region.ops[-1]))


def _dtype(t: Type) -> DType:
    assert isinstance(t, DType)
    return t
