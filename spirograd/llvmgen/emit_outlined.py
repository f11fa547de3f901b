"""Outlined regions as functions: live-ins become arguments, results are returned."""

from __future__ import annotations

from typing import NamedTuple

from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region, SharedRef
from spirograd.llvmgen.function import FunctionEmitter
from spirograd.llvmgen.module import BLOCK_PARAMETER, is_array, returned_type, type_name

# Operations that a function recomputes instead of taking them as arguments.
_RECOMPUTED = frozenset((ops.const, ops.slot))


class _Argument(NamedTuple):
    type: str
    value: str
    parameter: str
    attributes: str = ""


def emit_outlined(e: FunctionEmitter, op: Op) -> None:
    """Emit a call of a function for the region of ``op``, which is appended to the module."""
    (region,) = op.regions
    callee = FunctionEmitter(e.module, e.handlers)
    callee.last_uses, callee.function = e.last_uses, e.function
    arguments = _arguments(e, callee, region)
    kind = _body(callee, region)
    name = e.module.unique(f"{e.function}.{op.attr}")
    params = ", ".join([BLOCK_PARAMETER, *[f"{a.type}{a.attributes} {a.parameter}" for a in arguments]])
    head = f"define internal {kind} @{name}({params}) noinline nounwind"
    e.module.functions.append(f"{head} {{\n{callee.body_text()}\n}}\n")
    call = f"call {kind} @{name}({', '.join(['ptr %block', *[f'{a.type} {a.value}' for a in arguments]])})"
    count = len(region.results)
    if count == 0:
        e.line(call)
    else:
        returned = e.value(call)
        e.env[op] = [returned] if count == 1 else [e.value(f"extractvalue {kind} {returned}, {k}") for k in range(count)]


def _arguments(e: FunctionEmitter, callee: FunctionEmitter, region: Region) -> list[_Argument]:
    """Return the arguments of a call: live-ins, the addresses of local memory, the thread slot. ``callee`` registers the parameters."""
    arguments: list[_Argument] = []
    for value in dict.fromkeys(region.uses_from_outside()):
        if value.code in _RECOMPUTED:
            callee.emit(value)
        elif value.code is ops.thread_slot:
            callee.env[value] = e.env[value]
        else:
            callee.env[value] = f"%p{len(arguments)}"
            arguments.append(_Argument("ptr" if is_array(value.type) else type_name(value.type), e.env[value], callee.env[value]))
    for ref in dict.fromkeys([ref for _, ref in region.accesses if isinstance(ref, SharedRef)]):
        callee.locals[ref] = f"%p{len(arguments)}"
        arguments.append(_Argument("ptr", e.local_memory(ref), callee.locals[ref], " noalias nonnull align 64 captures(none)"))
    if ops.thread_slot in region.codes or any(value.code is ops.thread_slot for value in region.live_ins):
        arguments.append(_Argument("i32", "%slot", "%slot"))
    return arguments


def _body(callee: FunctionEmitter, region: Region) -> str:
    """Emit ``region`` and the return of its results. Return their type."""
    values, types = callee.region(region), [value.type for value in region.results]
    if not types:
        callee.line("ret void")
        return "void"
    if len(types) == 1:
        callee.line(f"ret {type_name(types[0])} {values[0]}")
        return type_name(types[0])
    kind, returned = returned_type(types), "poison"
    for k, (t, value) in enumerate(zip(types, values)):
        returned = callee.value(f"insertvalue {kind} {returned}, {type_name(t)} {value}, {k}")
    callee.line(f"ret {kind} {returned}")
    return kind
