"""Emitters of entries of the argument block, loads, stores and atomics."""

from __future__ import annotations

from spirograd.base import dtypes as dt
from spirograd.base.artifact import Slot
from spirograd.base.dtypes import DType, Lanes
from spirograd.ir.atomics import only_reads
from spirograd.ir.nodes import Op
from spirograd.llvmgen import half
from spirograd.llvmgen.emit_lanes import emit_gather
from spirograd.llvmgen.function import STACK_LIMIT, FunctionEmitter, entry_of
from spirograd.llvmgen.instructions import ByKind
from spirograd.llvmgen.module import type_name

# Operations of atomicrmw, by kind of atomic; None: lowered to a loop over cas before code generation.
ATOMIC_MAP: dict[str, ByKind | None] = {
    "add": ByKind("add", "add", "fadd"),
    "mul": None,
    "min": ByKind("min", "umin", "fmin"),
    "max": ByKind("max", "umax", "fmax"),
    "and": ByKind("and", "and", ""),
    "or": ByKind("or", "or", ""),
    "xor": ByKind("xor", "xor", ""),
    "exchange": ByKind("xchg", "xchg", "xchg"),
}


def emit_thread_slot(e: FunctionEmitter, op: Op) -> None:
    """Use the parameter of tasks that distinguishes their threads."""
    e.env[op] = "%slot"


def emit_slot(e: FunctionEmitter, op: Op) -> None:
    assert isinstance(op.attr, Slot) and isinstance(op.type, DType)
    value = e.slot_value(*entry_of(op.attr, op.type))
    if op.type is dt.u1:
        e.set(op, f"icmp ne i8 {value}, 0")
    else:
        e.env[op] = value


def emit_load(e: FunctionEmitter, op: Op) -> None:
    if isinstance(op.type, Lanes):
        emit_gather(e, op)
        return
    pointer = e.address(op.attr, op.args[0])
    e.set(op, f"load {type_name(op.type)}, {pointer}, align {op.attr.dtype.size}{e.access_suffix(op.attr)}")


def emit_store(e: FunctionEmitter, op: Op) -> None:
    index, value = op.args
    pointer = e.address(op.attr, index)
    e.line(f"store {e.typed(value)}, {pointer}, align {op.attr.dtype.size}{e.access_suffix(op.attr)}")


def emit_atomic(e: FunctionEmitter, op: Op) -> None:
    kind, ref = op.attr
    names = ATOMIC_MAP[kind]
    assert names is not None, f"atomic {kind} must be lowered to a loop before it gets here"
    index, value = op.args
    pointer = e.address(ref, index)
    if only_reads(op):
        e.set(op, f"load atomic {type_name(op.type)}, {pointer}{e.atomic_scope} monotonic, align {ref.dtype.size}")
        return
    order = f"{e.atomic_scope} monotonic, align {ref.dtype.size}{e.atomic_metadata}"
    e.set(op, f"atomicrmw {names.pick(ref.dtype)} {pointer}, {e.typed(value)}{order}")


def emit_cas(e: FunctionEmitter, op: Op) -> None:
    index, expected, desired = op.args
    pointer = e.address(op.attr, index)
    order = f"{e.atomic_scope} monotonic monotonic, align {op.attr.dtype.size}"
    pair = e.value(f"cmpxchg {pointer}, {e.typed(expected)}, {e.typed(desired)}{order}")
    e.set(op, f"extractvalue {{ {type_name(op.type)}, i1 }} {pair}, 0")


def emit_barrier(e: FunctionEmitter, op: Op) -> None:
    e.line(f"fence{e.atomic_scope} seq_cst")


def emit_stack_room(e: FunctionEmitter, op: Op) -> None:
    """Compare the stack pointer with the limit. Stacks grow downwards."""
    limit = e.slot_value(*STACK_LIMIT)
    here = e.value(f"call ptr {e.module.declare('llvm.stacksave.p0', 'ptr', '')}()")
    address = e.value(f"ptrtoint ptr {here} to i64")
    e.set(op, f"icmp ugt i64 {address}, {limit}")


def emit_clock(e: FunctionEmitter, op: Op) -> None:
    """Read the time stamp counter on x86. Programs may not read the cycle counters of other CPUs, so their timers are read instead."""
    name = "llvm.readcyclecounter" if half.is_x86(e.module.caps) else "llvm.readsteadycounter"
    e.set(op, f"call i64 {e.module.declare(name, 'i64', '')}()")
