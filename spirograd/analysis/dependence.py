"""Memory dependence: whether two accesses may, must or cannot access the same element, within an iteration of a loop and across iterations.

An access (`Access`) is an effect on the element of a reference at some indices, under guards: the branches around it. References are
compared by `may_alias`, indices by their affine forms (`ValueNumbers.affine`), and across iterations by whether the indices determine the
iteration (`injectivity`). All answers are conservative: `Alias.NO` and `Alias.MUST` are certain, and so is that nothing is carried.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from spirograd.analysis.effects import may_alias
from spirograd.analysis.injectivity import determines
from spirograd.analysis.loop_invariants import Invariants, contents
from spirograd.analysis.value_numbers import ValueNumbers
from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import REFS, Op, Ref, Region, accesses_of, rank, ref_of

# The control operations around an operation, outermost first, each with the number of the region.
Around = tuple[tuple[Op, int], ...]


class Access(NamedTuple):
    """An access of ``op`` to memory: ``effect`` ("read", "write", "atomic") on the element of ``ref`` at ``indices``. Calls have no
    indices, and may access any element."""

    op: Op
    effect: str
    ref: Ref
    indices: tuple[Op, ...] | None
    around: Around = ()

    @property
    def writes(self) -> bool:
        return self.effect != "read"


def access_of(op: Op, around: Around = ()) -> Access:
    """Return the access of an operation on one element."""
    ref = ref_of(op)
    assert ref is not None
    return Access(op, op.code.effect, ref, op.args[: rank(ref)], around)


def accesses_in(regions: Iterable[Region], of: tuple[type, ...] = REFS, around: Around = ()) -> Iterator[Access]:
    """Yield every access in ``regions`` to references of the types ``of``, in order."""
    for region in regions:
        for op in region.ops:
            if op.code.effect == "pure":
                continue
            if op.code is ops.call_memory:
                yield from (Access(op, effect, ref, None, around) for effect, ref in accesses_of(op) if isinstance(ref, of))
            elif isinstance(ref_of(op), of):
                yield access_of(op, around)
            for number, inner in enumerate(op.regions):
                yield from accesses_in((inner,), of, (*around, (op, number)))


class Alias(Enum):
    NO = "no"
    MAY = "may"
    MUST = "must"


class Iterations:
    """The iterations of a loop with these ``regions``. ``index``: the index of a `for`; ``bounds``: its begin and end, if known."""

    def __init__(self, regions: Sequence[Region], index: Op | None = None, bounds: Sequence[Op] = ()) -> None:
        self.index = index
        self.bounds = bounds
        self.invariant = Invariants(contents(*regions))
        self._determined: dict[tuple[Op, ...], bool] = {}

    def are_determined_by(self, values: tuple[Op, ...]) -> bool:
        """Return whether ``values`` together differ between any two iterations."""
        if self.index is None:
            return False
        if values not in self._determined:
            self._determined[values] = determines(values, self.index, self.invariant, self.bounds)
        return self._determined[values]


def iterations_of(loop: Op) -> Iterations:
    """Return the iterations of a `for` or `while`."""
    return Iterations(loop.regions, loop.regions[0].params[0], loop.args[:2]) if loop.code is ops.for_ else Iterations(loop.regions)


class Dependence:
    """Queries about accesses of one kernel. ``separate_arrays``: as in `region_of`."""

    def __init__(self, numbers: ValueNumbers | None = None, separate_arrays: bool = False) -> None:
        self.numbers = numbers or ValueNumbers()
        self.separate_arrays = separate_arrays

    def may_alias(self, a: Ref, b: Ref) -> bool:
        return may_alias(a, b, self.separate_arrays)

    def alias(self, a: Access, b: Access, invariant: Container[Op] | None = None) -> Alias:
        """Return whether two accesses are to one element, if the values of ``invariant`` are the same for both and others may differ. None:
        all values are the same, as within one iteration."""
        if not self.may_alias(a.ref, b.ref):
            return Alias.NO
        if a.ref != b.ref or a.indices is None or b.indices is None:
            return Alias.MAY
        equal = True
        for x, y in zip(a.indices, b.indices):
            (base, c, value), (other, d, _) = self.numbers.affine(x), self.numbers.affine(y)
            if base != other or x.type is not y.type or not (value is None or invariant is None or value in invariant):
                equal = False
            elif isinstance(x.type, DType) and (c - d) % (1 << x.type.bits):
                return Alias.NO
        return Alias.MUST if equal else Alias.MAY

    def carried(self, a: Access, b: Access, loop: Iterations) -> bool:
        """Return whether ``a`` in one iteration of ``loop`` and ``b`` in another may access one element. Values from outside of the loop
        are the same for both."""
        alias = self.alias(a, b, loop.invariant)
        if alias is not Alias.MAY or a.ref != b.ref or a.indices is None or b.indices is None:
            return alias is not Alias.NO
        return not loop.are_determined_by(tuple([x for x, y in zip(a.indices, b.indices) if self.numbers(x) == self.numbers(y)]))

    def is_private(self, access: Access, writes: Iterable[Access], loop: Iterations) -> bool:
        """Return whether a single iteration of ``loop`` changes the element of ``access``, given the writes of the loop. A write is
        compared with itself first, which decides for all elements that each iteration changes."""
        if access.writes and self.carried(access, access, loop):
            return False
        return not any(self.carried(access, write, loop) for write in writes)


def private_updates(body: Region, bounds: Sequence[Op]) -> set[Op]:
    """Return the atomics of a loop over ``bounds`` at elements that a single iteration changes, such as those of steps from ``x[t, i]`` to
    ``x[t + 1, i]``."""
    if ops.atomic not in body.codes:
        return set()
    query, loop = Dependence(), Iterations([body], body.params[0], bounds)
    writes = [access for access in accesses_in([body]) if access.writes]
    rivals: dict[Ref, list[Access]] = {}
    for access in writes:
        if access.op.code is ops.atomic and access.ref not in rivals:
            rivals[access.ref] = [write for write in writes if may_alias(access.ref, write.ref)]
    return {a.op for a in writes if a.op.code is ops.atomic and query.is_private(a, rivals[a.ref], loop)}


def are_exclusive(a: Access, b: Access) -> bool:
    """Return whether the guards of two accesses exclude each other in one iteration, because they are on different sides of a branch."""
    for (op, number), (other, side) in zip(a.around, b.around):
        if op is not other or number != side:
            return op is other and op.code is ops.if_
    return False
