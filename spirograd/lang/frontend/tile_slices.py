"""Assignments between tiles and slices of memory, and products of columns. See `spirograd.lang.tiles`."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence

from spirograd.base.dtypes import DType, i32
from spirograd.ir import ops as ir
from spirograd.lang import arithmetic, scalar, tiles
from spirograd.lang.frontend.lvalues import Lvalue, Part
from spirograd.lang.frontend.memory_elements import element_of
from spirograd.lang.frontend.runtime_values import emit_if, where
from spirograd.lang.frontend.tracer import Tracer
from spirograd.lang.frontend.view_proxy import ViewAxis, ViewProxy
from spirograd.lang.matrix import make
from spirograd.lang.scalar import Scalar, Value, describe, type_error
from spirograd.lang.struct import Struct

_NEGATIVE: dict[type[ast.operator], bool] = {ast.Sub: True, ast.Add: False}


def load_tile(t: Tracer, lvalue: Lvalue | None, value: object) -> bool:
    """Trace ``tile[:] = value``. Returns False if the target is not a tile."""
    if not isinstance(lvalue, Part) or lvalue.kind != "index":
        return False
    tile = lvalue.container.load()
    if not tiles.is_tile(tile):
        return False
    if lvalue.key != slice(None):
        raise type_error("a tile is loaded as a whole", "write `t[:] = a[r0:r1, c0:c1]`; `t.r` is the row of this thread")
    if not isinstance(value, ViewProxy) or len(value.shape) != 2:
        raise type_error(f"a tile is loaded from a slice with two axes, not from {describe(value)}", "write `t[:] = a[r0:r1, c0:c1]`")
    row = _loaded(t, value, tile.r.entries)
    lvalue.container.store(tile.with_entries({"r": make(row, (len(row),))}))
    return True


def store_tile(t: Tracer, view: object, tile: Struct) -> None:
    """Trace ``view = tile``."""
    if not isinstance(view, ViewProxy) or len(view.shape) != 2:
        raise type_error(f"a tile is stored to a slice with two axes, not to {describe(view)}", "write `a[r0:r1, c0:c1] = t`")
    _element_type(view)
    entries = tile.r.entries
    at = tiles.row_of_thread(len(entries))
    rows, columns = _taken_axes(view)
    here = _has_row(view, rows, at, len(entries))
    inside = _inside(view, columns)
    all_columns = _has_columns(inside, len(entries))

    def store(column: Value, entry: Value) -> None:
        _element(t, view, (at, column)).store(entry)

    def whole() -> Sequence[Value]:
        for k, entry in enumerate(entries):
            store(scalar.constant(k, i32), entry)
        return ()

    def by_columns() -> Sequence[Value]:
        for k, entry in enumerate(entries):
            column = scalar.constant(k, i32)
            there = inside(column)
            if scalar.known(there) is False:
                break
            where(there, functools.partial(store, column, entry))
        return ()

    where(here, lambda: _either(all_columns, whole, by_columns))


def update_tile(t: Tracer, lvalue: Lvalue, op: type[ast.operator], product: tiles.Outer) -> None:
    """Trace ``tile -= outer(a, b)`` or ``tile += outer(a, b)``."""
    tile = lvalue.load()
    if not tiles.is_tile(tile) or op not in _NEGATIVE:
        raise type_error("an outer product is added to, or subtracted from, a tile", "write `t -= outer(a, b)`")
    n = len(tile.r.entries)
    a = _column(t, product.a, n)
    b = a if product.b is product.a else _column(t, product.b, n)
    lvalue.store(tiles.updated(tile, a, b, _NEGATIVE[op]))


def _column(t: Tracer, x: object, size: int) -> Value:
    """Return the entry of this thread."""
    if scalar.is_scalar(x):
        return scalar.as_value(x)
    if not isinstance(x, ViewProxy) or len(x.shape) != 1:
        raise type_error(f"`outer` takes numbers, or slices with one axis such as `a[r0:r1, column]`, not {describe(x)}")
    dtype = _element_type(x)
    at = tiles.row_of_thread(size)
    (axis,) = _taken_axes(x)
    here = _has_row(x, axis, at, size)
    return emit_if(here, lambda: [scalar.as_value(_element(t, x, (at,)).load())], lambda: [scalar.constant(0, dtype)])[0]


def _loaded(t: Tracer, view: ViewProxy, entries: list[Value]) -> list[Value]:
    """Return the row of this thread: entries that there are come from memory, the others stay."""
    _element_type(view)
    at = tiles.row_of_thread(len(entries))
    rows, columns = _taken_axes(view)
    here = _has_row(view, rows, at, len(entries))
    inside = _inside(view, columns)
    all_columns = _has_columns(inside, len(entries))

    def load(column: Value) -> Value:
        return scalar.as_value(_element(t, view, (at, column)).load())

    def whole() -> Sequence[Value]:
        loads = [load(scalar.constant(k, i32)) for k in range(len(entries))]
        return [scalar.cast(value, entry.dtype) for value, entry in zip(loads, entries)]

    def by_columns() -> Sequence[Value]:
        return [value for k, entry in enumerate(entries) for value in one_column(scalar.constant(k, i32), entry)]

    def one_column(column: Value, entry: Value) -> Sequence[Value]:
        there = inside(column)
        if scalar.known(there) is False:  # an index that is known to be out of range would be an error
            return [entry]
        return emit_if(there, lambda: [scalar.cast(load(column), entry.dtype)], lambda: [entry])

    return emit_if(here, lambda: _either(all_columns, whole, by_columns), lambda: entries)


def _either(all_columns: Value, whole: Callable[[], Sequence[Value]], by_columns: Callable[[], Sequence[Value]]) -> Sequence[Value]:
    """Emit accesses to a row as a ``whole`` where the memory has all its columns, else to those that it has."""
    return by_columns() if scalar.known(all_columns) is False else emit_if(all_columns, whole, by_columns)


def _element_type(view: ViewProxy) -> DType:
    """Return the type of the elements; raise SpirogradTypeError unless it is one of floats."""
    if view.element_shape or not isinstance(view.dtype, DType) or not view.dtype.is_float:
        raise type_error(f"tiles are loaded from and stored to memory of floats, and {describe(view)} has other elements")
    return view.dtype


def _taken_axes(view: ViewProxy) -> list[int]:
    """Return the axes of the memory that the view has indices for."""
    return [k for k, axis in enumerate(view.axes) if axis.extent is not None]


def _inside(view: ViewProxy, axis: int) -> Callable[[Value], Value]:
    """Return a function that tells whether the slice, and its memory, have an index of the slice on an axis: those without steps have the
    indices from one number on to another."""
    part: ViewAxis = view.axes[axis]
    assert part.extent is not None
    extent, memory = part.extent, scalar.as_value(view.base.shape[axis])
    start = scalar.constant(0, i32) if part.first is None else part.first
    if part.step is not None or not start.dtype.is_signed:
        return lambda at: scalar.as_value(scalar.bit_and(_between(part.place(at), 0, memory), arithmetic.cmp_lt(at, extent)))
    first, end = arithmetic.max(_difference(0, start), 0), arithmetic.min(extent, _difference(memory, start))
    return lambda at: _between(at, first, end)


def _difference(a: Scalar, b: Value) -> Value:
    """Return a - b. Slices may begin so far outside of memory that this wraps: then none of it is inside."""
    a, b, _ = scalar.unify(a, b)
    constants = a.op.code is ir.const and b.op.code is ir.const
    return scalar.emit(ir.sub, a, b, attr=None if constants else "wrap")


def _between(at: Value, first: object, end: object) -> Value:
    return scalar.as_value(scalar.bit_and(arithmetic.cmp_ge(at, first), arithmetic.cmp_lt(at, end)))


def _has_columns(inside: Callable[[Value], Value], size: int) -> Value:
    """Return whether the slice, and its memory, have all columns of a tile: its first and its last one, between which the others lie. Then
    accesses need no conditions, and devices make one of several."""
    first, last = [inside(scalar.constant(k, i32)) for k in (0, size - 1)]
    return scalar.as_value(scalar.bit_and(first, last))


def _has_row(view: ViewProxy, axis: int, at: Value, size: int) -> Value:
    """Return whether a tile of ``size`` rows has row ``at``, and the slice, too: groups may have more threads than a tile has rows."""
    return scalar.as_value(scalar.bit_and(_inside(view, axis)(at), at < size))


def _element(t: Tracer, view: ViewProxy, indices: tuple[Value, ...]) -> Lvalue:
    left = iter(indices)
    places = [scalar.as_value(axis.first) if axis.extent is None else axis.place(next(left)) for axis in view.axes]
    element = element_of(t, view.base, tuple(places))
    assert element is not None
    return element
