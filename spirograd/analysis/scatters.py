"""Scatters: parallel loops that add to elements around the place of each iteration, as the derivative of a stencil does.

Where the iterations that add to an element can be told from its indices, a loop over the elements can do the same: each element takes what
those iterations would add, without atomics. J. Hückelheim, N. Kukreja, S. H. K. Narayanan, F. Luporini, G. Gorman and P. Hovland, Automatic
Differentiation for Adjoint Stencil Loops, 2019, do so for whole derivatives; here it is done for one memory of a loop at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Container, Iterator, Sequence

from spirograd.analysis.axes import Axis, Digits, bound
from spirograd.analysis.dependence import Access, Alias, Dependence, accesses_in
from spirograd.analysis.effects import may_alias
from spirograd.analysis.loop_invariants import Invariants, contents
from spirograd.base.dtypes import i32
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Op, Ref, ref_of

# Distances from the place of an iteration beyond which sums of indices might wrap around.
_FARTHEST = 1 << 15
# Extents by which sums of indices are divided before they might wrap around.
_LARGEST = 1 << 29
# Iterations at an end of an axis that add to the same element, because their indices are limited.
_MOST_AT_ENDS = 4
# Beyond this index of memory, that of an iteration that adds to an element might wrap around.
LAST_INDEX = (1 << 31) - 2 * _FARTHEST
# Operations that iterations may consist of. What else has an effect must happen as often as it does.
_EFFECTS = frozenset(("pure", "read", "write", "atomic", "control", "structure"))
_REMAINDERS = frozenset((ops.floormod, ops.irem))
_EXCLUDED = frozenset((ops.for_, ops.while_, ops.call, ops.cas, ops.claim, ops.thread_slot, ops.stack_room, ops.adstack_word))


@dataclass(frozen=True, slots=True)
class Index:
    """The index of an element by the place x of an iteration along an axis: min(max(x + shift, low), high), where ``low`` and ``high`` are
    offsets from the ends of the axis, if there are any; or with ``wraps`` x + shift modulo the extent."""

    axis: int
    shift: int
    low: int | None = None
    high: int | None = None
    wraps: bool = False

    @property
    def reach(self) -> int:
        """How far beyond begin and end of the axis the index may be."""
        if self.wraps:
            return 0
        reach = self.shift if self.low is None else max(self.shift, self.low)
        return reach if self.high is None else min(reach, self.high + 1)

    def preimages(self) -> Iterator[Preimage]:
        """Of which each takes an element to another iteration, or to none."""
        if self.wraps and self.shift:
            yield Preimage("wrap", self.shift)
            return
        yield Preimage("shift", self.shift, self.low, self.high)
        if self.low is not None:
            yield from (Preimage("first", k, low=self.low) for k in range(self.low - self.shift))
        if self.high is not None:
            yield from (Preimage("last", k, high=self.high) for k in range(self.shift - self.high - 1))


@dataclass(frozen=True, slots=True)
class Preimage:
    """Which iteration, along one axis, adds to the element at q. The ``kind`` decides the place and the condition:

    - "shift": q - number, if that is on the axis, and q not below low or above high
    - "wrap": q - number modulo the extent, if q is on the axis
    - "first": begin + number, if that is on the axis, and q is low
    - "last": end - 1 - number, if that is on the axis, and q is high
    """

    kind: str
    number: int
    low: int | None = None
    high: int | None = None


# For each axis one.
Preimages = tuple[Preimage, ...]


@dataclass(slots=True, eq=False)
class Scatter:
    """What ``atomics`` add to the memory ``ref``, all that a loop does there.

    ``dims``: for each axis, which index of the memory follows it. ``hull``: for each axis, the first element as an offset from its begin,
    and what comes after the last one as an offset from its end. ``terms``: by the iteration that adds to an element, the atomics that do.
    ``overlaps``: arrays that must not overlap ``ref``. ``needed``: what of the body computes what is added, and whether.
    """

    ref: FieldRef | ArrayRef
    atomics: tuple[Op, ...]
    axes: tuple[Axis, ...]
    dims: tuple[int, ...]
    hull: tuple[tuple[int, int], ...]
    terms: dict[Preimages, list[Op]]
    overlaps: tuple[ArrayRef, ...]
    needed: frozenset[Op]


def scatters(loop: Op) -> list[Scatter]:
    """Those of a parallel loop of which the iterations that add to an element are known, several of them."""
    body = loop.regions[0]
    if loop.attr.grouped or loop.attr.deactivates or body.params[0].type is not i32 or ops.atomic not in body.codes:
        return []
    if not _EXCLUDED.isdisjoint(body.codes) or any(code.effect not in _EFFECTS for code in body.codes):
        return []
    by_ref: dict[Ref, list[Op]] = {}
    for op in body.walk():
        if op.code is ops.atomic:
            by_ref.setdefault(op.attr[1], []).append(op)
    shape = _Body(loop)
    found = [shape.scatter(ref, atomics) for ref, atomics in by_ref.items() if len(atomics) > 1]
    return [scatter for scatter in found if scatter is not None]


class _Body:
    """The body of a loop."""

    def __init__(self, loop: Op) -> None:
        self.body = loop.regions[0]
        self.index = self.body.params[0]
        self.bounds = loop.args[:2]
        self.invariant = Invariants(contents(self.body))
        self.everything = list(self.body.walk())
        self.used = {a for op in self.everything for a in op.args}
        self.around: dict[Op, Op] = {}  # what stands in a branch -> the `if`
        for op in self.everything:
            for region in op.regions:
                self.around.update(dict.fromkeys(region.ops, op))

    def scatter(self, ref: Ref, atomics: list[Op]) -> Scatter | None:
        """What the loop adds to ``ref``; None if that is not all that it does there, or iterations may add to any element."""
        if not isinstance(ref, (FieldRef, ArrayRef)):
            return None
        if any(op.attr[0] != "add" or op in self.used for op in atomics):
            return None
        overlaps = self._overlaps(ref, set(atomics))
        axes = self._axes(atomics) if overlaps is not None else None
        if axes is None or overlaps is None:
            return None
        followed = [self._followed(op, axes) for op in atomics]
        dims = [None if found is None else tuple([dim for dim, _ in found]) for found in followed]
        if dims[0] is None or any(other != dims[0] for other in dims):
            return None
        if not _has_small_indices(ref, dims[0]):
            return None
        indices = [[index for _, index in found or ()] for found in followed]
        terms: dict[Preimages, list[Op]] = {}
        for op, found in zip(atomics, indices):
            for term in itertools.product(*[index.preimages() for index in found]):
                terms.setdefault(term, []).append(op)
        needed = self._needed(atomics, {value for axis in axes for value in (axis.place, axis.digit)})
        if len(terms) < 2 or not self._movable(needed, set(atomics)):
            return None
        reaches = [[index.reach for index in of_axis] for of_axis in zip(*indices)]
        hull = tuple([(min(some), max(some)) for some in reaches])
        return Scatter(ref, tuple(atomics), axes, dims[0], hull, terms, overlaps, needed)

    # --- memory ----------------------------------------------------------------------------------------------------------

    def _overlaps(self, ref: Ref, atomics: set[Op]) -> tuple[ArrayRef, ...] | None:
        """The arrays that may overlap ``ref``; None if the loop accesses what surely does, other than by ``atomics``."""
        found: dict[ArrayRef, None] = {}
        for op in self.everything:
            other = ref_of(op)
            if other is None or op in atomics or not may_alias(ref, other):
                continue
            if other == ref or not isinstance(ref, ArrayRef) or not isinstance(other, ArrayRef):
                return None
            found[other] = None
        return tuple(found)

    def _needed(self, atomics: Sequence[Op], given: Collection[Op | None]) -> frozenset[Op]:
        """What of the body decides what ``atomics`` add, and whether they do, from the values ``given``."""
        needed: set[Op] = set()
        pending = [op.args[-1] for op in atomics] + [self.around[op] for op in atomics if op in self.around]
        while pending:
            op = pending.pop()
            if op in needed or op in given:
                continue
            needed.add(op)
            if op.code is ops.result:
                pending += [region.results[op.attr] for region in op.args[0].regions]
            pending += op.args
            pending += [self.around[op]] if op in self.around else []
        return frozenset(needed)

    def _movable(self, needed: frozenset[Op], atomics: set[Op]) -> bool:
        """Whether ``needed`` may be computed in a loop before this one, and more than once: no other update is read."""
        query, written = Dependence(), list[Access]()
        for access in accesses_in([self.body]):
            if access.op in atomics:
                continue
            if access.op in needed and (access.writes or any(query.alias(access, other) is not Alias.NO for other in written)):
                return False
            if access.writes:
                written.append(access)
        return True

    # --- indices ---------------------------------------------------------------------------------------------------------

    def _axes(self, atomics: Sequence[Op]) -> tuple[Axis, ...] | None:
        """The axes of the index space, outermost first, by the places that the indices of ``atomics`` are made of."""
        digits = Digits(self.index, self.bounds, self.invariant)
        places: dict[Op, None] = {}
        for op in atomics:
            for value in op.args[:-1]:
                while value is not self.index and value not in self.invariant and digits.of(value) is None:
                    inner = value.args[0] if value.code in _REMAINDERS else _inside(value, self.invariant)
                    if inner is None:
                        return None
                    value = inner
                if value not in self.invariant:
                    places[value] = None
        if list(places) == [self.index]:
            begin, end = self.bounds
            return (Axis(self.index, bound(begin), bound(end)),)
        return digits.axes(places)

    def _followed(self, atomic: Op, axes: Sequence[Axis]) -> list[tuple[int, Index]] | None:
        """The indices of ``atomic`` that follow the axes, one for each, with their numbers. None if it is not so."""
        found = []
        for dim, value in enumerate(atomic.args[:-1]):
            if value in self.invariant and (value.type is i32 or value.code is ops.const):
                continue
            index = self._index(value, axes)
            if index is None or abs(index.shift) > _FARTHEST:
                return None
            found.append((dim, index))
        found.sort(key=lambda pair: pair[1].axis)
        return found if [index.axis for _, index in found] == list(range(len(axes))) else None

    def _index(self, value: Op, axes: Sequence[Axis]) -> Index | None:
        for number, axis in enumerate(axes):
            if value is axis.place:
                return Index(number, 0)
        if value.code in _REMAINDERS:
            return self._wrapped(value, axes)
        inner = _inside(value, self.invariant)
        index = None if inner is None else self._index(inner, axes)
        if index is None or index.wraps:
            return None
        other = next(a for a in value.args if a is not inner)
        if value.code in (ops.add, ops.sub):
            if other.code is not ops.const or index.low is not None or index.high is not None:
                return None
            return Index(index.axis, index.shift + int(other.attr) * (1 if value.code is ops.add else -1))
        return self._limited(value, index, other, axes[index.axis])

    def _limited(self, value: Op, index: Index, limit: Op, axis: Axis) -> Index | None:
        """Of a minimum or maximum with what is known relative to the ends of the axis."""
        low, high = index.low, index.high
        if value.code is ops.max_ and low is None:
            low = bound(limit).minus(axis.begin)
        elif value.code is ops.min_ and high is None:
            high = bound(limit).minus(axis.end)
        else:
            return None
        if (low, high) == (index.low, index.high) or (low is not None and high is not None and low > high + 1):
            return None
        at_ends = [0 if low is None else low - index.shift, 0 if high is None else index.shift - high - 1]
        return Index(index.axis, index.shift, low, high) if max(at_ends) <= _MOST_AT_ENDS else None

    def _wrapped(self, value: Op, axes: Sequence[Axis]) -> Index | None:
        """Of a remainder by the extent of an axis that begins at 0."""
        inner, divisor = value.args
        extent = bound(divisor)
        shift = extents = 0  # what is added to the place
        while inner.code in (ops.add, ops.sub) and (below := _inside(inner, self.invariant)) is not None:
            other = next(a for a in inner.args if a is not below)
            sign = 1 if inner.code is ops.add else -1
            if other.code is ops.const:
                shift += sign * int(other.attr)
            elif other is divisor:
                extents += sign
            else:
                return None
            inner = below
        number = next((n for n, axis in enumerate(axes) if (inner, (None, 0), extent) == (axis.place, axis.begin, axis.end)), None)
        if number is None or (value.code is ops.irem and (shift < -1 or extents < 0 or shift + extents < 0)):
            return None
        if extent.base is None:  # by as little as possible, so that one correction is enough
            if max(extent.offset, abs(shift)) > _LARGEST:
                return None
            shift %= max(extent.offset, 1)
            shift -= extent.offset if 2 * shift > extent.offset else 0
        elif abs(shift) > 1:
            return None
        return Index(number, shift, wraps=shift != 0)


def _has_small_indices(ref: FieldRef | ArrayRef, dims: Sequence[int]) -> bool:
    """Whether a loop over the axes ``dims`` of ``ref``, which are not those of its elements, has an index of 32 bits, and no index of an
    axis goes beyond `LAST_INDEX`; the latter of arrays each launch finds out."""
    if isinstance(ref, ArrayRef):
        return not ref.wide and max(dims) < ref.ndim
    if max(dims) >= len(ref.shape) or math.prod([ref.shape[dim] for dim in dims]) > int(i32.max):
        return False
    origin = ref.layout.origin or (0,) * len(ref.shape)
    return all(origin[dim] > -LAST_INDEX and origin[dim] + ref.shape[dim] < LAST_INDEX for dim in dims)


def _inside(value: Op, invariant: Container[Op]) -> Op | None:
    """The operand that varies of a sum, difference (not below one), minimum or maximum with an invariant."""
    if value.code not in (ops.add, ops.sub, ops.min_, ops.max_):
        return None
    a, b = value.args
    if b in invariant:
        return a
    return b if a in invariant and value.code is not ops.sub else None
