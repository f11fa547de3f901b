"""Memory of the ``vulkan`` profile: the argument block, buffers reached by address, loads, stores and atomics.

A buffer is a u64 address in the argument block. It becomes a pointer to ``Block { T data[]; }`` once, at the top of the function, and
elements are reached by an access chain: this form also survives translation to Metal.
"""

from __future__ import annotations

from typing import Any

from spirograd.base.artifact import ArgBlock, Slot
from spirograd.base.dtypes import DType, f16, f32, i32, u1, u32, u64, unsigned
from spirograd.ir import ops
from spirograd.ir.nodes import BufferRef, Op
from spirograd.spirvgen.emitter import Emitter
from spirograd.spirvgen.module import enumerant

_SCOPE_DEVICE = enumerant("Scope", "Device")
_RELAXED = enumerant("MemorySemantics", "Relaxed")
# Kind of atomic -> instruction per kind of element. The rest have been lowered to loops over `cas`.
_ATOMICS: dict[tuple[str, str], str] = {
    ("add", "int"): "AtomicIAdd",
    ("add", "uint"): "AtomicIAdd",
    ("add", "float"): "AtomicFAddEXT",
    ("min", "int"): "AtomicSMin",
    ("min", "uint"): "AtomicUMin",
    ("min", "float"): "AtomicFMinEXT",
    ("max", "int"): "AtomicSMax",
    ("max", "uint"): "AtomicUMax",
    ("max", "float"): "AtomicFMaxEXT",
    ("and", "int"): "AtomicAnd",
    ("and", "uint"): "AtomicAnd",
    ("or", "int"): "AtomicOr",
    ("or", "uint"): "AtomicOr",
    ("xor", "int"): "AtomicXor",
    ("xor", "uint"): "AtomicXor",
    ("exchange", "int"): "AtomicExchange",
    ("exchange", "uint"): "AtomicExchange",
    ("exchange", "float"): "AtomicExchange",
}
# (group of kinds, type) -> (field of Capabilities, SPIR-V capability)
_FLOAT_ATOMICS = {
    ("add", "f32"): ("atomic_f32_add", "AtomicFloat32AddEXT"),
    ("add", "f64"): ("atomic_f64_add", "AtomicFloat64AddEXT"),
    ("min", "f32"): ("atomic_f32_minmax", "AtomicFloat32MinMaxEXT"),
    ("max", "f32"): ("atomic_f32_minmax", "AtomicFloat32MinMaxEXT"),
}
_ATTRIBUTED = frozenset((ops.slot, ops.load, ops.store, ops.atomic, ops.cas))
_STORAGE_CAPABILITIES = {8: ("storage8", "StorageBuffer8BitAccess"), 16: ("storage16", "StorageBuffer16BitAccess")}


def used_slots(task: Op) -> list[Slot]:
    """The entries of the argument block that a task reads, in order of offset."""
    attributes: set[Any] = set()
    pending = list(task.regions)
    while pending:
        for op in pending.pop().ops:
            if op.code in _ATTRIBUTED:
                attributes.add(op.attr)
            elif op.regions:
                pending.extend(op.regions)
    refs = [a[1] if isinstance(a, tuple) else a for a in attributes]
    return sorted({r if isinstance(r, Slot) else r.slot for r in refs}, key=lambda s: s.offset)


def member_type(slot: Slot) -> DType:
    """The type of a member of the argument block: addresses are u64, and what is narrower than a word is read as a word."""
    if slot.is_buffer:
        return u64
    t = slot.dtype or (u32 if slot.kind in ("seed", "launch") else i32)
    return u32 if t.bits < 32 else t


