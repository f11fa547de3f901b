"""`get_addr`: where an element of a field or an array lies in the memory of the device."""

from __future__ import annotations

import ast
import math

from spirograd.base.dtypes import i32, i64, storage, u64
from spirograd.ir import ops as ir
from spirograd.ir.addresses import AddressArithmetic, cell_offset
from spirograd.ir.nodes import ArrayRef, FieldRef, Op
from spirograd.ir.ops import OpCode
from spirograd.lang import scalar
from spirograd.lang.data.nodes import Place
from spirograd.lang.frontend.expressions import arguments
from spirograd.lang.frontend.lvalues import Element
from spirograd.lang.frontend.memory_elements import element_of
from spirograd.lang.frontend.sparse_elements import SparseElement
from spirograd.lang.frontend.tracer import Tracer
from spirograd.lang.scalar import Value, describe, type_error


def get_addr(t: Tracer, node: ast.Call) -> Value:
    """Trace a call of `forms.get_addr`."""
    values, kwargs = arguments(t, node)
    t.at(node)
    if kwargs or len(values) != 2:
        raise type_error(f"`get_addr` takes 2 arguments, got {len(values) + len(kwargs)}", "as in `sg.get_addr(x, [i, j])`")
    memory, index = values
    if isinstance(memory, Place):
        memory = memory.field
    element = element_of(t, memory, index)
    if isinstance(element, SparseElement):
        raise type_error(f"{describe(memory)} is sparse: its cells have no addresses before they are active", "store the indices instead")
    if not isinstance(element, Element) or not isinstance(element.ref, (FieldRef, ArrayRef)):
        raise type_error(f"`get_addr` takes a field or an array, not {describe(memory)}", "of a struct, name a member, as `x.a`")
    base, offset = _field_place(element) if isinstance(element.ref, FieldRef) else _array_place(element)
    b = scalar.builder()
    address = b.emit(ir.address, attr=base, type=u64)
    return Value(b.emit(ir.add, address, b.cast(offset, u64), attr="wrap"))


def _field_place(element: Element) -> tuple[object, Op]:
    """Return what `ir.address` names, and the offset in bytes from there."""
    ref = element.ref
    assert isinstance(ref, FieldRef)
    b = scalar.builder()
    origin = ref.layout.origin or (0,) * len(ref.shape)
    indices = [_binary(ir.sub, b.cast(at, i64), first) for at, first in zip(element.indices, origin)]
    by = AddressArithmetic(
        lambda a, b: _binary(ir.add, a, b), lambda a, n: _binary(ir.mul, a, n), lambda a, n: _binary(ir.idiv, a, n),
        lambda a, n: _binary(ir.irem, a, n),
    )  # fmt: skip
    total = cell_offset(ref.layout, indices, by)
    first = ref.layout.components[0]
    return ("tree", ref.tree), b.const(first, i64) if total is None else _binary(ir.add, total, first)


def _array_place(element: Element) -> tuple[object, Op]:
    """Return what `_field_place` does, for an array."""
    ref = element.ref
    assert isinstance(ref, ArrayRef)
    b = scalar.builder()
    total = b.const(0, i64)
    for axis, at in enumerate(element.indices):
        extent = b.cast(b.emit(ir.shape, attr=(ref.arg, axis), type=i32), i64)
        total = _binary(ir.add, _binary(ir.mul, total, extent), b.cast(at, i64))
    return (ref.arg, ref.role), _binary(ir.mul, total, math.prod(ref.element_shape) * storage(ref.dtype).size)


def _binary(code: OpCode, a: Op, b: Op | int) -> Op:
    builder = scalar.builder()
    return builder.emit(code, a, builder.const(b, i64) if isinstance(b, int) else b, attr=None if code in (ir.idiv, ir.irem) else "nsw")
