"""Iteration spaces of run-time loops: ranges, and spaces of several indices, which are flattened to one."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from spirograd.base.dtypes import i32, i64, promote
from spirograd.lang import forms, scalar
from spirograd.lang.data.field import MatrixField, ScalarField, StructField
from spirograd.lang.data.nodes import SNode
from spirograd.lang.data.scalar_field import indices_of
from spirograd.lang.frontend.active_cells import active_cells
from spirograd.lang.frontend.array_proxy import ArrayProxy, Proxy
from spirograd.lang.frontend.tracer import Tracer
from spirograd.lang.frontend.trip_counts import extent, product
from spirograd.lang.frontend.view_proxy import ViewProxy
from spirograd.lang.scalar import Scalar, Value, type_error


class RunTimeRange:
    """``range`` with bounds that the kernel computes."""

    def __sg_describe__(self) -> str:
        return "a range whose bounds are only known at run time"

    def __init__(self, begin: Scalar, end: Scalar, step: Scalar = 1) -> None:
        self.begin, self.end, self.step = begin, end, step


class LoopSpace(NamedTuple):
    """The number of points, and the function that decodes a flat index into indices. ``is_active``: whether there is a point, for a flat
    index and the indices; None if there is one for each."""

    size: Value
    decode: Callable[[Value], list[Value]]
    is_active: Callable[[Value, list[Value]], Value] | None = None


def loop_space(t: Tracer, space: object) -> LoopSpace | None:
    """Return the points of ``space``; None if it has no indices."""
    if isinstance(space, (ScalarField, MatrixField, StructField, SNode)):
        cells = active_cells(t, space)
        return _field_space(space) if cells is None else LoopSpace(*cells)
    if isinstance(space, forms.ndrange):
        return _ndrange_space(space)
    return _elements(space) if isinstance(space, Proxy) else None


def _ndrange_space(space: forms.ndrange, fits: bool = False) -> LoopSpace:
    """Return the points of an ndrange, the last axis fastest. ``fits``: see `product`."""
    extents, begins = [], []
    for begin, end in space.bounds:
        low, high = scalar.as_value(begin), scalar.as_value(end)
        if low.dtype.is_float or high.dtype.is_float:
            raise type_error("the bounds of an ndrange are integers", "cast them: `int(x)`; `//` divides integers to an integer")
        low, high, _ = scalar.unify(scalar.cast(low, i32) if low.dtype.bits < 32 else low, high)
        begins.append(low)
        extents.append(extent(low, high))
    total = product(extents, fits)
    order = [extents[axis][0] for axis in space.axes]
    t = functools.reduce(promote, [n.dtype for n in begins])

    def decode(index: Value) -> list[Value]:
        out: list[Value] = [index] * len(order)
        for position in reversed(range(len(order))):
            axis = space.axes[position]
            here = index if position == 0 else scalar.raw_mod(index, order[position])
            index = index if position == 0 else scalar.raw_div(index, order[position])
            out[axis] = scalar.cast(here, t) + begins[axis]
        return out

    return LoopSpace(total, decode)


def _elements(memory: Proxy) -> LoopSpace:
    """Return all elements of an array or a view, in the order of memory. The type of the array says whether i32 may be too small to
    count them."""
    shape, array = memory.shape, memory.base if isinstance(memory, ViewProxy) else memory
    if not shape:
        return LoopSpace(scalar.constant(1), lambda index: [])
    is_wide = isinstance(array, ArrayProxy) and array.decl.wide
    return _ndrange_space(forms.ndrange(*[scalar.cast(n, i64) for n in shape] if is_wide else shape, axes=memory.axes_in_memory), True)


def _field_space(field: ScalarField | MatrixField | StructField | SNode) -> LoopSpace:
    """Return all elements of a field, or cells of a node, in the order of memory."""
    total = math.prod(field.shape if isinstance(field, SNode) else field.shape_in_kernels)

    def decode(index: Value) -> list[Value]:
        if isinstance(field, SNode):
            return indices_of(field.decode(), len(field.shape), (), index)
        indices = list(field.loop_order(index))
        for axis, (value, extent_) in enumerate(zip(indices, field.shape)):
            first = field.origin[axis] if field.origin else 0
            scalar.trace_of().loop_indices[value.op] = (field.name, first, first + extent_ - 1)
        return indices

    return LoopSpace(scalar.constant(total, i64 if total > 2**31 - 1 else i32), decode)