class ArgumentBlock:
    """The argument block of a task: push constants, or (where it does not fit) memory whose address is the one push constant."""

    def __init__(self, e: Emitter, block: ArgBlock, slots: list[Slot]) -> None:
        self._e = e
        self._slots = {slot: k for k, slot in enumerate(slots)}
        self._values: dict[Slot, int] = {}
        self._scalars: dict[tuple[Slot, DType], int] = {}
        self._views: dict[tuple[int, DType], int] = {}
        self.direct = block.size <= e.caps.max_push_constants
        self._storage = "PushConstant" if self.direct else "PhysicalStorageBuffer"
        if not slots:
            return
        members = [(e.type(member_type(s)), s.offset, f"{s.kind}_{s.index}") for s in slots]
        struct_type = e.m.block(members, "Arguments")
        if self.direct:
            self._base = e.m.global_variable("PushConstant", struct_type, "arguments")
        else:
            self._base = self._indirect(struct_type)

    def _indirect(self, struct_type: int) -> int:
        """A pointer to the block from the address in the push constants."""
        e = self._e
        word = e.type(u64)
        holder = e.m.global_variable("PushConstant", e.m.block([(word, 0, "address")], "Indirect"), "indirect")
        with e.f.prologue():
            chain = e.f.value("AccessChain", e.m.pointer("PushConstant", word), holder, e.m.constant_u32(0))
            return e.f.value("ConvertUToPtr", e.m.pointer("PhysicalStorageBuffer", struct_type), e.f.load(word, chain))

    def value(self, slot: Slot) -> int:
        """The id of an entry of the block, read once at the top of the function (its type: `member_type`)."""
        found = self._values.get(slot)
        if found is None:
            e = self._e
            t = member_type(slot)
            with e.f.prologue():
                pointer = e.m.pointer(self._storage, e.type(t))
                chain = e.f.value("AccessChain", pointer, self._base, e.m.constant_u32(self._slots[slot]))
                found = self._values[slot] = e.f.load(e.type(t), chain, 0 if self.direct else t.size)
        return found

    def scalar(self, slot: Slot, t: DType) -> int:
        """A scalar argument as a value of its own type; converted once, at the top of the function."""
        found = self._scalars.get((slot, t))
        if found is None:
            word = self.value(slot)
            with self._e.f.prologue():
                found = self._scalars[slot, t] = self._converted(word, member_type(slot), t)
        return found

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

    def view(self, ref: BufferRef, t: DType) -> int:
        """A pointer to the buffer of ``ref`` seen as an array of ``t``."""
        key = (ref.slot.offset, t)
        found = self._views.get(key)
        if found is None:
            e = self._e
            self._require_storage(t)
            element = e.type(t)
            pointer = e.m.pointer("PhysicalStorageBuffer", e.m.runtime_array_block(element, t.size, f"Buffer_{t.name}"))
            address = self.value(ref.slot)
            with e.f.prologue():
                found = self._views[key] = e.f.value("ConvertUToPtr", pointer, address)
            e.m.name(found, ref.name)
        return found

    def _require_storage(self, t: DType) -> None:
        needed = _STORAGE_CAPABILITIES.get(t.bits)
        if needed is not None:
            if not getattr(self._e.caps, needed[0]):
                self._e.unsupported(f"memory of type {t.name}", f"the device lacks {needed[0]}")
            self._e.m.capability(needed[1])


def _element(e: Emitter, ref: BufferRef, index: Op, t: DType) -> int:
    """A pointer to one element, of type ``t``."""
    m = e.m
    pointer = m.pointer("PhysicalStorageBuffer", e.type(t))
    return e.f.value("AccessChain", pointer, e.block.view(ref, t), m.constant_u32(0), e.ids[index])


def emit_slot(e: Emitter, op: Op) -> None:
    assert isinstance(op.type, DType)
    e.ids[op] = e.block.scalar(op.attr, op.type)


def emit_load(e: Emitter, op: Op) -> None:
    t = op.attr.dtype
    e.ids[op] = e.f.load(e.type(t), _element(e, op.attr, op.args[0], t), t.size)


def emit_store(e: Emitter, op: Op) -> None:
    t = op.attr.dtype
    e.f.store(_element(e, op.attr, op.args[0], t), e.ids[op.args[1]], t.size)


def _atomic_width(e: Emitter, op: Op, t: DType) -> None:
    if t.bits < 32:
        e.unsupported(f"atomic operations on {t.name}", "SPIR-V has them for 32 and 64 bits only", op.loc)
    if t.bits == 64 and not t.is_float:
        if not e.caps.atomic_int64:
            e.unsupported(f"atomic operations on {t.name}", "the device lacks atomic_int64", op.loc)
        e.m.capability("Int64Atomics")


def emit_atomic(e: Emitter, op: Op) -> None:
    """Scope Device, relaxed. Floats are exchanged through their bits: that needs no extension."""
    kind, ref = op.attr
    t: DType = ref.dtype
    name = _ATOMICS.get((kind, t.kind))
    if name is None:
        e.unsupported(f"atomic {kind} on {t.name}", "it is no instruction of SPIR-V", op.loc)
        return
    view = unsigned(t) if kind == "exchange" else t
    _atomic_width(e, op, view)
    if view.is_float:
        needed = _FLOAT_ATOMICS.get((kind, t.name))
        if needed is None or not getattr(e.caps, needed[0]):
            e.unsupported(f"atomic {kind} on {t.name}", f"the device lacks {needed[0] if needed else 'it'}", op.loc)
            return
        e.m.capability(needed[1])
    pointer = _element(e, ref, op.args[0], view)
    value = e.bitcast(e.ids[op.args[1]], t, view)
    old = e.f.value(name, e.type(view), pointer, e.m.constant_u32(_SCOPE_DEVICE), e.m.constant_u32(_RELAXED), value)
    e.ids[op] = e.bitcast(old, view, t)


def emit_cas(e: Emitter, op: Op) -> None:
    ref = op.attr
    t: DType = ref.dtype
    if t.is_float or not e.caps.atomic_cas:
        e.unsupported(f"compare-and-swap on {t.name}", "the device lacks it", op.loc)
    _atomic_width(e, op, t)
    index, expected, desired = op.args
    relaxed = e.m.constant_u32(_RELAXED)
    pointer = _element(e, ref, index, t)
    operands = (pointer, e.m.constant_u32(_SCOPE_DEVICE), relaxed, relaxed, e.ids[desired], e.ids[expected])
    e.ids[op] = e.f.value("AtomicCompareExchange", e.type(t), *operands)


HANDLERS = {
    ops.slot: emit_slot,
    ops.load: emit_load,
    ops.store: emit_store,
    ops.atomic: emit_atomic,
    ops.cas: emit_cas,
}
