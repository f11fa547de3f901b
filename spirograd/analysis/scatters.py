"""Scatters: parallel loops that add to elements near the coordinates of each iteration, as the derivative of a stencil does.

If the indices of an element determine the iterations that add to it, a loop over the elements can compute the same without atomics: each
element collects the additions of these iterations. J. Hückelheim, N. Kukreja, S. H. K. Narayanan, F. Luporini, G. Gorman and P. Hovland,
Automatic Differentiation for Adjoint Stencil Loops, 2019, do so for whole derivatives; this analysis does it for one memory of a loop at a
time.
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

# Distances from the coordinate of an iteration beyond which sums of indices might wrap around.
_FARTHEST = 1 << 15
# Extents by which sums of indices are divided before they might wrap around.
_LARGEST = 1 << 29
# Iterations at an end of an axis that add to the same element, because their indices are limited.
_MOST_AT_ENDS = 4
# Beyond this index of memory, the index of an iteration that adds to an element might wrap around. `NARROW` arrays have no such index.
_LAST_INDEX = (1 << 31) - 2 * _FARTHEST
# Operations that iterations may contain. Other operations with effects must not run more or less often than they do.
_EFFECTS = frozenset(("pure", "read", "write", "atomic", "control", "structure"))
_REMAINDERS = frozenset((ops.floormod, ops.irem))
_EXCLUDED = frozenset((ops.for_, ops.while_, ops.call, ops.cas, ops.claim, ops.thread_slot, ops.stack_room, ops.adstack_word))


@dataclass(frozen=True, slots=True)
class Index:
    """The index of an element as a function of the coordinate x of an iteration on an axis: min(max(x + shift, low), high), where ``low``
    and ``high`` are offsets from the ends of the axis, if there are any; or, with ``wraps``, x + shift modulo the extent."""

    axis: int
    shift: int
    low: int | None = None
    high: int | None = None
    wraps: bool = False

    @property
    def reach(self) -> int:
        """Return how far beyond begin and end of the axis the index may be."""
        if self.wraps:
            return 0
        reach = self.shift if self.low is None else max(self.shift, self.low)
        return reach if self.high is None else min(reach, self.high + 1)

    def preimages(self) -> Iterator[Preimage]:
        """Yield the preimages, each of which maps an element to another iteration, or to none."""
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
    """A function from an element q to the iteration, along one axis, that adds to it. The ``kind`` decides the coordinate and the
    condition:

    - "shift": q - number, if that is on the axis, and q not below low or above high
    - "wrap": q - number modulo the extent, if q is on the axis
    - "first": begin + number, if that is on the axis, and q is low
    - "last": end - 1 - number, if that is on the axis, and q is high
    """

    kind: str
    number: int
    low: int | None = None
    high: int | None = None


# A preimage for each axis.
Preimages = tuple[Preimage, ...]


@dataclass(slots=True, eq=False)
class Scatter:
    """The additions of ``atomics`` to the memory ``ref``, which are all accesses of a loop to it.

    ``dims``: for each axis, the index of the memory that follows it. ``hull``: for each axis, the first element as an offset from its
    begin, and the end of the elements as an offset from its end. ``terms``: by the iteration that adds to an element, the atomics that do.
    ``overlaps``: arrays that must not overlap ``ref``. ``needed``: the operations of the body that compute the summands and the conditions
    of the additions.
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
    """Return the scatters of a parallel loop for which the iterations that add to an element are known and several."""
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
    all_scatters = [shape.scatter(ref, atomics) for ref, atomics in by_ref.items() if len(atomics) > 1]
    return [scatter for scatter in all_scatters if scatter is not None]


