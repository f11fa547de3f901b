"""Scalar promotion: serial loops in parallel ones carry an element of memory that they update, which is loaded before the loop and stored
after it. Then iterations of the parallel loop run as lanes of vectors, with the element in a register."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator, Mapping, Sequence

from spirograd.analysis.effects import may_alias
from spirograd.analysis.existence import has_trips
from spirograd.analysis.injectivity import determines
from spirograd.analysis.loop_invariants import Invariants, contents
from spirograd.base.dtypes import DType, unsigned
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, Ref, Region, accesses_of, rank
from spirograd.ir.threaded import LOOPS, Cell, Threaded
from spirograd.transforms.pass_context import PassContext

# What may be in the loop: nothing that shows memory to others, or stops the iteration.
_ALLOWED = frozenset(("pure", "read", "write", "atomic", "control", "structure"))
_Element = tuple[Ref, tuple[Op, ...]]


def carry_elements(kernel: Kernel, ctx: PassContext) -> Kernel:
    """In each task that is a parallel loop, an element of 32 or 64 bits that a serial loop both loads and stores.

    Its indices are the same throughout the serial loop and belong to one iteration of the parallel one, whose writes to this memory have
    all the same indices there; no other access in the serial loop may be to the same bytes. The element exists, by the bounds of the
    parallel loop or because it was accessed before the serial one, so that it may be loaded where the serial loop does not run. It is
    stored after the loop only if the loop stored it, or if the iteration did so before.
    """
    if not ctx.options.optimize or LOOPS.isdisjoint(kernel.codes):
        return kernel
    return _Carry().kernel(kernel)


class _Carry(Threaded):
    def __init__(self) -> None:
        super().__init__()
        self.bounds: Sequence[Op] = ()  # of the task; none in functions, whose elements may be those of several iterations
        self.body = Region((), ())
        self.invariant = Invariants(())
        self.writes: list[Op] = []  # in the task
        self.carried: dict[Op, Cell] = {}  # access -> what the element holds
        self.accessed: list[set[_Element]] = []  # per open region
        self.stored: list[set[_Element]] = []  # the same for those that were stored
        self.handlers |= {ops.task: self._task, ops.load: self._load, ops.store: self._store, **dict.fromkeys(LOOPS, self._loop)}

    def _task(self, op: Op) -> Op:
        if op.attr.kind != "range_for" or op.attr.grouped or LOOPS.isdisjoint(op.regions[1].codes):
            return self.b.append(op)
        self.body, self.bounds = op.regions[1], op.regions[0].results[:2]
        self.writes = [x for x in self.body.walk() if x.code is ops.store or x.code.effect in ("atomic", "call")]
        self.invariant = Invariants(contents(self.body))
        return self.copy(op)

    def _region(self, region: Region, params: tuple[Op, ...], yields: Sequence[Cell]) -> Region:
        self.accessed.append(set())
        self.stored.append(set())
        new = super()._region(region, params, yields)
        self.accessed.pop()
        self.stored.pop()
        return new

    # --- accesses ---------------------------------------------------------------------------------------------------------

    def _load(self, op: Op) -> Op:
        if op in self.carried:
            return self.carried[op].values[0]
        self.accessed[-1].add((op.attr, op.args))
        return self.copy(op)

    def _store(self, op: Op) -> Op | None:
        if op in self.carried:
            self.carried[op].values = [self.value(op.args[-1])]
            return None
        self.accessed[-1].add((op.attr, op.args[:-1]))
        self.stored[-1].add((op.attr, op.args[:-1]))
        return self.copy(op)

    def _loop(self, op: Op) -> Op:
        found = self._elements(op) if self.bounds and not self.carried else {}
        before: dict[_Element, Op] = {}
        for element, accesses in found.items():
            self.b.loc = accesses[0].loc
            before[element] = self.b.load(element[0], *[self.value(i) for i in element[1]])
            cell = Cell([before[element]], {x for x in accesses if x.code is ops.store})
            self.cells.append(cell)
            self.carried.update(dict.fromkeys(accesses, cell))
        new = self.threaded(op)
        if found:
            for when, elements in self._groups(op, found).items():
                self._store_carried(op, when, {element: found[element] for element in elements}, before)
            self.accessed[-1].update(found)
            self.cells, self.carried = [], {}
        return new

    # --- whether they were stored -----------------------------------------------------------------------------------------

    def _groups(self, loop: Op, found: Mapping[_Element, Sequence[Op]]) -> dict[Hashable, list[_Element]]:
        """The elements by when they are stored: True is always, False where ``loop`` has an iteration; else the regions in which ``loop``
        stores them."""
        places = {x: region for op in (loop, *_contents(loop)) for region in op.regions for x in region.ops}
        groups: dict[Hashable, list[_Element]] = {}
        for element, accesses in found.items():
            regions = frozenset([places[x] for x in accesses if x.code is ops.store])
            direct = loop.code is ops.for_ and loop.regions[0] in regions
            always = any(element in stored for stored in self.stored) or (direct and has_trips(loop))
            groups.setdefault(True if always else False if direct else regions, []).append(element)
        return groups

    def _store_carried(self, loop: Op, when: Hashable, elements: Mapping[_Element, Sequence[Op]], before: Mapping[_Element, Op]) -> None:
        """Store what ``loop`` left in ``elements``. ``when``: see `_groups`. ``before``: what they were. Those that one region stores are
        stored if one of them has changed: a flag would be a loop-carried value more, over which LLVM splits the loop."""
        b = self.b
        if when is True:
            self._store_all(elements)
            self.stored[-1].update(elements)
            return
        b.loc = loop.loc
        if when is False:
            condition = b.emit(ops.lt, *self.args(loop)[:2])
        else:
            changes = [self._changed(before[element], self.carried[accesses[0]].values[0]) for element, accesses in elements.items()]
            condition = functools.reduce(functools.partial(b.emit, ops.or_), changes)
        b.begin()
        self._store_all(elements)
        then = b.end()
        b.begin()
        b.if_(condition, then, b.end())

    def _store_all(self, elements: Mapping[_Element, Sequence[Op]]) -> None:
        for (ref, indices), accesses in elements.items():
            (value,) = self.carried[accesses[0]].values
            self.b.loc = accesses[-1].loc
            self.b.store(ref, *[self.value(i) for i in indices], value)

    def _changed(self, before: Op, after: Op) -> Op:
        """Whether any bit differs."""
        t = before.type
        assert isinstance(t, DType)
        bits = [self.b.emit(ops.bitcast, v, type=unsigned(t)) if t.is_float else v for v in (before, after)]
        return self.b.emit(ops.ne, *bits)

    # --- which elements ---------------------------------------------------------------------------------------------------

    def _elements(self, loop: Op) -> dict[_Element, list[Op]]:
        """The elements that ``loop`` can carry, with their accesses in it."""
        if ops.store not in {code for region in loop.regions for code in region.codes}:
            return {}
        inside = [x for region in loop.regions for x in region.walk()]
        if any(x.code.effect not in _ALLOWED for x in inside):
            return {}
        within = {*inside, *(p for region in loop.regions for p in region.params)}
        within.update(p for x in inside for region in x.regions for p in region.params)
        # The condition of a `while` yields its verdict alone.
        tested = {x for op in (loop, *inside) if op.code is ops.while_ for x in op.regions[0].walk()}
        found: dict[_Element, list[Op]] = {}
        for op in inside:
            if op.code in (ops.load, ops.store):
                indices = op.args[: rank(op.attr)]
                if isinstance(op.attr, (FieldRef, ArrayRef)) and op.attr.dtype.bits >= 32 and within.isdisjoint(indices):
                    found.setdefault((op.attr, indices), []).append(op)
        return {
            element: accesses
            for element, accesses in found.items()
            if len({x.code for x in accesses}) == 2
            and tested.isdisjoint(x for x in accesses if x.code is ops.store)
            and self._exists(element)
            and self._alone(element, accesses, inside)
            and self._owned(element)
        }

    def _alone(self, element: _Element, accesses: list[Op], inside: list[Op]) -> bool:
        """Whether all other accesses in the serial loop are to other bytes."""
        mine = set(accesses)
        others = [(x, ref) for x in inside if x not in mine for _, ref in accesses_of(x) if may_alias(element[0], ref)]
        return all(x.code.effect != "call" and ref == element[0] and _differ(element[1], x.args) for x, ref in others)

    def _owned(self, element: _Element) -> bool:
        """Whether no other iteration of the parallel loop writes the element."""
        ref, indices = element
        inner = len(ref.element_shape) if isinstance(ref, (FieldRef, ArrayRef)) else 0
        place = indices[: len(indices) - inner]
        for op in self.writes:
            for effect, other in accesses_of(op):
                if effect == "read" or not may_alias(ref, other):
                    continue
                if other != ref or op.code.effect == "call" or any(x is not y for x, y in zip(place, op.args)):
                    return False
        return determines(place, self.body.params[0], self.invariant, self.bounds)

    def _exists(self, element: _Element) -> bool:
        """Whether the element may be accessed before ``loop``."""
        if any(element in accessed for accessed in self.accessed):
            return True
        ref, indices = element
        if isinstance(ref, ArrayRef):
            begin, end = self.bounds
            whole = begin.code is ops.const and begin.attr >= 0 and end.code is ops.shape and end.attr == (ref.arg, 0)
            return whole and ref.ndim == 1 and indices[0] is self.body.params[0] and _in_range(self, indices[1:], ref.element_shape, ())
        if not isinstance(ref, FieldRef):
            return False
        return _in_range(self, indices, (*ref.shape, *ref.element_shape), ref.layout.origin)


def _contents(op: Op) -> Iterator[Op]:
    """The operations in the regions of ``op``."""
    return (x for region in op.regions for x in region.walk())


def _differ(a: Sequence[Op], b: Sequence[Op]) -> bool:
    """Whether two accesses of one memory are to different elements by a constant index, like that of an entry of a vector."""
    return any(x.code is y.code is ops.const and x.attr != y.attr for x, y in zip(a, b))


def _in_range(carry: _Carry, indices: Sequence[Op], shape: Sequence[int], origin: Sequence[int]) -> bool:
    starts = (*origin, *[0] * (len(shape) - len(origin)))
    ranges = [_range(carry, index) for index in indices]
    return all(r is not None and r[0] >= start and r[1] <= start + extent for r, extent, start in zip(ranges, shape, starts))


def _range(carry: _Carry, op: Op) -> tuple[int, int] | None:
    """The least value of ``op``, and one more than its largest, where the bounds of the parallel loop tell."""
    if op.code is ops.const:
        return int(op.attr), int(op.attr) + 1
    if op is carry.body.params[0]:
        begin, end = carry.bounds
        return (int(begin.attr), int(end.attr)) if begin.code is end.code is ops.const else None
    if op.code not in (ops.idiv, ops.irem) or op.args[1].code is not ops.const or op.args[1].attr <= 0:
        return None
    of, by = _range(carry, op.args[0]), int(op.args[1].attr)
    if of is None or of[0] < 0 or of[1] <= of[0]:
        return None
    return (of[0] // by, (of[1] - 1) // by + 1) if op.code is ops.idiv else (0, min(by, of[1]))
