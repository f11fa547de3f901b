"""Emitters of structured control flow (`if`, `for`, `while`) and calls.

Drivers promote the Function variables of loop-carried values and results.
"""

from __future__ import annotations

import itertools

from spirograd.base.dtypes import DType, i64, u64
from spirograd.ir import ops
from spirograd.ir.nodes import LoopAttr, Op, Region, callee_of
from spirograd.spirvgen.emit_vector import is_large
from spirograd.spirvgen.emitter import Emitter


def _variables(e: Emitter, op: Op) -> list[int]:
    """Create one variable per result of a construct, and record them for its `result` operations."""
    assert isinstance(op.type, tuple)
    names = [p.attr for p in op.regions[-1].params] if op.code is ops.while_ else []
    variables = e.results[op] = [e.f.variable(e.type(t), name or "") for t, name in itertools.zip_longest(op.type, names)]
    return variables


def _stored(e: Emitter, value: Op) -> int:
    """Return the id of a value for a variable. RADV of Mesa 26.2 does not end for most 64-bit integers of loops that are all ones at first
    and then 0, as far as it sees constants."""
    t = value.type
    if value.code is ops.const and t in (i64, u64) and value.attr in (-1, u64.max):
        assert isinstance(t, DType)
        return e.opaque_ones(t)
    return e.id(value)


def _store_all(e: Emitter, variables: list[int], values: tuple[Op, ...]) -> None:
    """Assign in parallel: all values are read before any variable is written."""
    pending = [(variable, _stored(e, value)) for variable, value in zip(variables, values) if not e.stack_slots.lives_in(value, variable)]
    for variable, value in pending:
        e.f.store(variable, value)


def _bind_all(e: Emitter, params: tuple[Op, ...], variables: list[int]) -> None:
    for param, variable in zip(params, variables):
        e.stack_slots.bind(param, variable)


def _arm(e: Emitter, region: Region, variables: list[int]) -> None:
    e.run(region)
    _store_all(e, variables, region.results)


def _if_variables(e: Emitter, op: Op) -> list[int]:
    """Create variables as `_variables` does, except for a large vector that the branches change in place."""
    assert isinstance(op.type, tuple)
    variables: list[int] = []
    for k, t in enumerate(op.type):
        shared = e.stack_slots.shared_stack_slot(op, k, variables) if is_large(t) else None
        variables.append(e.f.variable(e.type(t)) if shared is None else shared)
    e.results[op] = variables
    return variables


def emit_if(e: Emitter, op: Op) -> None:
    then, orelse = op.regions
    variables = _if_variables(e, op)
    two = bool(variables) or len(orelse.ops) > 1
    with e.f.selection(e.ids[op.args[0]], two) as selection:
        _arm(e, then, variables)
        if two:
            selection.otherwise()
            _arm(e, orelse, variables)


def emit_for(e: Emitter, op: Op) -> None:
    begin, end, *initial = op.args
    (region,) = op.regions
    index_type = begin.type
    assert isinstance(index_type, DType)
    attr: LoopAttr = op.attr
    t = e.type(index_type)
    counter = e.f.variable(t, attr.name)
    variables = _variables(e, op)
    _store_all(e, variables, tuple(initial))
    e.f.store(counter, e.ids[begin])
    stop = e.ids[end]
    with e.f.loop() as loop:
        index = e.f.load(t, counter)
        loop.test(e.f.value("SLessThan" if index_type.is_signed else "ULessThan", e.m.type_bool, index, stop))
        e.ids[region.params[0]] = index
        _bind_all(e, region.params[1:], variables)
        e.run(region)
        _store_all(e, variables, region.results)
        loop.step()
        # Below the end, so the increment never wraps.
        e.f.store(counter, e.f.value("IAdd", t, index, e.const(1, index_type)))


def emit_while(e: Emitter, op: Op) -> None:
    condition, body = op.regions
    variables = _variables(e, op)
    _store_all(e, variables, op.args)
    with e.f.loop(separate_condition=any(op.regions for op in condition.ops)) as loop:
        _bind_all(e, condition.params, variables)
        e.run(condition)
        loop.test(e.ids[condition.results[0]])
        _bind_all(e, body.params, variables)
        e.run(body)
        _store_all(e, variables, body.results)
        loop.step()


def emit_result(e: Emitter, op: Op) -> None:
    source = op.args[0]
    if callee_of(source) is not None:
        e.ids[op] = e.f.value("CompositeExtract", e.type(op.type), e.ids[source], op.attr)
    else:
        e.stack_slots.bind(op, e.results[source][op.attr])


def emit_call(e: Emitter, op: Op) -> None:
    e.ids[op] = e.f.value("FunctionCall", e.returned(op.type), e.callee(op.attr), *[e.id(a) for a in op.args])


def emit_call_memory(e: Emitter, op: Op) -> None:
    """Emit a call. Buffers and arguments are global variables, so the function accesses them as the task does."""
    e.ids[op] = e.f.value("FunctionCall", e.returned(op.type), e.callee(op.attr.name), *[e.id(a) for a in op.args])
