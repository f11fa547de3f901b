"""Emitters of loads, stores and atomics of buffers. Access to buffers depends on the target: see `buffer_access`."""

from __future__ import annotations

from spirograd.base.dtypes import DType, i32, i64, u64
from spirograd.base.profiles import owner
from spirograd.ir.atomics import only_reads
from spirograd.ir.nodes import Op, SharedRef
from spirograd.spirvgen.buffer_access import atomic_view
from spirograd.spirvgen.emit_workgroup import shared_element
from spirograd.spirvgen.emitter import Emitter
from spirograd.spirvgen.module import enumerant

_SCOPE_SUBGROUP = enumerant("Scope", "Subgroup")
_SCOPE_WORKGROUP = enumerant("Scope", "Workgroup")
_SCOPE_DEVICE = enumerant("Scope", "Device")
_RELAXED = enumerant("MemorySemantics", "Relaxed")
_ORDERED = enumerant("MemorySemantics", "AcquireRelease") | enumerant("MemorySemantics", "UniformMemory")
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
_SHARED_FLOAT_ATOMICS = {("add", "f32"): ("shared_f32_add", "AtomicFloat32AddEXT")}


def emit_slot(e: Emitter, op: Op) -> None:
    block = e.memory.block
    if op.attr.is_buffer:
        e.ids[op] = block.value(op.attr)
    else:
        assert isinstance(op.type, DType)
        e.ids[op] = block.scalar(op.attr, op.type)


def emit_load(e: Emitter, op: Op) -> None:
    t = op.attr.dtype
    if isinstance(op.attr, SharedRef):
        e.ids[op] = e.f.load(e.type(t), shared_element(e, op.attr, e.load_index(op.args[0])), access=e.f.shared_access)
    else:
        view = e.memory.view(op.attr, t)
        pointer = e.memory.loaded(op.attr, view, op.args[0])
        e.ids[op] = e.bitcast(e.f.load(e.type(view), pointer, e.memory.alignment(t), e.f.shared_access), view, t)


def emit_store(e: Emitter, op: Op) -> None:
    t = op.attr.dtype
    if isinstance(op.attr, SharedRef):
        e.f.store(shared_element(e, op.attr, e.ids[op.args[0]]), e.ids[op.args[1]], access=e.f.shared_access)
    else:
        view = e.memory.view(op.attr, t)
        word = e.bitcast(e.ids[op.args[1]], t, view)
        e.f.store(e.memory.element(op.attr, view, op.args[0]), word, e.memory.alignment(t), e.f.shared_access)


def _atomic_width(e: Emitter, op: Op, t: DType, ability: str = "atomic_int64") -> None:
    if t.bits < 32:
        e.unsupported(f"atomic operations on {t.name}", "SPIR-V has them for 32 and 64 bits only", op.loc)
    if t.bits == 64 and not t.is_float:
        if not getattr(e.caps, ability):
            e.unsupported(f"atomic operations on {t.name}", e.lacking(ability), op.loc)
        e.m.capability("Int64Atomics")


