"""Scalar promotion: a serial loop carries an element of memory that it reads and writes. It is loaded before the loop and stored after it.

`carry_elements` promotes for speed, in tasks, and `promote` before differentiation. They choose different elements, and load and store them
under different conditions.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import field

from spirograd.analysis.dependence import Access, Alias, Dependence, accesses_in
from spirograd.analysis.loop_invariants import Invariants, contents
from spirograd.base.dtypes import u1
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import VARIABLES, Op, Ref, Region, rank, ref_of
from spirograd.ir.threaded import LOOPS, Cell, Threaded

# A memory, and the value numbers of the indices.
Key = tuple[Ref, tuple[int, ...]]


@dataclass(slots=True, eq=False)
class Element(Cell):
    """An element that a loop carries. ``values``: its value and, if recorded, whether it was stored. ``accesses``: the accesses of the loop
    to it; ``inside``: all values that the loop defines. ``where``, ``before``: indices and values before the loop. ``always``: the element
    exists even if the loop does not run."""

    key: Key = field(kw_only=True)
    inside: Container[Op] = field(kw_only=True)
    accesses: list[Access] = field(default_factory=list)
    where: tuple[Op, ...] = ()
    before: Sequence[Op] = ()
    always: bool = True

    @property
    def ref(self) -> Ref:
        return self.key[0]

    @property
    def indices(self) -> tuple[Op, ...]:
        return self.accesses[0].indices or ()

    @property
    def writes(self) -> list[Op]:
        return [access.op for access in self.accesses if access.writes]


class ScalarPromotion(Threaded):
    """A rewriter that promotes elements. A subclass chooses among the `candidates` of a loop, loads the chosen elements, and stores them
    after the loop."""

    def __init__(self, query: Dependence) -> None:
        super().__init__()
        self.query = query
        self.carried: dict[Op, Element] = {}  # access -> the element
        self.accessed: list[set[Key]] = []  # per open region: elements that were accessed in it so far
        self.handlers |= dict.fromkeys((ops.load, ops.store, ops.atomic), self._access) | dict.fromkeys(LOOPS, self._loop)

    def chosen(self, loop: Op) -> list[Element]:
        """Return the elements that ``loop`` is to carry."""
        raise NotImplementedError

    def values_before(self, loop: Op, element: Element) -> list[Op]:
        """Return the `Element.values` before ``loop``, for which this emits a load."""
        raise NotImplementedError

    def store_after(self, loop: Op, elements: Sequence[Element]) -> None:
        """Emit the stores of the elements after ``loop``, which is complete."""
        raise NotImplementedError

    def candidates(self, loop: Op) -> list[Element]:
        """Return the elements at indices that are invariant in ``loop``, if all its other accesses are known to be to other elements, and
        loop-carried values can replace the accesses."""
        inside = contents(*loop.regions)
        invariant = Invariants(inside)
        accesses = [access for access in accesses_in(loop.regions, VARIABLES) if access.op not in self.carried]
        groups: dict[Key, Element] = {}
        for access in accesses:
            if access.indices is not None and all(index in invariant for index in access.indices):
                key = self.key(access.ref, access.indices)
                groups.setdefault(key, Element(key=key, inside=inside)).accesses.append(access)
        out = []
        for element in groups.values():
            first, mine = element.accesses[0], {access.op for access in element.accesses}
            others = [access for access in accesses if access.op not in mine]
            if all(self.query.alias(first, access, invariant) is Alias.NO for access in others) and _can_be_carried(loop, element):
                out.append(element)
        return out

    def key(self, ref: Ref, indices: Sequence[Op]) -> Key:
        return ref, self.query.numbers.all(indices)

    def _loop(self, op: Op) -> Op:
        elements = self.chosen(op)
        for element in sorted(elements, key=lambda e: not e.always):
            self.b.loc = next((op.loc for op, *_ in element.accesses if op.code is not ops.store), element.accesses[0].op.loc)
            element.where = tuple([self.rematerialised(index, element.inside) for index in element.indices])
            element.values = self.values_before(op, element)
            element.before = [*element.values]
            element.sites = set(element.writes)
            self.carried.update((access.op, element) for access in element.accesses)
            self.cells.append(element)
        new = self.threaded(op)
        self.cells = [cell for cell in self.cells if cell not in elements]
        self.store_after(op, elements)
        return new

    def _region(self, region: Region, params: tuple[Op, ...], yields: Sequence[Cell]) -> Region:
        self.accessed.append(set())
        new = super()._region(region, params, yields)
        self.accessed.pop()
        return new

    def _access(self, op: Op) -> Op | None:
        element = self.carried.get(op)
        if element is None:
            ref = ref_of(op)
            if isinstance(ref, VARIABLES):
                self.accessed[-1].add(self.key(ref, op.args[: rank(ref)]))
            return self.copy(op)
        old = element.values[0]
        if op.code is ops.load:
            return old
        value = self.value(op.args[-1])
        new = value if op.code is ops.store else self.b.combined(op.attr[0], old, value)
        element.values = [new, *[self.b.const(True, u1) for _ in element.values[1:]]]
        return None if op.code is ops.store else old


def _can_be_carried(loop: Op, element: Element) -> bool:
    """Return whether loop-carried values can replace the accesses, by their kinds and positions. The condition of a `while` cannot yield a
    new value."""
    if any(access.op.code is ops.cas for access in element.accesses):
        return False
    mine, writes = {access.op for access in element.accesses}, set(element.writes)
    for op in (loop, *[inner for region in loop.regions for inner in region.walk() if inner.regions]):
        if op.code is ops.while_ and not writes.isdisjoint(op.regions[0].walk()):
            return False
        if op.code is ops.for_ and op.attr.parallel and not mine.isdisjoint(op.regions[0].walk()):
            return False
    return True
