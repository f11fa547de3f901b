"""Guards of adstacks: the number of invocations of a task that need adstacks.

The number is the trip count of the task, if only memory determines it, or the number of iterations that pass, if a condition guards the
adstacks.
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
from spirograd.ir.nodes import AdstackRef, Kernel, Op, Region, TempRef
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.temp_kinds import TempKind

# Bytes of adstacks below which counting does not pay, because the heap is never smaller.
_SMALL = 1 << 20
# The most thread slots of a task, on GPUs.
_MOST_SLOTS = 1 << 16


# The branches around an operation, the outermost first.
Path = tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class AdstackGuard:
    """A condition that guards adstacks. ``region``: the branch that an iteration of a parallel loop enters to use ``adstacks``, which the
    rest of the loop does not use. ``loc``: the location of the first loop with an adstack in the branch. Guards may be nested: each has
    adstacks of its own."""

    region: Region
    adstacks: frozenset[AdstackRef]
    loc: Loc | None


def adstack_guards(kernel: Kernel, sizes: Sequence[Size | None]) -> tuple[AdstackGuard, ...]:
    """Return the guards of the parallel loops of ``kernel``, a gradient kernel. ``sizes``: the known capacities, by number.

    All guards are returned, whatever their conditions, because the number of iterations that pass depends on the data. Counting them is
    cheap compared with the memory that it saves, and is not repeated while the memory that it reads stays the same. If the compiler can
    tell that the thread slots of all iterations are small, there is no guard: each iteration has a slot.
    """
    guards = []
    for loop in kernel.body.ops:
        if _is_counted(loop):
            guards += [guard for guard in _guards(loop.regions[0]) if not _is_small(loop, guard, sizes)]
    return tuple(guards)


def open_loops(kernel: Kernel, sizes: Sequence[Size | None], guards: Sequence[AdstackGuard]) -> tuple[Op, ...]:
    """Return the parallel loops of ``kernel`` that use adstacks outside of ``guards`` and whose trip counts do not follow from arguments
    and shapes. Loops with small adstacks are omitted, whatever their trip count. ``sizes``: as in `adstack_guards`."""
    inside: frozenset[AdstackRef] = frozenset().union(*[guard.adstacks for guard in guards])
    loops = []
    for loop in kernel.body.ops:
        if _is_counted(loop) and None in _bounds(loop):
            adstacks = _adstacks(loop) - inside
            slot = _slot_bytes(adstacks, sizes)
            if adstacks and (slot is None or slot * _MOST_SLOTS > _SMALL):
                loops.append(loop)
    return tuple(loops)


def _is_counted(loop: Op) -> bool:
    """Return whether fewer thread slots than ``loop`` has iterations may do. A loop with an index of 64 bits may have more iterations than
    can be counted, and the threads of a group take their thread slots together."""
    return loop.code is ops.for_ and loop.attr.parallel and not loop.attr.grouped and loop.args[0].type in (i32, u32)


def _bounds(loop: Op) -> tuple[Size | None, Size | None]:
    return size_of(loop.args[0]), size_of(loop.args[1])


def _slot_bytes(adstacks: Iterable[AdstackRef], sizes: Sequence[Size | None]) -> int | None:
    """Return the bytes that an invocation needs for ``adstacks``, or None if they are known only at launch."""
    total = 0
    for adstack in adstacks:
        entries = sizes[adstack.capacity]
        if not isinstance(entries, int):
            return None
        total += adstack.dtype.size * adstack.width * max(entries, 1)
    return total


def _guards(body: Region) -> list[AdstackGuard]:
    """Return the guards of the adstacks of ``body``: for each adstack, the innermost branch that contains all of its uses and lies in no
    loop inside of ``body``."""
    paths: dict[AdstackRef, Path] = {}
    _find_paths(body, (), paths)
    by_branch: dict[int, tuple[Region, set[AdstackRef]]] = {}
    for adstack, path in paths.items():
        if path:
            by_branch.setdefault(id(path[-1]), (path[-1], set()))[1].add(adstack)
    return [_guard(region, frozenset(adstacks)) for region, adstacks in by_branch.values()]


def _find_paths(region: Region, path: Path, paths: dict[AdstackRef, Path]) -> None:
    """Shorten the path of each adstack that ``region`` uses to the part in common with ``path``, the branches around ``region``."""
    for op in region.ops:
        if op.code is ops.if_:
            for branch in op.regions:
                _find_paths(branch, (*path, branch), paths)
            continue
        for adstack in _adstacks(op):
            common = takewhile(lambda both: both[0] is both[1], zip(paths.get(adstack, path), path))
            paths[adstack] = tuple([branch for branch, _ in common])


def _guard(region: Region, adstacks: frozenset[AdstackRef]) -> AdstackGuard:
    using = next(op for op in region.ops if _adstacks(op) & adstacks)
    return AdstackGuard(region, adstacks, using.loc)


def _adstacks(op: Op) -> KeysView[AdstackRef]:
    """Return the adstacks that ``op`` uses, in order of first use. Guards are numbered in this order."""
    inside = (inner for region in op.regions for inner in region.walk())
    return dict.fromkeys([x.attr for x in (op, *inside) if isinstance(x.attr, AdstackRef)]).keys()


def _is_small(loop: Op, guard: AdstackGuard, sizes: Sequence[Size | None]) -> bool:
    begin, end = _bounds(loop)
    slot = _slot_bytes(guard.adstacks, sizes)
    return isinstance(begin, int) and isinstance(end, int) and slot is not None and (end - begin) * slot <= _SMALL


def guard_count(number: int) -> TempRef:
    """Return the temporary that counts the iterations that pass the guard with size ``number``."""
    return TempRef(f"guard_count{number}", i32, kind=TempKind.GUARD_COUNT, number=number)


def with_counts(kernel: Kernel, counted: Mapping[int, Op], guards: Mapping[int, AdstackGuard]) -> tuple[Kernel, dict[int, AdstackGuard]]:
    """Extend ``kernel`` to count the invocations that use adstacks. It records the trip count of each loop in ``counted`` as a capacity
    before the loop, and adds to `guard_count` atomically at the beginning of each guard. ``AdstackRef.slots`` of the adstacks is the number
    of the count. Return also the guards, with these adstacks."""
    slots = {adstack: k for k, loop in counted.items() for adstack in _adstacks(loop)}
    slots |= {adstack: k for k, guard in guards.items() for adstack in guard.adstacks}
    counting = _WithCounts(counted, guards, slots).kernel(kernel)
    return counting, {
        k: replace(guard, adstacks=frozenset([replace(adstack, slots=k) for adstack in guard.adstacks])) for k, guard in guards.items()
    }


class _WithCounts(Rewriter):
    def __init__(self, counted: Mapping[int, Op], guards: Mapping[int, AdstackGuard], slots: Mapping[AdstackRef, int]) -> None:
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
