"""How many invocations of a task have tapes: its iterations, if only memory tells how many these are; where a condition guards tapes, the
iterations that pass it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spirograd.analysis.sizes import size_of
from spirograd.autodiff.sweep import as_entries, capacity_of, trip_count
from spirograd.base.dtypes import i32, u32
from spirograd.base.loc import Loc
from spirograd.base.sizes.nodes import Size
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region, TapeRef, TempKind, TempRef
from spirograd.ir.rewrite import Rewriter

# Bytes of tapes for which counting is not worth it: the heap has as many in any case.
_SMALL = 1 << 20
# Rows of a task at most, on GPUs.
_MOST_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class TapeGuard:
    """A condition that guards tapes. ``region``: the branch that an iteration of a parallel loop enters to use ``tapes``, which are not
    used elsewhere in the loop. ``loc``: of the first loop in there that has one."""

    region: Region
    tapes: frozenset[TapeRef]
    loc: Loc | None


def tape_guards(kernel: Kernel, sizes: Sequence[Size | None]) -> tuple[TapeGuard, ...]:
    """The guards of the parallel loops of ``kernel``, a gradient kernel; ``sizes``: what is known of capacities, by number.

    All guards, whatever the conditions: how many iterations pass depends on the data. Counting them is cheap compared with the memory that
    it saves, and is not repeated while the memory that it reads stays as it is. If the compiler can tell that the thread slots of all
    iterations are small, there is no guard: each iteration has a slot.
    """
    found = []
    for loop in kernel.body.ops:
        # Of 64 bits there may be more iterations than can be counted.
        if loop.code is ops.for_ and loop.attr.parallel and loop.args[0].type in (i32, u32):
            guard = _guard(loop.regions[0])
            if guard is not None and not _is_small(loop, guard, sizes):
                found.append(guard)
    return tuple(found)


def open_loops(kernel: Kernel, sizes: Sequence[Size | None], guards: Sequence[TapeGuard]) -> tuple[Op, ...]:
    """The parallel loops of ``kernel`` with tapes outside of the guards ``guards`` of which arguments and shapes do not tell how many
    iterations they have; not those whose tapes are small however many that are. ``sizes``: as of `tape_guards`."""
    inside: frozenset[TapeRef] = frozenset().union(*[guard.tapes for guard in guards])
    found = []
    for loop in kernel.body.ops:
        if loop.code is ops.for_ and loop.attr.parallel and loop.args[0].type in (i32, u32) and None in _bounds(loop):
            tapes = _tapes(loop) - inside
            row = _row_bytes(tapes, sizes)
            if tapes and (row is None or row * _MOST_ROWS > _SMALL):
                found.append(loop)
    return tuple(found)


def _bounds(loop: Op) -> tuple[Size | None, Size | None]:
    return size_of(loop.args[0]), size_of(loop.args[1])


def _row_bytes(tapes: Iterable[TapeRef], sizes: Sequence[Size | None]) -> int | None:
    """What an invocation needs for ``tapes``; None if only a launch knows."""
    total = 0
    for tape in tapes:
        entries = sizes[tape.capacity]
        if not isinstance(entries, int):
            return None
        total += tape.dtype.size * tape.width * max(entries, 1)
    return total


def _guard(body: Region) -> TapeGuard | None:
    """The guard of all tapes of ``body``; else that of floats, as a rule the most memory: then tapes of integers that are used elsewhere
    stay outside."""
    tapes = _used(body)
    return _below(body, tapes) or _below(body, frozenset([tape for tape in tapes if tape.dtype.is_float]))


def _below(body: Region, tapes: frozenset[TapeRef]) -> TapeGuard | None:
    """The innermost region below branches only that has all of ``tapes``; None if that is ``body`` itself."""
    region, elsewhere = body, []
    while True:
        using = [op for op in region.ops if _tapes(op) & tapes]
        if len(using) != 1 or using[0].code is not ops.if_:
            break
        branches = [branch for branch in using[0].regions if _used(branch) & tapes]
        if len(branches) != 1:
            break
        elsewhere += [op for op in region.ops if op is not using[0]]
        elsewhere += [op for branch in using[0].regions if branch is not branches[0] for op in branch.ops]
        region = branches[0]
    if region is body or not using:
        return None
    return TapeGuard(region, _used(region) - frozenset().union(*map(_tapes, elsewhere)), using[0].loc)


def _used(region: Region) -> frozenset[TapeRef]:
    return frozenset().union(*map(_tapes, region.ops))


def _tapes(op: Op) -> frozenset[TapeRef]:
    """Those that are used in ``op``."""
    inside = (inner for region in op.regions for inner in region.walk())
    return frozenset([x.attr for x in (op, *inside) if isinstance(x.attr, TapeRef)])


def _is_small(loop: Op, guard: TapeGuard, sizes: Sequence[Size | None]) -> bool:
    begin, end = _bounds(loop)
    row = _row_bytes(guard.tapes, sizes)
    return isinstance(begin, int) and isinstance(end, int) and row is not None and (end - begin) * row <= _SMALL


def guard_count(number: int) -> TempRef:
    """Where the iterations that pass the guard with size ``number`` are counted."""
    return TempRef(f"guard_count{number}", i32, kind=TempKind.GUARD_COUNT, number=number)


def with_counts(kernel: Kernel, counted: Mapping[int, Op], guards: Mapping[int, TapeGuard]) -> tuple[Kernel, dict[int, TapeGuard]]:
    """``kernel`` such that it counts the invocations that use tapes: before each of the loops ``counted`` its trip count, as a capacity; at
    the begin of each guard an atomic addition to `guard_count`. ``TapeRef.rows`` of the tapes is the number of the count. Also the guards,
    with these tapes."""
    rows = {tape: k for k, loop in counted.items() for tape in _tapes(loop)}
    rows |= {tape: k for k, guard in guards.items() for tape in guard.tapes}
    made = _WithCounts(counted, guards, rows).kernel(kernel)
    return made, {k: replace(guard, tapes=frozenset([replace(tape, rows=k) for tape in guard.tapes])) for k, guard in guards.items()}


class _WithCounts(Rewriter):
    def __init__(self, counted: Mapping[int, Op], guards: Mapping[int, TapeGuard], rows: Mapping[TapeRef, int]) -> None:
        super().__init__()
        self.numbers = {loop: k for k, loop in counted.items()}
        self.guards = {id(guard.region): (k, guard) for k, guard in guards.items()}
        self.rows = rows
        self.handlers = {ops.if_: self.copy, ops.for_: self._loop, ops.load: self._access, ops.store: self._access}

    def _loop(self, op: Op) -> Op:
        number = self.numbers.get(op)
        if number is not None:
            b = self.b
            b.at(op)
            begin, end = self.args(op)[:2]
            b.atomic("max", capacity_of(number), as_entries(b, trip_count(b, begin, end)))
        return self.copy(op)

    def _access(self, op: Op) -> Op:
        if op.attr not in self.rows:
            return self.copy(op)
        return self.b.append(Op(op.code, op.type, self.args(op), replace(op.attr, rows=self.rows[op.attr]), (), op.loc, op.primal))

    def region(self, region: Region) -> Region:
        if id(region) not in self.guards:
            return super().region(region)
        number, guard = self.guards[id(region)]
        b = self.b
        b.begin()
        b.loc = guard.loc
        b.atomic("add", guard_count(number), b.const(1))
        first = b.end().ops[:-1]
        return Region(region.params, (*first, *super().region(region).ops))