def emit_atomic(e: Emitter, op: Op) -> None:
    """Emit a relaxed atomic of scope Device, or Workgroup for shared memory. Floats are exchanged as integers of the same bits, which needs
    no extension."""
    kind, ref = op.attr
    t: DType = ref.dtype
    name = _ATOMICS.get((kind, t.kind))
    if name is None:
        e.unsupported(f"atomic {kind} on {t.name}", "it is no instruction of SPIR-V", op.loc)
        return
    view = atomic_view(op)
    shared = isinstance(ref, SharedRef)
    _atomic_width(e, op, view, "shared_int64" if shared else "atomic_int64")
    if view.is_float:
        needed = (_SHARED_FLOAT_ATOMICS if shared else _FLOAT_ATOMICS).get((kind, t.name))
        if needed is None or not getattr(e.caps, needed[0]):
            e.unsupported(f"atomic {kind} on {t.name}", e.lacking(needed[0]) if needed else "SPIR-V lacks it", op.loc)
            return
        e.m.capability(needed[1])
    if not shared:
        own, view = view, e.memory.view(ref, view)
        if own.is_float and own is not view:
            e.unsupported(f"atomic {kind} on {t.name} in a buffer that has elements of other types", e.lacking("aliased_bindings"), op.loc)
    pointer = shared_element(e, ref, e.ids[op.args[0]]) if shared else e.memory.element(ref, view, op.args[0])
    scope = e.m.constant_u32(_SCOPE_WORKGROUP if shared else e.m.device_scope)
    relaxed = e.m.constant_u32(_RELAXED)
    if only_reads(op):
        e.ids[op] = e.bitcast(e.f.value("AtomicLoad", e.type(view), pointer, scope, relaxed), view, t)
        return
    value = e.bitcast(e.ids[op.args[1]], t, view)
    old = e.f.value(name, e.type(view), pointer, scope, relaxed, value)
    e.ids[op] = e.bitcast(old, view, t)


def emit_cas(e: Emitter, op: Op) -> None:
    ref = op.attr
    t: DType = ref.dtype
    if t.is_float or not e.caps.atomic_cas:
        e.unsupported(f"compare-and-swap on {t.name}", "SPIR-V has it for integers only" if t.is_float else e.lacking("atomic_cas"), op.loc)
    _atomic_width(e, op, t)
    index, expected, desired = op.args
    relaxed = e.m.constant_u32(_RELAXED)
    view = e.memory.view(ref, t)
    pointer = e.memory.element(ref, view, index)
    values = [e.bitcast(e.ids[value], t, view) for value in (desired, expected)]
    operands = (pointer, e.m.constant_u32(e.m.device_scope), relaxed, relaxed, *values)
    e.ids[op] = e.bitcast(e.f.value("AtomicCompareExchange", e.type(view), *operands), view, t)


def emit_claim(e: Emitter, op: Op) -> None:
    """Emit a claim. A variable, which lives as long as the invocation, holds the number, and is -1 before the claim."""
    word = e.type(i32)
    held = e.claims.get(op.attr)
    if held is None:
        held = e.claims[op.attr] = e.f.variable(word, op.attr.name, e.const(-1, i32))
    with e.f.selection(e.f.value("SLessThan", e.m.type_bool, e.f.load(word, held), e.const(0, i32))):
        view = e.memory.view(op.attr, i32)
        pointer = e.memory.element(op.attr, view, op.args[0])
        scope, relaxed = e.m.constant_u32(e.m.device_scope), e.m.constant_u32(_RELAXED)
        before = e.f.value("AtomicIAdd", e.type(view), pointer, scope, relaxed, e.const(1, view))
        e.f.store(held, e.bitcast(before, view, i32))
    e.ids[op] = e.f.load(word, held)


def emit_barrier(e: Emitter, op: Op) -> None:
    """Emit a barrier of scope Device for the memory of buffers; nothing for drivers that break on it and need none."""
    if e.caps.memory_barriers:
        e.f.do("MemoryBarrier", e.m.constant_u32(e.m.device_scope), e.m.constant_u32(_ORDERED | e.m.ordering))


def emit_clock(e: Emitter, op: Op) -> None:
    """Read the clock of the device, if it has one, so that values of different invocations are comparable; else that of the subgroup."""
    if not e.caps.shader_clock or not e.caps.int64:
        lacking = owner(e.caps, "shader_clock" if e.caps.int64 else "int64")
        e.unsupported("`clock_counter`", f"{lacking} has no clock that kernels can read (VK_KHR_shader_clock)", op.loc)
    scope = _SCOPE_DEVICE if e.caps.shader_clock == "device" else _SCOPE_SUBGROUP
    e.ids[op] = e.bitcast(e.f.value("ReadClockKHR", e.type(u64), e.m.constant_u32(scope)), u64, i64)
