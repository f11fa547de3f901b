"""Emitters of operations of workgroups: built-ins, shared memory, barriers, subgroups."""

from __future__ import annotations

from spirograd.base.dtypes import DType, i32, u32
from spirograd.ir import ops
from spirograd.ir.nodes import BuiltIn, Op, SharedRef
from spirograd.spirvgen.emitter import Emitter
from spirograd.spirvgen.module import enumerant

_WORKGROUP = enumerant("Scope", "Workgroup")
_SUBGROUP = enumerant("Scope", "Subgroup")
_GROUP_OPERATIONS = {
    ops.subgroup_reduce: enumerant("GroupOperation", "Reduce"),
    ops.subgroup_scan: enumerant("GroupOperation", "InclusiveScan"),
}
_SHARED_SEMANTICS = enumerant("MemorySemantics", "AcquireRelease") | enumerant("MemorySemantics", "WorkgroupMemory")
_BUFFERS = enumerant("MemorySemantics", "UniformMemory")
_SCALARS = {
    BuiltIn.LOCAL: "LocalInvocationIndex",
    BuiltIn.LANE: "SubgroupLocalInvocationId",
    BuiltIn.SUBGROUP: "SubgroupId",
    BuiltIn.SUBGROUPS: "NumSubgroups",
}
# Kind of reduction -> instruction for floats, and for signed and unsigned integers.
_REDUCTIONS = {
    "add": {"float": "GroupNonUniformFAdd", "int": "GroupNonUniformIAdd", "uint": "GroupNonUniformIAdd"},
    "mul": {"float": "GroupNonUniformFMul", "int": "GroupNonUniformIMul", "uint": "GroupNonUniformIMul"},
    "min": {"int": "GroupNonUniformSMin", "uint": "GroupNonUniformUMin"},
    "max": {"int": "GroupNonUniformSMax", "uint": "GroupNonUniformUMax"},
    "and": dict.fromkeys(("int", "uint"), "GroupNonUniformBitwiseAnd"),
    "or": dict.fromkeys(("int", "uint"), "GroupNonUniformBitwiseOr"),
    "xor": dict.fromkeys(("int", "uint"), "GroupNonUniformBitwiseXor"),
}


def _first_component(e: Emitter, name: str) -> int:
    """Return the x component of a vec3 built-in."""
    word = e.type(u32)
    vector = e.m.vector(word, 3)
    return e.f.value("CompositeExtract", word, e.f.load(vector, e.m.builtin(name, vector)), 0)


def emit_thread_slot(e: Emitter, op: Op) -> None:
    e.ids[op] = e.bitcast(_first_component(e, "GlobalInvocationId"), u32, i32)


def builtin_word(e: Emitter, name: BuiltIn) -> int:
    """Return the value of a built-in, a u32."""
    if name is BuiltIn.WORKGROUPS:
        return _first_component(e, "NumWorkgroups")
    word = e.type(u32)
    if name is not BuiltIn.LOCAL:
        e.m.capability("GroupNonUniform")  # built-ins of subgroups, which the grammar also assigns to OpenCL
    return e.f.load(word, e.m.builtin(_SCALARS[name], word))


def emit_builtin(e: Emitter, op: Op) -> None:
    e.ids[op] = e.bitcast(builtin_word(e, op.attr), u32, i32)


def shared_variable(e: Emitter, ref: SharedRef) -> int:
    """Return the array variable of shared memory."""
    array = e.shared.get(ref)
    if array is None:
        array = e.shared[ref] = e.m.global_variable("Workgroup", e.m.array(e.type(ref.dtype), ref.length), ref.name)
    return array


def shared_element(e: Emitter, ref: SharedRef, index: int) -> int:
    """Return a pointer to an element of shared memory."""
    return e.f.value("AccessChain", e.m.pointer("Workgroup", e.type(ref.dtype)), shared_variable(e, ref), index)


def emit_workgroup_barrier(e: Emitter, op: Op) -> None:
    scope = e.const(_WORKGROUP, u32)
    semantics = _SHARED_SEMANTICS | (_BUFFERS if e.grouped else 0)
    e.f.do("ControlBarrier", scope, scope, e.const(semantics | e.m.ordering, u32))


def emit_subgroup_barrier(e: Emitter, op: Op) -> None:
    """Emit a subgroup barrier; nothing for drivers that treat memory barriers as workgroup barriers, because they run subgroups in
    lockstep."""
    if e.caps.memory_barriers:
        scope = e.const(_SUBGROUP, u32)
        e.f.do("ControlBarrier", scope, scope, e.const(_SHARED_SEMANTICS | _BUFFERS | e.m.ordering, u32))


def emit_subgroup_combine(e: Emitter, op: Op) -> None:
    """Emit a reduction or an inclusive scan."""
    t = op.type
    assert isinstance(t, DType) and t.bits == 32, op
    name = _REDUCTIONS[op.attr][t.kind]
    e.ids[op] = e.f.value(name, e.type(t), e.const(_SUBGROUP, u32), _GROUP_OPERATIONS[op.code], e.ids[op.args[0]])


def emit_subgroup_read(e: Emitter, op: Op) -> None:
    """Emit a read of another lane. The result is unspecified if that lane does not exist."""
    value, lane = op.args
    e.m.capability("GroupNonUniformShuffle")
    source = e.bitcast(e.ids[lane], i32, u32)
    e.ids[op] = e.f.value("GroupNonUniformShuffle", e.type(op.type), e.const(_SUBGROUP, u32), e.ids[value], source)


def emit_subgroup_ballot(e: Emitter, op: Op) -> None:
    """Emit a ballot. The instruction gives four words."""
    e.m.capability("GroupNonUniformBallot")
    word, t = e.type(u32), op.type
    assert isinstance(t, DType)
    words = e.f.value("GroupNonUniformBallot", e.m.vector(word, 4), e.const(_SUBGROUP, u32), e.ids[op.args[0]])
    parts = [e.f.value("CompositeExtract", word, words, k) for k in range(t.bits // 32)]
    if len(parts) == 1:
        e.ids[op] = parts[0]
    else:
        e.ids[op] = e.f.value("Bitcast", e.type(t), e.f.value("CompositeConstruct", e.m.vector(word, 2), *parts))
