"""Emitters of vector values: in registers if they are small, else arrays on the stack (`local_arrays`)."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base import dtypes as dt
from spirograd.base.dtypes import DType, Lanes, Vec
from spirograd.ir import ops
from spirograd.ir.nodes import Op
from spirograd.llvmgen.function import FunctionEmitter
from spirograd.llvmgen.local_arrays import clear, copied_array, element, new_array
from spirograd.llvmgen.module import is_array, literal, type_name

_ZEROS = frozenset(literal(0, t) for t in dt.ALL)


def emit_vec(e: FunctionEmitter, op: Op) -> None:
    assert isinstance(op.type, Vec)
    if is_array(op.type):
        e.env[op] = array = new_array(e, op.type)
        if all(e.env[arg] in _ZEROS for arg in op.args):
            clear(e, array, op.type)
            return
        _fill(e, array, op.type, [e.typed(arg) for arg in op.args])
        return
    e.env[op] = _joined(e, op.type, [e.typed(arg) for arg in op.args])


def set_vector(e: FunctionEmitter, op: Op, values: Sequence[str]) -> None:
    """Set the result of ``op`` to a vector of ``values``, which are typed operands."""
    assert isinstance(op.type, Vec)
    if is_array(op.type):
        e.env[op] = array = new_array(e, op.type)
        _fill(e, array, op.type, values)
    else:
        e.env[op] = _joined(e, op.type, values)


def _fill(e: FunctionEmitter, array: str, t: Vec, values: Sequence[str]) -> None:
    for k, value in enumerate(values):
        e.line(f"store {value}, ptr {element(e, array, t, f'i64 {k}')}")


def _joined(e: FunctionEmitter, t: Vec, values: Sequence[str]) -> str:
    text = "poison"
    for k, value in enumerate(values):
        text = e.value(f"insertelement {type_name(t)} {text}, {value}, i32 {k}")
    return text


def _lane(e: FunctionEmitter, index: Op, n: int) -> str:
    """Return ``index`` typed, and within the vector, because LLVM gives poison outside."""
    t = index.type
    assert isinstance(t, DType)
    if index.code is ops.const:
        return f"i32 {min(max(int(index.attr), 0), n - 1)}"
    wide = e.resize(e.env[index], t, dt.i64 if t.is_signed else dt.u64)
    return f"i64 {e.call_intrinsic('umin', dt.u64, [wide, str(n - 1)])}"


def emit_extract(e: FunctionEmitter, op: Op) -> None:
    vector, index = op.args
    if isinstance(vector.type, Lanes):
        e.set(op, f"extractelement {e.typed(vector)}, {e.typed(index)}")
        return
    assert isinstance(vector.type, Vec)
    lane = _lane(e, index, vector.type.n)
    if is_array(vector.type):
        e.set(op, f"load {type_name(op.type)}, ptr {element(e, e.env[vector], vector.type, lane)}")
    else:
        e.set(op, f"extractelement {e.typed(vector)}, {lane}")


def emit_insert(e: FunctionEmitter, op: Op) -> None:
    vector, index, value = op.args
    assert isinstance(vector.type, Vec)
    lane = _lane(e, index, vector.type.n)
    if is_array(vector.type):
        place = e.env[vector]
        e.env[op] = array = place if e.last_uses.is_last(op, vector) else copied_array(e, place, vector.type)
        e.line(f"store {e.typed(value)}, ptr {element(e, array, vector.type, lane)}")
    else:
        e.set(op, f"insertelement {e.typed(vector)}, {e.typed(value)}, {lane}")
