"""Available values: what elements of memory hold at a point of a program, from the stores and loads before it.

References of one level of IR share regions of memory (`region_of`). Within one reference, elements are told apart by the affine forms of
their indices. A write takes the same time however many references there are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from spirograd.analysis.effects import WRITING, region_of
from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Ref, accesses_of


class Element(NamedTuple):
    """An element of memory. Each index is a base, which is a type for constants, and an offset. ``reference``: a number of it."""

    region: tuple[str, Hashable]
    reference: int
    bases: tuple[Hashable, ...]
    offsets: tuple[int, ...]


class Available(NamedTuple):
    """A ``value`` of the element at these ``indices``."""

    value: Op
    indices: Sequence[Op]


# By the reference and the bases; by the offsets.
_Entries = dict[tuple[int, tuple[Hashable, ...]], dict[tuple[int, ...], Available]]


class AvailableValues:
    """What is known at a point of a walk in order. ``affine``: base and offset of an index, where equal bases are equal values.
    ``separate_arrays``: as of `region_of`."""

    def __init__(self, affine: Callable[[Op], tuple[Hashable, int]], separate_arrays: bool = False) -> None:
        self._affine = affine
        self._separate_arrays = separate_arrays
        self._places: dict[int | Ref, tuple[tuple[str, Hashable], int]] = {}  # also by identity: hashing a reference is slow
        self._refs: list[Ref] = []  # keeps the objects, so that no other one has their identity
        self._known: dict[tuple[str, Hashable], _Entries] = {}

    def element(self, ref: Ref, indices: Sequence[Op]) -> Element:
        bases, offsets = [], []
        for index in indices:
            base, offset = self._affine(index)
            t = index.type
            assert isinstance(t, DType)
            bases.append(t if base is None else base)
            offsets.append(offset % (1 << t.bits))
        return Element(*self._place(ref), tuple(bases), tuple(offsets))

    def _place(self, ref: Ref) -> tuple[tuple[str, Hashable], int]:
        """The region and the number of a reference."""
        found = self._places.get(id(ref))
        if found is None:
            found = self._places[id(ref)] = self._places.setdefault(ref, (region_of(ref, self._separate_arrays), len(self._refs)))
            self._refs.append(ref)
        return found

    def get(self, element: Element) -> Available | None:
        """What ``element`` holds, if that is known."""
        region, reference, bases, offsets = element
        return self._known.get(region, {}).get((reference, bases), {}).get(offsets)

    def set(self, element: Element, value: Op, indices: Sequence[Op]) -> None:
        """Note that ``element`` holds ``value``."""
        region, reference, bases, offsets = element
        self._known.setdefault(region, {}).setdefault((reference, bases), {})[offsets] = Available(value, indices)

    def clobber(self, element: Element) -> None:
        """Note a write to ``element``, of an unknown value."""
        region, reference, bases, offsets = element
        for group, entries in self._take(region).items():
            if group == (reference, bases):
                entries.pop(offsets, None)
            elif group[0] == reference and (equal := [k for k, (x, y) in enumerate(zip(bases, group[1])) if x == y]):
                entries = {at: entry for at, entry in entries.items() if any(at[k] != offsets[k] for k in equal)}
            else:
                continue
            self._known.setdefault(region, {})[group] = entries

    def clobber_all(self, ref: Ref) -> None:
        """Note writes to any elements of ``ref``."""
        self._take(self._place(ref)[0])

    def _take(self, region: tuple[str, Hashable]) -> _Entries:
        """Forget what a write to ``region`` may change, and return what was known of the region itself."""
        entries = self._known.pop(region, {})
        if region[0] == "array":
            self._known = {other: known for other, known in self._known.items() if other[0] != "tree"}
        elif region[0] == "tree":
            self._known.pop(("array", None), None)
        return entries

    def clear(self) -> None:
        """Note that any memory may have been written."""
        self._known = {}

    def items(self) -> Iterator[tuple[Element, Available]]:
        """All that is known."""
        for region, groups in self._known.items():
            for (reference, bases), entries in groups.items():
                for offsets, entry in entries.items():
                    yield Element(region, reference, bases, offsets), entry

    def snapshot(self) -> dict[tuple[str, Hashable], _Entries]:
        """What is known now, for `restore`."""
        return {region: {group: dict(entries) for group, entries in groups.items()} for region, groups in self._known.items()}

    def restore(self, known: dict[tuple[str, Hashable], _Entries]) -> None:
        self._known = known


def clobber_inside(values: AvailableValues, op: Op) -> None:
    """Note the writes in the regions of ``op``; a barrier there lets others write anything."""
    for region in op.regions:
        if any(code.effect == "barrier" for code in region.codes):
            values.clear()
            return
        accesses = region.accesses
        if ops.call_memory in region.codes:
            accesses += tuple([access for inner in region.walk() if inner.code is ops.call_memory for access in accesses_of(inner)])
        for effect, ref in accesses:
            if effect in WRITING:
                values.clobber_all(ref)
