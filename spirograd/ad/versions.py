"""Versions of memory: what a later launch overwrites is saved before it, if the gradient of an earlier one needs it.

Only the current contents of memory can be copied. So for each field and array a tape keeps which parts of the current contents a gradient
needs (`Wanted`). A write saves the parts that it is about to change and that are wanted, once; after that they are no longer wanted. The
reverse goes back through the writes and exchanges memory for what was saved (`Saved.swap`): at each launch all that it needs is there
again. Exchanging once more, in the other order, puts the final contents back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from spirograd.ad.copy_memory import CopyMemory, Purpose
from spirograd.ad.memory_keys import FieldOrArray, Generation, Key
from spirograd.base.protocols import Allocation
from spirograd.base.records import replace
from spirograd.lang import context
from spirograd.lang.data import numpy_transfer
from spirograd.lang.data.field import ComponentField
from spirograd.lang.data.ndarray import Ndarray, array_of
from spirograd.lang.data.numpy_transfer import Array
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.data.views import Block, HostView, dense_view, from_first, same_bytes

if TYPE_CHECKING:
    from spirograd.ad.copy_levels import Files, MovedCopy

T = TypeVar("T")


class Stored:
    """A field or ndarray. Its parts are its slices at each first index, counted from 0; memory without axes is one part."""

    def __init__(self, name: str, storage: FieldOrArray) -> None:
        self.name = name
        self.storage = storage
        shape = () if storage.sparse_path is not None else storage.shape
        self.has_axes = bool(shape)
        self.parts: int = shape[0] if shape else 1
        self._parts_are_bytes: bool | None = None
        self.origin: int = 0 if isinstance(storage, Ndarray) or not storage.origin else storage.origin[0]

    @property
    def allocation(self) -> Allocation:
        allocation: Allocation = self.storage.tree.allocation
        return allocation

    def part(self, first: int | None) -> int | None:
        """Return the number of the part at first index ``first``; None, which stands for any part, if there is none of that number."""
        if first is None or not self.has_axes or not 0 <= first - self.origin < self.parts:
            return None
        return first - self.origin

    def copied_part(self, first: int | None) -> int | None:
        """Return `part`, but None where parts of the memory cannot be copied as bytes: then all of it is compared and copied."""
        part = self.part(first)
        if part is not None and self._parts_are_bytes is None:
            self._parts_are_bytes = _are_bytes(self.view(part))
        return part if self._parts_are_bytes else None

    def view(self, part: int | None) -> HostView:
        """Return the host's view of one part, or of all."""
        return self.part_of(self.storage.view, part)

    def part_of(self, storage: HostView, part: int | None) -> HostView:
        """Return one part of a view of all, or of a copy."""
        if part is None or self.parts == 1:
            return storage
        size, one = storage.dtype.size, storage.blocks[0]
        if one.dims == (storage.count,) and one.strides == (size,):
            row = storage.count // self.parts * size
            blocks: tuple[Block, ...] = (Block(one.offset + part * row, (row // size,), (size,), row),)
        else:
            assert isinstance(self.storage, ScalarField)
            outer = sum(term.axis == 0 for term in self.storage.refs().layout.terms)
            blocks = tuple(_slice(b, outer, part, size) for b in storage.blocks)
        return replace(storage, shape=storage.shape[1:], blocks=blocks)


def _slice(block: Block, outer: int, index: int, size: int) -> Block:
    """Return the elements of a block at one index of the first axis, which takes the first ``outer`` of its dimensions."""
    digits = np.unravel_index(index, block.dims[:outer]) if outer else ()
    offset = block.offset + sum(int(digit) * stride for digit, stride in zip(digits, block.strides))
    dims, strides = block.dims[outer:], block.strides[outer:]
    return Block(offset, dims, strides, sum((d - 1) * s for d, s in zip(dims, strides)) + size, block.part)


class Saved:
    """The contents of a part of memory at some time. ``event``: the number of the write that they were saved before."""

    def __init__(self, memory: Stored, part: int | None, known: Saved | None = None, copy_memory: CopyMemory | None = None) -> None:
        """Copy them, or what ``known`` has of them, which is a copy of all parts. ``copy_memory``: where its memory comes from, to
        which `free` gives it back; None for memory that is freed with this object."""
        self.memory = memory
        self.part = part
        self._copy_memory = copy_memory
        self._view: HostView = memory.view(part) if known is None else memory.part_of(known._view, part)
        self.nbytes = nbytes_of(self._view)
        self._compact = _compact(self._view)
        self._copy: Allocation | None = self._current(known)
        self._moved: MovedCopy | None = None  # once the copy leaves the device: see `copy_levels.MovedCopy`

    def _current(self, known: Saved | None = None) -> Allocation:
        copy = self._allocate()
        if known is None:
            numpy_transfer.copy(copy, self._compact, self.memory.allocation, self._view)
        else:
            numpy_transfer.copy(copy, self._compact, known._here(), self.memory.part_of(known._compact, self.part))
        return copy

    def _allocate(self) -> Allocation:
        if self._copy_memory is not None:
            return self._copy_memory.allocate(self.nbytes, Purpose(f"a copy of `{self.memory.name}`"))
        return context.session().memory.allocate(max(self.nbytes, 1), zeroed=False)

    def free(self) -> None:
        """Give the memory of the copy back. The copy cannot be used any more."""
        if self._copy is not None and self._copy_memory is not None:
            self._copy_memory.give(self._copy)
        if self._moved is not None:
            self._moved.free()
        self._copy, self._moved = None, None

    def changed(self, part: int | None) -> Array | None:
        """Return which elements (of a part, or all) hold other bytes than were saved; None if none does. Waits for launches.

        Only for copies of all parts."""
        saved, view = self.memory.part_of(self._compact, part), self.memory.part_of(self._view, part)
        if numpy_transfer.known_equal(self._here(), saved, self.memory.allocation, view):
            return None
        then, now = numpy_transfer.read(self._here(), saved), numpy_transfer.read(self.memory.allocation, view)
        bits = f"u{view.dtype.size}"
        differs = np.ascontiguousarray(then).view(bits) != np.ascontiguousarray(now).view(bits)
        if not differs.any():
            return None
        changed: Array = np.zeros(self._view.full_shape, np.bool_)
        changed[... if part is None else part] = differs.reshape(view.full_shape)
        return changed

    def update(self, part: int | None) -> None:
        """Save a part, or all, anew. Only of all parts."""
        numpy_transfer.copy(self._here(), self.memory.part_of(self._compact, part), self.memory.allocation, self.memory.view(part))

    def put(self) -> None:
        """Set memory to what was saved, which is kept. Cells of sparse fields that were made since held nothing then."""
        if self._moved is None:
            numpy_transfer.copy(self.memory.allocation, self._view, self._here(), self._compact)
        else:
            self._put_bytes(self._moved.data())
        view = self.memory.view(self.part)
        if view.shape != self._view.shape:
            numpy_transfer.fill(self.memory.allocation, from_first(view, self._view.shape[0]), 0)

    def _put_bytes(self, data: memoryview) -> None:
        """Set memory to the bytes of a copy that is not on the device."""
        if same_bytes(self._view, self._compact):
            for block, source in zip(self._view.blocks, self._compact.blocks):
                self.memory.allocation.write(block.offset, data[source.offset : source.offset + block.span], self._view.part)
            return
        copy = self._allocate()
        copy.write(0, data)
        numpy_transfer.copy(self.memory.allocation, self._view, copy, self._compact)
        if self._copy_memory is not None:
            self._copy_memory.give(copy)

    # --- levels of memory, see `copy_levels` -------------------------------------------------------------------------------

    @property
    def level(self) -> int:
        """Where the copy is: 0 on the device, 1 on the host, 2 in a file."""
        return 0 if self._moved is None else self._moved.level

    @property
    def leaving(self) -> bool:
        """Whether the copy was asked to leave the device."""
        return self._moved is not None

    @property
    def target(self) -> int:
        """The level where the copy will be, once it has left the device."""
        return self._away().target

    def _here(self) -> Allocation:
        assert self._copy is not None
        return self._copy

    def _away(self) -> MovedCopy:
        assert self._moved is not None
        return self._moved

    def leave(self, move: Callable[[Allocation, int, Callable[[Allocation], None]], MovedCopy]) -> None:
        """Have ``move`` take the copy from the device. Only for copies in a `CopyMemory`."""
        assert self._copy_memory is not None
        self._moved, self._copy = move(self._here(), max(self.nbytes, 1), self._copy_memory.give), None

    def probe(self, move: Callable[[Allocation, int], T]) -> T:
        """Return what ``move`` makes of the copy, which stays on the device."""
        return move(self._here(), max(self.nbytes, 1))

    def overwrite(self, data: memoryview) -> None:
        """Write the bytes of the copy, which is on the device, again."""
        self._here().write(0, data)

    def arrive(self) -> None:
        """Wait until the copy has left the device."""
        self._away().wait()

    def to_disk(self, files: Files) -> None:
        """Have the copy go from the host to a file, once it is there."""
        self._away().to_disk(files)

    def swap(self) -> None:
        """Exchange what is in memory for what was saved."""
        current = Saved(self.memory, self.part, None, self._copy_memory)
        self.put()
        self.free()
        self._view, self.nbytes, self._compact, self._copy = current._view, current.nbytes, current._compact, current._copy


def nbytes_of(view: HostView) -> int:
    """Return the bytes of a copy."""
    return view.count * view.dtype.size


def _are_bytes(view: HostView) -> bool:
    """Return whether devices can copy the contents as bytes: they lie densely, at multiples of 4."""
    return all(b.span == math.prod(b.dims) * view.dtype.size and not b.offset % 4 and not b.span % 4 for b in view.blocks)


def _compact(view: HostView) -> HostView:
    """Return how the elements of ``view`` lie in a copy: as in memory if they are dense, so that the device copies them as bytes."""
    if not _are_bytes(view):
        return dense_view(view.dtype, view.shape, view.element_shape)
    if len(view.blocks) == 1:
        (one,) = view.blocks
        return replace(view, blocks=(replace(one, offset=0),)) if one.offset else view
    offsets = np.cumsum([0, *(b.span for b in view.blocks)]).tolist()
    return replace(view, blocks=tuple(replace(b, offset=offset) for b, offset in zip(view.blocks, offsets)))


class Wanted:
    """Parts of memory whose current contents are needed. ``all``: all but ``parts``; else just ``parts``."""

    __slots__ = ("all", "parts")

    def __init__(self, all_parts: bool = False) -> None:
        self.all = all_parts
        self.parts: set[int] = set()

    def add(self, part: int | None) -> None:
        if part is None:
            self.all = True
            self.parts.clear()
        elif self.all:
            self.parts.discard(part)
        else:
            self.parts.add(part)

    def has(self, part: int | None) -> bool:
        """Return whether anything of ``part`` is wanted."""
        return self.all or bool(self.parts) if part is None else (part in self.parts) != self.all

    def take(self, part: int | None) -> Sequence[int | None]:
        """Return what of ``part`` is wanted, which it no longer is afterwards."""
        if part is None:
            taken: list[int | None] = [None] if self.all else [*sorted(self.parts)]
            self.all = False
            self.parts.clear()
            return taken
        if (part in self.parts) == self.all:
            return ()
        if self.all:
            self.parts.add(part)
        else:
            self.parts.discard(part)
        return (part,)


class Versions:
    """The memory that a tape has seen, and what of its current contents is needed."""

    def __init__(self, copy_memory: CopyMemory | None = None) -> None:
        """``copy_memory``: where the memory of copies comes from, see `Saved`."""
        self._copy_memory = copy_memory
        self._stored: dict[Key, Stored] = {}
        self._wanted: dict[Key, Wanted] = {}

    def stored(self, key: Key, name: str, storage: FieldOrArray) -> Stored:
        """Return the memory with the key ``key``."""
        stored = self._stored.get(key)
        if stored is None:
            stored = self._stored[key] = Stored(name, storage)
            self._wanted[key] = Wanted()
        return stored

    def need(self, key: Key, first: int | None) -> None:
        """Note that the contents are needed as they are now, at first index ``first`` or (None) all."""
        self._wanted[key].add(self._stored[key].part(first))

    def is_wanted(self, key: Key) -> bool:
        """Return whether any of the contents is needed."""
        wanted = self._wanted.get(key)
        return wanted is not None and (wanted.all or bool(wanted.parts))

    def write(self, key: Key, first: Callable[[], int | None]) -> Iterable[tuple[Key, Saved]]:
        """Save what is needed before it is overwritten, at the index that ``first`` gives or (None) all over; what was saved, by key."""
        if not self.is_wanted(key):
            return
        memory, wanted = self._stored[key], self._wanted[key]
        for part in wanted.take(memory.part(first())):
            yield key, Saved(memory, part, None, self._copy_memory)

    def replace(self, key: Key, before: Saved) -> list[tuple[Key, Saved]]:
        """Note that the host replaced what ``before`` has: that, by key, if any of it is needed."""
        wanted = self._wanted.get(key)
        return [(key, before)] if wanted is not None and wanted.take(before.part) else []

    def wanted(self) -> Iterable[tuple[Key, Stored]]:
        """Yield the memory whose current contents are needed, by key."""
        return ((key, self._stored[key]) for key, wanted in self._wanted.items() if wanted.all or wanted.parts)


def memory_identity(memory: FieldOrArray) -> tuple[Key, FieldOrArray]:
    """Return the key of a field or ndarray, and the field or ndarray itself; a view stands for its array."""
    if isinstance(memory, Ndarray):
        return ("ndarray", id(array_of(memory))), array_of(memory)
    return field_memory(memory)


def field_memory(field: ScalarField) -> tuple[Key, ScalarField]:
    """Return the key of a field, and the field itself; a component stands for its field."""
    storage = field.matrix_field if isinstance(field, ComponentField) else field
    return ("field", storage.key), storage


def first_of(key: object) -> int | None:
    """Return the first index of an element that the host writes at ``key``, None for all elements."""
    first = key[0] if isinstance(key, tuple) and key else key
    return first if isinstance(first, int) else None


def memory_generation(memory: FieldOrArray) -> Generation:
    """Return a value that changes with every write to a field or ndarray through the session."""
    allocation = memory.tree.allocation
    return allocation.number, allocation.generations[""], allocation.generations.get(memory.view.part, 0)
