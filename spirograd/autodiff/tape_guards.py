"""Guards of tapes: how many invocations of a task need tapes.

These are the iterations of the task, if only memory tells how many there are, and the iterations that pass, where a condition guards the
tapes.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Mapping, Sequence
from itertools import takewhile

from spirograd.analysis.sizes import size_of
from spirograd.autodiff.sweep import as_entries, capacity_of, trip_count
from spirograd.base.dtypes import i32, u32
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass, replace
from spirograd.base.sizes.size_nodes import Size
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region, TapeRef, TempKind, TempRef
from spirograd.ir.rewrite import Rewriter

# Bytes of tapes for which counting is not worth it: the heap has as many in any case.
_SMALL = 1 << 20
# Thread slots of a task at most, on GPUs.
_MOST_SLOTS = 1 << 16


# The branches around an operation, the outermost first.
Path = tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class TapeGuard:
    """A condition that guards tapes. ``region``: the branch that an iteration of a parallel loop enters to use ``tapes``, which are not
    used elsewhere in the loop. ``loc``: of the first loop in there that has one. Guards may be nested: each has tapes of its own."""

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
            found += [guard for guard in _guards(loop.regions[0]) if not _is_small(loop, guard, sizes)]
    return tuple(found)


def open_loops(kernel: Kernel, sizes: Sequence[Size | None], guards: Sequence[TapeGuard]) -> tuple[Op, ...]:
    """The parallel loops of ``kernel`` with tapes outside of the guards ``guards`` of which arguments and shapes do not tell how many
    iterations they have; not those whose tapes are small however many that are. ``sizes``: as of `tape_guards`."""
    inside: frozenset[TapeRef] = frozenset().union(*[guard.tapes for guard in guards])
    found = []
    for loop in kernel.body.ops:
        if loop.code is ops.for_ and loop.attr.parallel and loop.args[0].type in (i32, u32) and None in _bounds(loop):
            tapes = _tapes(loop) - inside
            slot = _slot_bytes(tapes, sizes)
            if tapes and (slot is None or slot * _MOST_SLOTS > _SMALL):
                found.append(loop)
    return tuple(found)


def _bounds(loop: Op) -> tuple[Size | None, Size | None]:
    return size_of(loop.args[0]), size_of(loop.args[1])


def _slot_bytes(tapes: Iterable[TapeRef], sizes: Sequence[Size | None]) -> int | None:
    """What an invocation needs for ``tapes``; None if only a launch knows."""
    total = 0
    for tape in tapes:
        entries = sizes[tape.capacity]
        if not isinstance(entries, int):
            return None
        total += tape.dtype.size * tape.width * max(entries, 1)
    return total


def _guards(body: Region) -> list[TapeGuard]:
    """The guards of the tapes of ``body``: of each tape the innermost branch, below branches only, that has all of its uses."""
    paths: dict[TapeRef, Path] = {}
    _find_paths(body, (), paths)
    found: dict[int, tuple[Region, set[TapeRef]]] = {}
    for tape, path in paths.items():
        if path:
            found.setdefault(id(path[-1]), (path[-1], set()))[1].add(tape)
    return [_guard(region, frozenset(tapes)) for region, tapes in found.values()]


def _find_paths(region: Region, path: Path, paths: dict[TapeRef, Path]) -> None:
    """Cut what ``paths`` has for each tape that ``region`` uses to the part in common with ``path``, the branches around ``region``."""
    for op in region.ops:
        if op.code is ops.if_:
            for branch in op.regions:
                _find_paths(branch, (*path, branch), paths)
            continue
        for tape in _tapes(op):
            common = takewhile(lambda both: both[0] is both[1], zip(paths.get(tape, path), path))
            paths[tape] = tuple([branch for branch, _ in common])


def _guard(region: Region, tapes: frozenset[TapeRef]) -> TapeGuard:
    using = next(op for op in region.ops if _tapes(op) & tapes)
    return TapeGuard(region, tapes, using.loc)


def _tapes(op: Op) -> KeysView[TapeRef]:
    """Those that are used in ``op``, in the order of their first use: guards are numbered in it."""
    inside = (inner for region in op.regions for inner in region.walk())
    return dict.fromkeys([x.attr for x in (op, *inside) if isinstance(x.attr, TapeRef)]).keys()


def _is_small(loop: Op, guard: TapeGuard, sizes: Sequence[Size | None]) -> bool:
    begin, end = _bounds(loop)
    slot = _slot_bytes(guard.tapes, sizes)
    return isinstance(begin, int) and isinstance(end, int) and slot is not None and (end - begin) * slot <= _SMALL


def guard_count(number: int) -> TempRef:
    """Where the iterations that pass the guard with size ``number`` are counted."""
    return TempRef(f"guard_count{number}", i32, kind=TempKind.GUARD_COUNT, number=number)


def with_counts(kernel: Kernel, counted: Mapping[int, Op], guards: Mapping[int, TapeGuard]) -> tuple[Kernel, dict[int, TapeGuard]]:
    """``kernel`` such that it counts the invocations that use tapes: before each of the loops ``counted`` its trip count, as a capacity; at
    the begin of each guard an atomic addition to `guard_count`. ``TapeRef.slots`` of the tapes is the number of the count. Also the guards,
    with these tapes."""
    slots = {tape: k for k, loop in counted.items() for tape in _tapes(loop)}
    slots |= {tape: k for k, guard in guards.items() for tape in guard.tapes}
    made = _WithCounts(counted, guards, slots).kernel(kernel)
    return made, {k: replace(guard, tapes=frozenset([replace(tape, slots=k) for tape in guard.tapes])) for k, guard in guards.items()}


class _WithCounts(Rewriter):
    def __init__(self, counted: Mapping[int, Op], guards: Mapping[int, TapeGuard], slots: Mapping[TapeRef, int]) -> None:
        super().__init__()
        self.numbers = {loop: k for k, loop in counted.items()}
        self.guards = {id(guard.region): (k, guard) for k, guard in guards.items()}
        self.slots = slots
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
        if op.attr not in self.slots:
            return self.copy(op)
        return self.b.append(Op(op.code, op.type, self.args(op), replace(op.attr, slots=self.slots[op.attr]), (), op.loc, op.primal))

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
