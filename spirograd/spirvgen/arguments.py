"""The argument block of a task in SPIR-V: its entries, the memory that holds it, and the values of the entries.

The block is in push constants if it fits. Otherwise it is in memory: at an address, which is then the only push constant, or, on targets
without addresses, in the storage buffer at descriptor set 1, binding 0.
"""

from __future__ import annotations

import copy
from collections.abc import Collection

from spirograd.base.artifact import ArgBlock, Slot
from spirograd.base.dtypes import DType, f16, f32, i32, u1, u32, unsigned
from spirograd.spirvgen.emitter import Emitter

BLOCK_SET = 1


def member_type(slot: Slot) -> DType:
    """Return the type of an entry that is not a buffer. Types narrower than a word are read as a word."""
    t = slot.dtype or (u32 if slot.kind in ("seed", "launch") else i32)
    return u32 if t.bits < 32 else t


def is_direct(block: ArgBlock, limit: int) -> bool:
    """Return whether the block is in push constants."""
    return block.size <= limit


class ArgumentBlock:
    """The entries ``slots`` of the block. ``packed``: the buffers in a shared binding; the low word of their entry is their offset in
    it."""

    def __init__(self, e: Emitter, block: ArgBlock, slots: list[Slot], packed: Collection[Slot] = ()) -> None:
        self._e = e
        if not e.caps.buffer_address:
            slots = [s for s in slots if not s.is_buffer or s in packed]
        self._slots = {slot: k for k, slot in enumerate(slots)}
        self._values: dict[Slot, int] = {}
        self._scalars: dict[tuple[Slot, DType], int] = {}
        self._aligned = False
        if not slots:
            return
        members = [(self._member(s), s.offset, e.slot_names.get(s, s.kind)) for s in slots]
        struct_type = e.m.block(members, "Arguments")
        if is_direct(block, e.caps.max_push_constants):
            self._storage = "PushConstant"
            self._base = e.m.global_variable("PushConstant", struct_type, "arguments")
        elif e.caps.buffer_address:
            self._storage, self._aligned = "PhysicalStorageBuffer", True
            self._struct = struct_type
            self._holder = e.m.global_variable("PushConstant", e.m.block([(e.address_type, 0, "address")], "Indirect"), "indirect")
            self._base = self._behind_address()
        else:
            self._storage = "StorageBuffer"
            self._base = e.m.storage_buffer(struct_type, "arguments", BLOCK_SET, 0)

    def _member(self, slot: Slot) -> int:
        """Return the type id of an entry."""
        e = self._e
        if not slot.is_buffer:
            return e.type(member_type(slot))
        return e.address_type if e.caps.buffer_address else e.type(u32)

    def within(self, e: Emitter) -> ArgumentBlock:
        """Return the block for another function of the module, which ``e`` emits."""
        new = copy.copy(self)
        new._e, new._values, new._scalars = e, {}, {}
        if self._aligned:
            new._base = new._behind_address()
        return new

    def _behind_address(self) -> int:
        """Return a pointer to the block, from the address in the push constants."""
        e = self._e
        with e.f.prologue():
            chain = e.f.value("AccessChain", e.m.pointer("PushConstant", e.address_type), self._holder, e.m.constant_u32(0))
            return e.pointer_from_address(self._struct, e.f.load(e.address_type, chain))

    def value(self, slot: Slot) -> int:
        """Return the id of an entry of the block, which is read once at the top of the function."""
        value = self._values.get(slot)
        if value is None:
            e = self._e
            t = self._member(slot)
            with e.f.prologue():
                pointer = e.m.pointer(self._storage, t)
                chain = e.f.value("AccessChain", pointer, self._base, e.m.constant_u32(self._slots[slot]))
                size = 8 if slot.is_buffer else member_type(slot).size
                value = self._values[slot] = e.f.load(t, chain, size if self._aligned else 0)
        return value

    def scalar(self, slot: Slot, t: DType) -> int:
        """Return a scalar argument as a value of its own type. It is converted once, at the top of the function."""
        value = self._scalars.get((slot, t))
        if value is None:
            word = self.value(slot)
            with self._e.f.prologue():
                value = self._scalars[slot, t] = self._converted(word, member_type(slot), t)
        return value

    def _converted(self, word: int, stored: DType, t: DType) -> int:
        e = self._e
        if t is u1:
            return e.f.value("INotEqual", e.m.type_bool, word, e.const(0, u32))
        if t.bits == stored.bits:
            return e.bitcast(word, stored, t)
        if t is f16:
            # Not through u16: a device may have half floats without 16-bit integers.
            pair = e.f.glsl("UnpackHalf2x16", e.m.vector(e.type(f32), 2), word)
            return e.f.value("FConvert", e.type(t), e.f.value("CompositeExtract", e.type(f32), pair, 0))
        narrow = e.f.value("UConvert", e.type(unsigned(t)), word)
        return e.bitcast(narrow, unsigned(t), t)
