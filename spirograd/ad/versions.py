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
from spirograd.ad.memory_keys import FieldOrArray, Generation, Key, Part
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
    """A field or ndarray. Its parts are its slices along one axis; a sparse field, a field whose components have no common layout, and
    memory without axes have none."""

    def __init__(self, name: str, storage: FieldOrArray) -> None:
        self.name = name
        self.storage = storage
        self._shape = () if storage.sparse_path is not None or storage.lies_apart else storage.shape
        self._origin: Sequence[int] = () if isinstance(storage, Ndarray) else storage.origin
        self._parts_are_bytes: dict[int, bool] = {}  # by axis

    @property
    def allocation(self) -> Allocation:
        allocation: Allocation = self.storage.tree.allocation
        return allocation

    def part(self, at: Part | None) -> Part | None:
        """Return the part at an index of an axis, which counts from the origin of the field; None, which stands for all parts, if ``at`` is
        None or out of range."""
        if at is None or not self._shape:
            return None
        axis, index = at
        index -= self._origin[axis] if self._origin else 0
        return (axis, index) if 0 <= index < self._shape[axis] else None

    def copied_part(self, at: Part | None) -> Part | None:
        """Return `part`, but None where parts of the memory cannot be copied as bytes: then all of it is compared and copied."""
        part = self.part(at)
        if part is None:
            return None
        are_bytes = self._parts_are_bytes.get(part[0])
        if are_bytes is None:
            are_bytes = self._parts_are_bytes[part[0]] = _are_bytes(self.view(part))
        return part if are_bytes else None

    def view(self, part: Part | None) -> HostView:
        """Return the host's view of one part, or of all."""
        return self.part_of(self.storage.view, part)

    def part_of(self, storage: HostView, part: Part | None) -> HostView:
        """Return one part of a view of all, or of a copy."""
        if part is None:
            return storage
        axis, index = part
        shape = storage.shape[:axis] + storage.shape[axis + 1 :]
        size, one = storage.dtype.size, storage.blocks[0]
        if one.dims == (storage.count,) and one.strides == (size,):
            outer = math.prod(storage.shape[:axis])
            inner = storage.count // (outer * storage.shape[axis])
            rows = replace(one, dims=(outer, storage.shape[axis], inner), strides=(storage.count // outer * size, inner * size, size))
            blocks: tuple[Block, ...] = (_slice(rows, 1, 2, index, size),)
        else:
            own = self.storage
            axes = list(range(own.ndim)) if isinstance(own, Ndarray) else [term.axis for term in own.refs().layout.terms]
            begin, end = (sum(other < bound for other in axes) for bound in (axis, axis + 1))
            blocks = tuple([_slice(b, begin, end, index, size) for b in storage.blocks])
        return replace(storage, shape=shape, blocks=blocks)


def _slice(block: Block, begin: int, end: int, index: int, size: int) -> Block:
    """Return the elements of a block at one index of the axis that takes its dimensions from ``begin`` to ``end``."""
    digits = np.unravel_index(index, block.dims[begin:end]) if end > begin else ()
    offset = block.offset + sum(int(digit) * stride for digit, stride in zip(digits, block.strides[begin:end]))
    kept = [(d, s) for d, s in (*zip(block.dims[:begin], block.strides), *zip(block.dims[end:], block.strides[end:])) if d != 1]
    dims, strides = tuple([d for d, _ in kept]), tuple([s for _, s in kept])
    return Block(offset, dims, strides, sum((d - 1) * s for d, s in kept) + size, block.part)


class Saved:
    """The contents of a part of memory at some time. ``event``: the number of the write that they were saved before."""

    def __init__(self, memory: Stored, part: Part | None, known: Saved | None = None, copy_memory: CopyMemory | None = None) -> None:
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

    def byte_ranges(self) -> list[tuple[int, int]] | None:
        """Return the offsets and numbers of the bytes that were copied, in this order; None if the elements do not lie densely."""
        return [(block.offset, block.span) for block in self._view.blocks] if _are_bytes(self._view) else None

    def free(self) -> None:
        """Give the memory of the copy back. The copy cannot be used any more."""
        if self._copy is not None and self._copy_memory is not None:
            self._copy_memory.give(self._copy)
        if self._moved is not None:
            self._moved.free()
        self._copy, self._moved = None, None

    def changed(self, part: Part | None) -> Array | None:
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
        if part is None:
            changed[...] = differs.reshape(view.full_shape)
        else:
            np.moveaxis(changed, part[0], 0)[part[1]] = differs.reshape(view.full_shape)
        return changed

    def update(self, part: Part | None) -> None:
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
    """Parts of memory whose current contents are needed. ``all``: all but ``parts``; else just ``parts``. All of ``parts`` are slices
    along one axis: slices along different axes meet, so all of the memory stands for what is added or taken along another one."""

    __slots__ = ("all", "parts")

    def __init__(self, all_parts: bool = False) -> None:
        self.all = all_parts
        self.parts: set[Part] = set()

    def _along_axis(self, part: Part | None) -> Part | None:
        """Return ``part`` if it lies along the axis of ``parts``, else None."""
        known = next(iter(self.parts), part)
        return part if part is not None and known is not None and known[0] == part[0] else None

    def add(self, part: Part | None) -> None:
        part = self._along_axis(part)
        if part is None:
            self.all = True
            self.parts.clear()
        elif self.all:
            self.parts.discard(part)
        else:
            self.parts.add(part)

    def has(self, part: Part | None) -> bool:
        """Return whether anything of ``part`` is wanted."""
        part = self._along_axis(part)
        return self.all or bool(self.parts) if part is None else (part in self.parts) != self.all

    def remove(self, part: Part | None) -> bool:
        """Remove ``part``, of which there is a copy; return whether anything of it was wanted. A slice along another axis than ``parts``
        cannot be removed, so its elements stay wanted."""
        wanted = self.has(part)
        if part is None or self._along_axis(part) is not None:
            self.take(part)
        return wanted

    def take(self, part: Part | None) -> Sequence[Part | None]:
        """Return what of ``part`` is wanted, which it no longer is afterwards."""
        part = self._along_axis(part)
        if part is None:
            taken: list[Part | None] = [None] if self.all else [*sorted(self.parts)]
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

    def need(self, key: Key, at: Part | None) -> None:
        """Note that the contents are needed as they are now, in the slice ``at`` or (None) all."""
        self._wanted[key].add(self._stored[key].part(at))

    def is_wanted(self, key: Key) -> bool:
        """Return whether any of the contents is needed."""
        wanted = self._wanted.get(key)
        return wanted is not None and (wanted.all or bool(wanted.parts))

    def write(self, key: Key, at: Callable[[], Part | None]) -> Iterable[tuple[Key, Saved]]:
        """Save what is needed before it is overwritten, in the slice that ``at`` gives or (None) all over; what was saved, by key."""
        if not self.is_wanted(key):
            return
        memory, wanted = self._stored[key], self._wanted[key]
        for part in wanted.take(memory.part(at())):
            yield key, Saved(memory, part, None, self._copy_memory)

    def replace(self, key: Key, before: Saved) -> list[tuple[Key, Saved]]:
        """Note that the host replaced what ``before`` has: that, by key, if any of it is needed."""
        wanted = self._wanted.get(key)
        return [(key, before)] if wanted is not None and wanted.remove(before.part) else []

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


def slice_at(key: object) -> Part | None:
    """Return the slice along the first axis with the element that the host writes at ``key``, None for all elements."""
    first = key[0] if isinstance(key, tuple) and key else key
    return (0, first) if isinstance(first, int) else None


def memory_generation(memory: FieldOrArray) -> Generation:
    """Return a value that changes with every write to a field or ndarray through the session."""
    allocation = memory.tree.allocation
    return allocation.number, allocation.generations[""], allocation.generations.get(memory.view.part, 0)
