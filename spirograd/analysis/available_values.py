"""Available values: the values of elements of memory at a point of a program, from the stores and loads before it.

References of one level of IR share regions of memory (`region_of`). Within one reference, the affine forms of their indices distinguish
elements. The time of a write does not depend on the number of references.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from spirograd.analysis.effects import OUTSIDE, WRITING, region_of
from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Ref, accesses_of

K = TypeVar("K")
V = TypeVar("V")

# A number of a reference, and the base of each index, which is a type for constants.
Group = tuple[int, tuple[Hashable, ...]]
# An element: the number of the region of memory, the group, the offset of each index from its base.
Element = tuple[int, Group, tuple[int, ...]]
# The value of an element, its indices, and a number that orders values by age.
Available = tuple[Op, Sequence[Op], int]
_Known = dict[int, dict[Group, dict[tuple[int, ...], Available]]]

_BARRIERS = frozenset([code for code in ops.BY_NAME.values() if code.effect == "barrier"])
_WRITES = frozenset([code for code in ops.BY_NAME.values() if code.effect in (*WRITING, "call", "barrier")])


class AvailableValues:
    """The values that are available at a point of a walk in order. ``affine``: returns base and offset of an index; equal bases are equal
    values. ``separate_arrays``: as in `region_of`."""

    def __init__(self, affine: Callable[[Op], tuple[Hashable, int]], separate_arrays: bool = False) -> None:
        self._affine = affine
        self._separate_arrays = separate_arrays
        self._forms: dict[Op, tuple[Hashable, int]] = {}
        self._places: dict[int | Ref, tuple[int, int]] = {}  # region and number; also by identity, because hashing a reference is slow
        self._refs: list[Ref] = []  # keeps the objects alive, so that their identities stay unique
        self._regions: dict[tuple[str, Hashable], int] = {}
        self._kinds: list[str] = []  # the kind of each region
        self._count = itertools.count()
        self._known: _Known = {}
        # For each change: the mapping, the key, and the value before the change or None.
        self._undo: list[tuple[dict[object, object], object, object]] = []

    def element(self, ref: Ref, indices: Sequence[Op]) -> Element:
        region, number = self._places.get(id(ref)) or self._place(ref)
        if not indices:
            return region, (number, ()), ()
        forms = self._forms
        if len(indices) == 1:  # most
            base, offset = forms.get(indices[0]) or self._form(indices[0])
            return region, (number, (base,)), (offset,)
        bases, offsets = zip(*[forms.get(index) or self._form(index) for index in indices])
        return region, (number, bases), offsets

    def _form(self, index: Op) -> tuple[Hashable, int]:
        base, offset = self._affine(index)
        t = index.type
        assert isinstance(t, DType)
        form = self._forms[index] = (t if base is None else base), offset % (1 << t.bits)
        return form

    def _place(self, ref: Ref) -> tuple[int, int]:
        name = region_of(ref, self._separate_arrays)
        region = self._regions.setdefault(name, len(self._kinds))
        if region == len(self._kinds):
            self._kinds.append(name[0])
        place = self._places[id(ref)] = self._places.setdefault(ref, (region, len(self._refs)))
        self._refs.append(ref)
        return place

    def get(self, element: Element) -> Available | None:
        """Return the value of ``element`` if it is available."""
        region, group, offsets = element
        groups = self._known.get(region)
        entries = groups.get(group) if groups else None
        return entries.get(offsets) if entries else None

    def set(self, element: Element, value: Op, indices: Sequence[Op]) -> None:
        """Record that ``element`` holds ``value``."""
        region, group, offsets = element
        available = value, indices, next(self._count)
        groups = self._known.get(region)
        if groups is None:
            self._put(self._known, region, {group: {offsets: available}})
        elif group not in groups:
            self._put(groups, group, {offsets: available})
        else:
            self._put(groups[group], offsets, available)

    def clobber(self, element: Element) -> None:
        """Record a write of an unknown value to ``element``."""
        region, group, offsets = element
        self._clobber_rivals(region)
        groups = self._known.get(region)
        if not groups:
            return
        mine = groups.get(group)
        if mine is not None:
            self._pop(mine, offsets)
        if mine is None or len(groups) > 1:
            kept = {other: entries if other == group else _distinct(other, entries, element) for other, entries in groups.items()}
            self._put(self._known, region, kept)

    def clobber_all(self, ref: Ref) -> None:
        """Record writes to any elements of ``ref``."""
        region, _ = self._places.get(id(ref)) or self._place(ref)
        self._clobber_rivals(region)
        self._pop(self._known, region)

    def _clobber_rivals(self, region: int) -> None:
        """Forget the memory of other kinds that a region which is written may be."""
        kind = self._kinds[region]
        if kind in OUTSIDE:
            for other in [other for other in self._known if self._kinds[other] != kind and self._kinds[other] in OUTSIDE]:
                self._pop(self._known, other)

    def clear(self) -> None:
        """Record that any memory may have been written."""
        for region in [*self._known]:
            self._pop(self._known, region)

    def _put(self, entries: dict[K, V], key: K, value: V) -> None:
        self._undo.append((entries, key, entries.get(key)))  # type: ignore[arg-type]
        entries[key] = value

    def _pop(self, entries: dict[K, V], key: K) -> None:
        old = entries.pop(key, None)
        if old is not None:
            self._undo.append((entries, key, old))  # type: ignore[arg-type]

    def mark(self) -> int:
        """Return a mark of the present state, for `restore`."""
        return len(self._undo)

    def restore(self, mark: int) -> None:
        """Restore an earlier state."""
        while len(self._undo) > mark:
            entries, key, old = self._undo.pop()
            if old is None:
                del entries[key]
            else:
                entries[key] = old

    def items(self) -> list[tuple[Element, Available]]:
        """Return all available values, oldest first."""
        groups = ((region, group, entries) for region, groups in self._known.items() for group, entries in groups.items())
        known = [((region, group, offsets), entry) for region, group, entries in groups for offsets, entry in entries.items()]
        return sorted(known, key=lambda item: item[1][2])

    def clobber_inside(self, op: Op) -> None:
        """Record the writes in the regions of ``op``. After a barrier there, other threads may have written anything."""
        for region in op.regions:
            if not self._known or _WRITES.isdisjoint(region.codes):
                continue
            if not _BARRIERS.isdisjoint(region.codes):
                self.clear()
                return
            accesses = region.accesses
            if ops.call_memory in region.codes:
                accesses += tuple([access for inner in region.walk() if inner.code is ops.call_memory for access in accesses_of(inner)])
            for effect, ref in accesses:
                if effect in WRITING:
                    self.clobber_all(ref)


def _distinct(group: Group, entries: dict[tuple[int, ...], Available], element: Element) -> dict[tuple[int, ...], Available]:
    """Return the entries of ``group`` that surely are other elements than ``element``, which belongs to another group."""
    _, (reference, bases), offsets = element
    equal = [axis for axis, (mine, other) in enumerate(zip(bases, group[1])) if mine == other] if group[0] == reference else []
    return {at: entry for at, entry in entries.items() if any(at[axis] != offsets[axis] for axis in equal)} if equal else {}
