"""Guards of adstacks: how many invocations of a task need adstacks.

These are the iterations of the task, if only memory tells how many there are, and the iterations that pass, where a condition guards the
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
from spirograd.ir.nodes import AdstackRef, Kernel, Op, Region, TempKind, TempRef
from spirograd.ir.rewrite import Rewriter

# Bytes of adstacks for which counting is not worth it: the heap has as many in any case.
_SMALL = 1 << 20
# Thread slots of a task at most, on GPUs.
_MOST_SLOTS = 1 << 16


# The branches around an operation, the outermost first.
Path = tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class AdstackGuard:
    """A condition that guards adstacks. ``region``: the branch that an iteration of a parallel loop enters to use ``adstacks``, which are
    not used elsewhere in the loop. ``loc``: of the first loop in there that has one. Guards may be nested: each has adstacks of its own."""

    region: Region
    adstacks: frozenset[AdstackRef]
    loc: Loc | None


def adstack_guards(kernel: Kernel, sizes: Sequence[Size | None]) -> tuple[AdstackGuard, ...]:
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


def open_loops(kernel: Kernel, sizes: Sequence[Size | None], guards: Sequence[AdstackGuard]) -> tuple[Op, ...]:
    """The parallel loops of ``kernel`` with adstacks outside of the guards ``guards`` of which arguments and shapes do not tell how many
    iterations they have; not those whose adstacks are small however many that are. ``sizes``: as of `adstack_guards`."""
    inside: frozenset[AdstackRef] = frozenset().union(*[guard.adstacks for guard in guards])
    found = []
    for loop in kernel.body.ops:
        if loop.code is ops.for_ and loop.attr.parallel and loop.args[0].type in (i32, u32) and None in _bounds(loop):
            adstacks = _adstacks(loop) - inside
            slot = _slot_bytes(adstacks, sizes)
            if adstacks and (slot is None or slot * _MOST_SLOTS > _SMALL):
                found.append(loop)
    return tuple(found)


def _bounds(loop: Op) -> tuple[Size | None, Size | None]:
    return size_of(loop.args[0]), size_of(loop.args[1])


def _slot_bytes(adstacks: Iterable[AdstackRef], sizes: Sequence[Size | None]) -> int | None:
    """What an invocation needs for ``adstacks``; None if only a launch knows."""
    total = 0
    for adstack in adstacks:
        entries = sizes[adstack.capacity]
        if not isinstance(entries, int):
            return None
        total += adstack.dtype.size * adstack.width * max(entries, 1)
    return total


def _guards(body: Region) -> list[AdstackGuard]:
    """The guards of the adstacks of ``body``: of each adstack the innermost branch, below branches only, that has all of its uses."""
    paths: dict[AdstackRef, Path] = {}
    _find_paths(body, (), paths)
    found: dict[int, tuple[Region, set[AdstackRef]]] = {}
    for adstack, path in paths.items():
        if path:
            found.setdefault(id(path[-1]), (path[-1], set()))[1].add(adstack)
    return [_guard(region, frozenset(adstacks)) for region, adstacks in found.values()]


def _find_paths(region: Region, path: Path, paths: dict[AdstackRef, Path]) -> None:
    """Cut what ``paths`` has for each adstack that ``region`` uses to the part in common with ``path``, the branches around ``region``."""
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
    """Those that are used in ``op``, in the order of their first use: guards are numbered in it."""
    inside = (inner for region in op.regions for inner in region.walk())
    return dict.fromkeys([x.attr for x in (op, *inside) if isinstance(x.attr, AdstackRef)]).keys()


def _is_small(loop: Op, guard: AdstackGuard, sizes: Sequence[Size | None]) -> bool:
    begin, end = _bounds(loop)
    slot = _slot_bytes(guard.adstacks, sizes)
    return isinstance(begin, int) and isinstance(end, int) and slot is not None and (end - begin) * slot <= _SMALL


def guard_count(number: int) -> TempRef:
    """Where the iterations that pass the guard with size ``number`` are counted."""
    return TempRef(f"guard_count{number}", i32, kind=TempKind.GUARD_COUNT, number=number)


def with_counts(kernel: Kernel, counted: Mapping[int, Op], guards: Mapping[int, AdstackGuard]) -> tuple[Kernel, dict[int, AdstackGuard]]:
    """``kernel`` such that it counts the invocations that use adstacks: before each of the loops ``counted`` its trip count, as a capacity;
    at the begin of each guard an atomic addition to `guard_count`. ``AdstackRef.slots`` of the adstacks is the number of the count. Also
    the guards, with these adstacks."""
    slots = {adstack: k for k, loop in counted.items() for adstack in _adstacks(loop)}
    slots |= {adstack: k for k, guard in guards.items() for adstack in guard.adstacks}
    made = _WithCounts(counted, guards, slots).kernel(kernel)
    return made, {
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