class _Body:
    """The body of a loop."""

    def __init__(self, loop: Op) -> None:
        self.body = loop.regions[0]
        self.index = self.body.params[0]
        self.bounds = loop.args[:2]
        self.invariant = Invariants(contents(self.body))
        self.everything = list(self.body.walk())
        self.used = {a for op in self.everything for a in op.args}
        self.around: dict[Op, Op] = {}  # operation in a branch -> the `if`
        for op in self.everything:
            for region in op.regions:
                self.around.update(dict.fromkeys(region.ops, op))

    def scatter(self, ref: Ref, atomics: list[Op]) -> Scatter | None:
        """Return the scatter of the loop to ``ref``, or None if the loop also accesses it in another way, or iterations may add to any
        element."""
        if not isinstance(ref, (FieldRef, ArrayRef)):
            return None
        if any(op.attr[0] != "add" or op in self.used for op in atomics):
            return None
        overlaps = self._overlaps(ref, set(atomics))
        axes = self._axes(atomics) if overlaps is not None else None
        if axes is None or overlaps is None:
            return None
        followed = [self._followed(op, axes) for op in atomics]
        dims = [None if pairs is None else tuple([dim for dim, _ in pairs]) for pairs in followed]
        if dims[0] is None or any(other != dims[0] for other in dims):
            return None
        if not _has_small_indices(ref, dims[0]):
            return None
        indices = [[index for _, index in pairs or ()] for pairs in followed]
        terms: dict[Preimages, list[Op]] = {}
        for op, pairs in zip(atomics, indices):
            for term in itertools.product(*[index.preimages() for index in pairs]):
                terms.setdefault(term, []).append(op)
        needed = self._needed(atomics, {value for axis in axes for value in (axis.place, axis.digit)})
        if len(terms) < 2 or not self._movable(needed, set(atomics)):
            return None
        reaches = [[index.reach for index in of_axis] for of_axis in zip(*indices)]
        hull = tuple([(min(some), max(some)) for some in reaches])
        return Scatter(ref, tuple(atomics), axes, dims[0], hull, terms, overlaps, needed)

    # --- memory ----------------------------------------------------------------------------------------------------------

    def _overlaps(self, ref: Ref, atomics: set[Op]) -> tuple[ArrayRef, ...] | None:
        """Return the arrays that may overlap ``ref``, or None if the loop accesses memory that surely does, other than by ``atomics``."""
        arrays: dict[ArrayRef, None] = {}
        for op in self.everything:
            other = ref_of(op)
            if other is None or op in atomics or not may_alias(ref, other):
                continue
            if other == ref or not isinstance(ref, ArrayRef) or not isinstance(other, ArrayRef):
                return None
            arrays[other] = None
        return tuple(arrays)

    def _needed(self, atomics: Sequence[Op], given: Collection[Op | None]) -> frozenset[Op]:
        """Return the operations of the body that decide what ``atomics`` add, and whether they do, from the values ``given``."""
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
        """Return whether ``needed`` may be computed in a loop before this one, and more than once: no other update is read."""
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
        """Return the axes of the index space, outermost first, from the coordinates in the indices of ``atomics``."""
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
        """Return the indices of ``atomic`` that follow the axes, one for each, with their numbers. None if the indices do not follow
        them."""
        pairs = []
        for dim, value in enumerate(atomic.args[:-1]):
            if value in self.invariant and (value.type is i32 or value.code is ops.const):
                continue
            index = self._index(value, axes)
            if index is None or abs(index.shift) > _FARTHEST:
                return None
            pairs.append((dim, index))
        pairs.sort(key=lambda pair: pair[1].axis)
        return pairs if [index.axis for _, index in pairs] == list(range(len(axes))) else None

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
        """Return the index of a minimum or maximum with a limit that is known relative to the ends of the axis."""
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
        """Return the index of a remainder by the extent of an axis that begins at 0."""
        inner, divisor = value.args
        extent = bound(divisor)
        shift = extents = 0  # the numbers that are added to the coordinate
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
        if extent.base is None:  # by as little as possible, so that one correction suffices
            if max(extent.offset, abs(shift)) > _LARGEST:
                return None
            shift %= max(extent.offset, 1)
            shift -= extent.offset if 2 * shift > extent.offset else 0
        elif abs(shift) > 1:
            return None
        return Index(number, shift, wraps=shift != 0)


def _has_small_indices(ref: FieldRef | ArrayRef, dims: Sequence[int]) -> bool:
    """Return whether a loop over the axes ``dims`` of ``ref``, which are not axes of its elements, has an index of 32 bits, and no index of
    an axis goes beyond `_LAST_INDEX`."""
    if isinstance(ref, ArrayRef):
        return not ref.wide and max(dims) < ref.ndim
    if max(dims) >= len(ref.shape) or math.prod([ref.shape[dim] for dim in dims]) > int(i32.max):
        return False
    origin = ref.layout.origin or (0,) * len(ref.shape)
    return all(origin[dim] > -_LAST_INDEX and origin[dim] + ref.shape[dim] < _LAST_INDEX for dim in dims)


def _inside(value: Op, invariant: Container[Op]) -> Op | None:
    """Return the operand that varies of a sum, difference (not below one), minimum or maximum with an invariant."""
    if value.code not in (ops.add, ops.sub, ops.min_, ops.max_):
        return None
    a, b = value.args
    if b in invariant:
        return a
    return b if a in invariant and value.code is not ops.sub else None
