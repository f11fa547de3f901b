"""Available values: what elements of memory hold at a point of a program, from the stores and loads before it.

References of one level of IR share a region of memory as `may_alias` says; within one reference, elements are told apart by the affine
forms of their indices. A write takes the same time however many references there are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from spirograd.analysis.effects import WRITING, place
from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, BufferRef, FieldRef, Op, Ref, accesses_of


class Memory(NamedTuple):
    """What `AvailableValues` knows of a reference. ``number``: equal references share it. ``region``: of memory, in which other references
    may lie, too. ``kind``: "array", "open" if arrays may lie in the region, else "own"."""

    number: int
    region: Hashable
    kind: str


class Element(NamedTuple):
    """An element of memory: each index is a base and an offset."""

    memory: Memory
    bases: tuple[Hashable, ...]
    offsets: tuple[int, ...]


class Available(NamedTuple):
    """A ``value`` of the element at these ``indices``."""

    value: Op
    indices: Sequence[Op]


# By region; by the number of the reference and the bases; by the offsets.
_Known = dict[str, dict[Hashable, dict[tuple[int, tuple[Hashable, ...]], dict[tuple[int, ...], Available]]]]


class AvailableValues:
    """What is known at a point of a walk in order. ``affine``: base and offset of an index, where equal bases are equal values.
    ``separate_arrays``: as of `may_alias`."""

    def __init__(self, affine: Callable[[Op], tuple[Hashable, int]], separate_arrays: bool = False) -> None:
        self._affine = affine
        self._separate_arrays = separate_arrays
        self._memories: dict[int | Ref, Memory] = {}  # of references, and of objects by identity: hashing a reference is slow
        self._refs: list[Ref] = []  # keeps the objects, so that no other one has their identity
        self._known: _Known = {}
        self.clear()

    def element(self, ref: Ref, indices: Sequence[Op]) -> Element:
        bases, offsets = [], []
        for index in indices:
            base, offset = self._affine(index)
            t = index.type
            assert isinstance(t, DType)
            bases.append(t if base is None else base)
            offsets.append(offset % (1 << t.bits))
        return Element(self._memory(ref), tuple(bases), tuple(offsets))

    def _memory(self, ref: Ref) -> Memory:
        memory = self._memories.get(id(ref))
        if memory is None:
            memory = self._memories.get(ref)
            if memory is None:
                memory = self._memories[ref] = self._new_memory(ref, len(self._refs))
            self._memories[id(ref)] = memory
            self._refs.append(ref)
        return memory

    def _new_memory(self, ref: Ref, number: int) -> Memory:
        where = place(ref)
        separate = self._separate_arrays and not isinstance(ref, BufferRef)
        kind = "own" if separate or where[0] not in ("array", "tree") else "array" if where[0] == "array" else "open"
        if isinstance(ref, FieldRef):
            return Memory(number, (ref.key, ref.role, "field"), kind)
        if isinstance(ref, ArrayRef) and separate:
            return Memory(number, (ref.arg, ref.role), kind)
        return Memory(number, "arrays" if kind == "array" else where if isinstance(ref, BufferRef) else number, kind)

    def get(self, element: Element) -> Available | None:
        """What ``element`` holds, if that is known."""
        (number, region, kind), bases, offsets = element
        return self._known[kind].get(region, {}).get((number, bases), {}).get(offsets)

    def set(self, element: Element, value: Op, indices: Sequence[Op]) -> None:
        """Note that ``element`` holds ``value``."""
        (number, region, kind), bases, offsets = element
        self._known[kind].setdefault(region, {}).setdefault((number, bases), {})[offsets] = Available(value, indices)

    def clobber(self, element: Element) -> None:
        """Note a write to ``element``, of an unknown value."""
        (number, region, kind), bases, offsets = element
        left = {}
        for group, entries in self._clobbered(kind, region).items():
            if group == (number, bases):
                entries.pop(offsets, None)
                left[group] = entries
            elif group[0] == number:
                equal = [axis for axis, (mine, other) in enumerate(zip(bases, group[1])) if mine == other]
                kept = {at: entry for at, entry in entries.items() if any(at[axis] != offsets[axis] for axis in equal)} if equal else {}
                if kept:
                    left[group] = kept
        if left:
            self._known[kind][region] = left

    def clobber_all(self, ref: Ref) -> None:
        """Note writes to any elements of ``ref``."""
        _, region, kind = self._memory(ref)
        self._clobbered(kind, region)

    def _clobbered(self, kind: str, region: Hashable) -> dict[tuple[int, tuple[Hashable, ...]], dict[tuple[int, ...], Available]]:
        """Forget what a write to a region may change, and return what was known of the region itself."""
        if kind != "own":
            self._known["open" if kind == "array" else "array"] = {}
        return self._known[kind].pop(region, {})

    def clear(self) -> None:
        """Note that any memory may have been written."""
        self._known = {"own": {}, "open": {}, "array": {}}

    def items(self) -> Iterator[tuple[Element, Available]]:
        """All that is known."""
        for kind, regions in self._known.items():
            for region, groups in regions.items():
                for (number, bases), entries in groups.items():
                    for offsets, entry in entries.items():
                        yield Element(Memory(number, region, kind), bases, offsets), entry

    def snapshot(self) -> _Known:
        """What is known now, for `restore`."""
        return {
            kind: {region: {group: dict(entries) for group, entries in groups.items()} for region, groups in regions.items()}
            for kind, regions in self._known.items()
        }

    def restore(self, known: _Known) -> None:
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
