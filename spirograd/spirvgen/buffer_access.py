"""Access to the buffers of a task: through addresses (``vulkan``), or through storage buffers of a descriptor set (``wgpu``).

Both give a pointer to ``Block { T data[]; }``, whose elements are accessed by an access chain. Translation to Metal preserves this form.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from spirograd.base.artifact import ArgBlock, Slot
from spirograd.base.dtypes import DType, i32, i64, u32, u64, unsigned
from spirograd.base.profiles import owner
from spirograd.ir import ops
from spirograd.ir.nodes import BufferRef, Op, Region, SharedRef, ref_of
from spirograd.spirvgen.arguments import ArgumentBlock, is_direct
from spirograd.spirvgen.emitter import Emitter

_BUFFER_SET = 0


class AddressedMemory:
    """Buffers with addresses in the argument block. Each address becomes a pointer once, at the top of the function.

    ``regions``: of a task, and of the functions that it calls.
    """

    def __init__(self, e: Emitter, block: ArgBlock, regions: Sequence[Region]) -> None:
        self._e = e
        self._views: dict[tuple[int, DType], int] = {}
        self.block = ArgumentBlock(e, block, used_slots(regions))
        self.bindings: tuple[tuple[int, ...], ...] = ()

    def within(self, e: Emitter) -> AddressedMemory:
        new = copy.copy(self)
        new._e, new._views, new.block = e, {}, self.block.within(e)
        return new

    def alignment(self, t: DType) -> int:
        return t.size

    def view(self, ref: BufferRef, t: DType) -> DType:
        return t

    def element(self, ref: BufferRef, t: DType, index: Op) -> int:
        return self._element(ref, t, self._e.ids[index])

    def loaded(self, ref: BufferRef, t: DType, index: Op) -> int:
        return self._element(ref, t, self._e.load_index(index))

    def _element(self, ref: BufferRef, t: DType, index: int) -> int:
        e = self._e
        pointer = e.m.pointer("PhysicalStorageBuffer", e.type(t))
        return e.f.value("AccessChain", pointer, self._view(ref, t), e.m.constant_u32(0), index)

    def _view(self, ref: BufferRef, t: DType) -> int:
        key = (ref.slot.offset, t)
        pointer = self._views.get(key)
        if pointer is None:
            e = self._e
            array = _array_block(e, t)
            address = self.block.value(ref.slot)
            with e.f.prologue():
                pointer = self._views[key] = e.pointer_from_address(array, address)
            e.m.name(pointer, ref.name)
        return pointer


class BoundMemory:
    """Buffers as storage buffers of descriptor set 0: one binding for each type that a buffer is accessed as, or one in all if the device
    binds a buffer only once (see `_united`).

    If the device cannot bind that many, the last buffers share: one binding for each type that any of them is accessed as, with the offset
    of each buffer in the argument block.
    """

    def __init__(self, e: Emitter, block: ArgBlock, regions: Sequence[Region]) -> None:
        self._e = e
        direct = is_direct(block, e.caps.max_push_constants)
        views, limit = used_views(regions), e.caps.max_buffers - (0 if direct else 1)
        self._united: dict[Slot, DType] = {}
        if not e.caps.aliased_bindings:
            self._unite(views, _compared(regions), limit)
        alone, shared = _share(views, limit)
        keys: list[tuple[Slot | None, DType]] = [(slot, t) for slot in alone for t in views[slot]]
        keys += [(None, t) for t in _types(views, shared)]
        if len(keys) + (not direct) > e.caps.max_buffers:
            e.unsupported(f"a task with {len(keys)} storage buffers", f"{owner(e.caps, 'max_buffers')} binds at most {e.caps.max_buffers}")
        self._numbers = {key: k for k, key in enumerate(keys)}
        self._shared = frozenset(shared)
        self._variables: dict[tuple[Slot | None, DType], int] = {}
        self._starts: dict[tuple[Slot, DType], int] = {}
        together = tuple(slot.offset for slot in shared)
        self.bindings = tuple(together if slot is None else (slot.offset,) for slot, _ in keys)
        self.block = ArgumentBlock(e, block, used_slots(regions), self._shared)

    def within(self, e: Emitter) -> BoundMemory:
        new = copy.copy(self)
        new._e, new._starts, new.block = e, {}, self.block.within(e)
        return new

    def _unite(self, views: dict[Slot, list[DType]], compared: dict[Slot, list[DType]], limit: int) -> None:
        """Make ``views`` have one type for each buffer, and one for all buffers that share a binding."""
        together = list(views)[limit - 1 :] if len(views) > limit else []
        groups = [[slot] for slot in views if slot not in together] + [together] * bool(together)
        for group in groups:
            types, signs = _types(views, group), _types(compared, [slot for slot in group if slot in compared])
            if len(signs) > 1:
                self._e.unsupported("atomic minima or maxima of i32 and of u32 in one buffer", self._e.lacking("aliased_bindings"))
            view = types[0] if len(types) == 1 else signs[0] if signs else u32
            self._united |= dict.fromkeys(group, view)
        views |= {slot: [view] for slot, view in self._united.items()}

    def alignment(self, t: DType) -> int:
        return 0

    def view(self, ref: BufferRef, t: DType) -> DType:
        return self._united.get(ref.slot, t)

    def element(self, ref: BufferRef, t: DType, index: Op) -> int:
        e = self._e
        slot = ref.slot if ref.slot not in self._shared else None
        at = self._index(index) if slot is not None else self._within(ref.slot, t, index)
        pointer = e.m.pointer("StorageBuffer", e.type(t))
        return e.f.value("AccessChain", pointer, self._variable(slot, t, ref.name), e.m.constant_u32(0), at)

    loaded = element  # such accesses have bounds

    def _variable(self, slot: Slot | None, t: DType, name: str) -> int:
        variable = self._variables.get((slot, t))
        if variable is None:
            m = self._e.m
            label = name if slot is not None else f"shared_{t.name}"
            variable = self._variables[slot, t] = m.storage_buffer(_array_block(self._e, t), label, _BUFFER_SET, self._numbers[slot, t])
        return variable

    def _within(self, slot: Slot, t: DType, index: Op) -> int:
        """Return the index in the shared binding of element ``index`` of a buffer."""
        e, word = self._e, self._e.type(u32)
        start = self._starts.get((slot, t))
        if start is None:
            offset = self.block.value(slot)
            with e.f.prologue():
                shift = e.const(t.size.bit_length() - 1, u32)
                start = self._starts[slot, t] = e.f.value("ShiftRightLogical", word, offset, shift)
        at = self._index(index)
        return e.f.value("IAdd", word, start, e.bitcast(at, i32, u32) if index.type is i32 else at)

    def _index(self, index: Op) -> int:
        """Return an index in 32 bits, which suffice because a binding is smaller than 4 GiB."""
        e, at = self._e, self._e.ids[index]
        return e.f.value("UConvert", e.type(u32), e.bitcast(at, i64, u64)) if index.type is i64 else at


def _array_block(e: Emitter, t: DType) -> int:
    """Return the type ``Block { t data[]; }``, with the capability that storing ``t`` takes."""
    if not e.caps.stores(t):
        e.unsupported(f"memory of type {t.name}", e.lacking(f"storage{t.bits}"))
    if t.bits < 32:
        e.m.capability(f"StorageBuffer{t.bits}BitAccess")
    return e.m.runtime_array_block(e.type(t), t.size, f"Buffer_{t.name}")


# --- use of buffers --------------------------------------------------------------------------------------------------------


def _memory_ops(regions: Sequence[Region]) -> list[Op]:
    everything = [op for region in regions for op in region.walk()]
    return [op for op in everything if op.code is ops.slot or (op.code in _VIEWS and not isinstance(ref_of(op), SharedRef))]


def used_slots(regions: Sequence[Region]) -> list[Slot]:
    """Return the entries of the argument block that code reads, in order of offset."""
    slots = {op.attr if op.code is ops.slot else _ref(op).slot for op in _memory_ops(regions)}
    return sorted(slots, key=lambda s: s.offset)


def used_views(regions: Sequence[Region]) -> dict[Slot, list[DType]]:
    """Return the buffers that code uses, in order of offset, each with the types that it is accessed as."""
    views: dict[Slot, dict[DType, None]] = {}
    for op in _memory_ops(regions):
        if op.code is not ops.slot:
            views.setdefault(_ref(op).slot, {})[_VIEWS[op.code](op)] = None
    return {slot: list(views[slot]) for slot in sorted(views, key=lambda s: s.offset)}


def _compared(regions: Sequence[Region]) -> dict[Slot, list[DType]]:
    """Return the types of the atomic minima and maxima in each buffer that has some: instructions that depend on the sign."""
    found: dict[Slot, list[DType]] = {}
    for op in _memory_ops(regions):
        if op.code is ops.atomic and op.attr[0] in ("min", "max"):
            found.setdefault(_ref(op).slot, []).append(atomic_view(op))
    return found


def _ref(op: Op) -> BufferRef:
    ref = op.attr[1] if op.code is ops.atomic else op.attr
    assert isinstance(ref, BufferRef), op
    return ref


def atomic_view(op: Op) -> DType:
    """Return the type as which an atomic accesses its buffer. Floats are exchanged as integers of the same bits, which needs no
    extension."""
    kind, ref = op.attr
    t: DType = ref.dtype
    return unsigned(t) if kind == "exchange" else t


def _own(op: Op) -> DType:
    t: DType = op.attr.dtype
    return t


_VIEWS: dict[ops.OpCode, Callable[[Op], DType]] = {ops.load: _own, ops.store: _own, ops.cas: _own, ops.claim: _own, ops.atomic: atomic_view}


def _types(views: dict[Slot, list[DType]], slots: list[Slot]) -> list[DType]:
    return list(dict.fromkeys(t for slot in slots for t in views[slot]))


def _share(views: dict[Slot, list[DType]], limit: int) -> tuple[list[Slot], list[Slot]]:
    """Return the buffers with bindings of their own, and those that share bindings, which are none if all fit into ``limit``."""
    alone = list(views)
    shared: list[Slot] = []
    while alone and sum(len(views[s]) for s in alone) + len(_types(views, shared)) > limit:
        shared.insert(0, alone.pop())
    return alone, shared
