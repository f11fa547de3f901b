"""Scalar promotion in tasks: serial loops inside of parallel ones carry an element of memory that they update, so that iterations of the
parallel loop can be vectorised, with the element in a register."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence

from spirograd.analysis.dependence import Access, Dependence, Iterations, accesses_in
from spirograd.analysis.existence import exists, has_trips
from spirograd.base.dtypes import unsigned
from spirograd.ir import ops
from spirograd.ir.integer_ranges import Range
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, Region
from spirograd.ir.threaded import LOOPS, Cell
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.scalar_promotion import Element, Key, ScalarPromotion

# Effects of operations that the loop may contain: none that makes memory visible to others, or ends the iteration.
_ALLOWED = frozenset(("pure", "read", "write", "atomic", "control", "structure"))


def carry_elements(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Carry, in each task that is a parallel loop, elements of 32 or 64 bits that a serial loop both loads and stores.

    The indices of the element are invariant in the serial loop, no other iteration of the parallel loop writes it, and no other access in
    the serial loop may alias it. The element is known to exist, from the bounds of the parallel loop or because it was accessed before the
    serial one, so it may be loaded even if the serial loop does not run. It is stored after the loop only if the loop has stored it, or the
    iteration has stored it before.
    """
    if not ctx.options.optimize or LOOPS.isdisjoint(kernel.codes):
        return kernel
    return _Carry().kernel(kernel)


class _Carry(ScalarPromotion):
    def __init__(self) -> None:
        super().__init__(Dependence())
        self.task: Iterations | None = None  # None in functions, because several iterations may share their elements
        self.task_writes: list[Access] = []
        self.stored: list[set[Key]] = []  # per open region: elements that were stored in it so far
        self.handlers |= {ops.task: self._task, ops.store: self._store}

    def _task(self, op: Op) -> Op:
        if op.attr.kind != "range_for" or op.attr.grouped or LOOPS.isdisjoint(op.regions[1].codes):
            return self.b.append(op)
        body, bounds = op.regions[1], op.regions[0].results[:2]
        self.task = Iterations([body], body.params[0], bounds)
        self.task_writes = [access for access in accesses_in([body]) if access.writes]
        return self.copy(op)

    def _region(self, region: Region, params: tuple[Op, ...], yields: Sequence[Cell]) -> Region:
        self.stored.append(set())
        new = super()._region(region, params, yields)
        self.stored.pop()
        return new

    def _store(self, op: Op) -> Op | None:
        new = self._access(op)
        if new is not None:
            self.stored[-1].add(self.key(op.attr, op.args[:-1]))
        return new

    # --- which elements ---------------------------------------------------------------------------------------------------

    def chosen(self, loop: Op) -> list[Element]:
        codes = frozenset().union(*[region.codes for region in loop.regions])
        if self.task is None or self.carried or ops.store not in codes or any(code.effect not in _ALLOWED for code in codes):
            return []
        return [element for element in self.candidates(loop) if self._is_chosen(element, self.task)]

    def _is_chosen(self, element: Element, task: Iterations) -> bool:
        if not isinstance(element.ref, (FieldRef, ArrayRef)) or element.ref.dtype.bits < 32:
            return False
        if {access.op.code for access in element.accesses} != {ops.load, ops.store} or not self._exists(element, task):
            return False
        return self.query.is_private(element.accesses[0], self.task_writes, task)

    def _exists(self, element: Element, task: Iterations) -> bool:
        """Return whether the element may be accessed before the loop."""
        ref, indices, (begin, end) = element.ref, element.indices, task.bounds
        if any(element.key in accessed for accessed in self.accessed):
            return True
        if isinstance(ref, ArrayRef):
            is_whole = begin.code is ops.const and begin.attr >= 0 and end.code is ops.shape and end.attr == (ref.arg, 0)
            entries = zip(indices[1:], ref.element_shape)
            inside = all(k.code is ops.const and 0 <= k.attr < n for k, n in entries)
            return bool(is_whole) and ref.ndim == 1 and indices[0] is task.index and inside
        ranges: dict[Op, Range] = {}
        if begin.code is end.code is ops.const and task.index is not None:
            ranges[task.index] = Range(int(begin.attr), int(end.attr) - 1)
        return exists(ref, indices, ranges)

    # --- before and after the loop -----------------------------------------------------------------------------------------

    def values_before(self, loop: Op, element: Element) -> list[Op]:
        return [self.b.load(element.ref, *element.where)]

    def store_after(self, loop: Op, elements: Sequence[Element]) -> None:
        groups: dict[Hashable, list[Element]] = {}
        for element in elements:
            groups.setdefault(self._when(loop, element), []).append(element)
        for when, group in groups.items():
            self._store_group(loop, when, group)
        self.accessed[-1].update(element.key for element in elements)
        if elements:
            self.carried = {}

    def _when(self, loop: Op, element: Element) -> Hashable:
        """Return when to store ``element``: always (True), if ``loop`` has an iteration (False), or if one of the returned regions of
        ``loop`` has stored it."""
        regions = frozenset([access.around[-1:] for access in element.accesses if access.writes])
        direct = loop.code is ops.for_ and () in regions
        if any(element.key in stored for stored in self.stored) or (direct and has_trips(loop)):
            return True
        return False if direct else regions

    def _store_group(self, loop: Op, when: Hashable, elements: Sequence[Element]) -> None:
        """Store ``elements`` after ``loop``. ``when``: see `_when`. Elements that one region stores are stored if any of them has changed.
        A flag would be another loop-carried value, for which LLVM would split the loop."""
        b = self.b
        if when is True:
            self._store_all(elements)
            self.stored[-1].update(element.key for element in elements)
            return
        b.loc = loop.loc
        if when is False:
            condition = b.emit(ops.lt, *self.args(loop)[:2])
        else:
            condition = functools.reduce(functools.partial(b.emit, ops.or_), [self._changed(element) for element in elements])
        b.begin()
        self._store_all(elements)
        then = b.end()
        b.begin()
        b.if_(condition, then, b.end())

    def _store_all(self, elements: Sequence[Element]) -> None:
        for element in elements:
            self.b.loc = element.accesses[-1].op.loc
            self.b.store(element.ref, *element.where, element.values[0])

    def _changed(self, element: Element) -> Op:
        """Return whether the value of ``element`` differs from the loaded one in any bit."""
        t = element.ref.dtype
        values = (element.before[0], element.values[0])
        bits = [self.b.emit(ops.bitcast, v, type=unsigned(t)) if t.is_float else v for v in values]
        return self.b.emit(ops.ne, *bits)
