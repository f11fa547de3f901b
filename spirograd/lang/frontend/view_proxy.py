"""Slices of arrays and fields inside a kernel: indices of a view are turned into indices of what it is of.

The IR knows no views. All accesses through views of one array are accesses to that array, so aliasing, gradients, bounds and the width of
addresses need no rules of their own. Bounds of the view itself are checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spirograd.base.artifact import FAULT_MAX_OPERANDS
from spirograd.base.dtypes import DType, i32
from spirograd.ir import ops as ir
from spirograd.ir.nodes import Op
from spirograd.ir.ops import OpCode
from spirograd.lang import scalar
from spirograd.lang.data.field import MatrixField, ScalarField, StructField
from spirograd.lang.data.scalar_field import Field
from spirograd.lang.data.slices import padded
from spirograd.lang.frontend.array_proxy import SHADOWS, ArrayProxy, ElementShape, Proxy
from spirograd.lang.frontend.indices import integer_index
from spirograd.lang.frontend.trip_counts import strided
from spirograd.lang.groups import SharedArray
from spirograd.lang.scalar import Scalar, Value, describe, type_error
from spirograd.lang.struct import StructType


class ViewAxis(NamedTuple):
    """What a view has of an axis: ``extent`` indices (None: one, and the view has no such axis) from ``first`` on (None: 0), ``step`` apart
    (None: 1)."""

    first: Value | None = None
    extent: Value | None = None
    step: Value | None = None

    def place(self, at: Value) -> Value:
        """Return the index on this axis that the view's index ``at`` stands for."""
        if self.step is not None:
            at = _address(ir.mul, at, self.step)
        return at if self.first is None else _address(ir.add, at, self.first)


def _address(code: OpCode, a: Value, b: Value) -> Value:
    """Emit arithmetic on indices that are in range, so that it never wraps."""
    known = isinstance(scalar.known(a), int) and isinstance(scalar.known(b), int)
    a, b, _ = scalar.unify(a, b)
    return scalar.emit(code, a, b, attr=None if known else "nsw")


Viewed = ArrayProxy | ScalarField | MatrixField | StructField | SharedArray


class ViewProxy(Proxy):
    """A view of ``base``, an array or a field of the kernel, with one entry of ``axes`` for each axis of that."""

    def __init__(self, base: Viewed, axes: Sequence[ViewAxis], name: str) -> None:
        self.base = base
        self.axes = tuple(axes)
        self.name = name

    @property
    def shape(self) -> tuple[Value, ...]:
        return tuple(axis.extent for axis in self.axes if axis.extent is not None)

    @property
    def axes_in_memory(self) -> tuple[int, ...]:
        """The axes, those of an array slowest in memory first."""
        kept = [axis for axis, part in enumerate(self.axes) if part.extent is not None]
        order = self.base.axes_in_memory if isinstance(self.base, ArrayProxy) else range(len(self.axes))
        return tuple([kept.index(axis) for axis in order if axis in kept])

    @property
    def dtype(self) -> DType | StructType | None:
        return self.base.dtype

    @property
    def element_shape(self) -> ElementShape:
        return ElementShape(self.base.element_shape)

    @property
    def offset(self) -> Value:
        """The index in ``base`` of the first element of a one-dimensional view."""
        (axis,) = [axis for axis in self.axes if axis.extent is not None]
        return scalar.constant(0, i32) if axis.first is None else axis.first

    def _shadow(self, role: str) -> ViewProxy:
        if not isinstance(self.base, ArrayProxy) and not getattr(self.base, f"has_{role}")():
            raise type_error(f"{describe(self.base)} has no {SHADOWS[role]}", f"declare it with `needs_{role}=True`")
        return ViewProxy(getattr(self.base, role), self.axes, f"{self.name}.{role}")

    def subview(self, offset: object, size: object) -> ViewProxy:
        """Return a view of ``size`` elements of a one-dimensional view from its element ``offset`` on."""
        return subview(self, offset, size)

    def __sg_describe__(self) -> str:
        return self.name if self.name.startswith("a slice") else f"the {len(self.shape)}-d {self.name}"

    def element(self, indices: Sequence[Op]) -> tuple[Value, ...]:
        """Return the index in ``base`` of the element at ``indices``; in debug mode checked, and none that ``base`` has if it is out of
        range."""
        given = [Value(op) for op in indices]
        inside = _checked(given, self.shape, self.name)
        left = iter(given)
        index = [scalar.as_value(axis.first) if axis.extent is None else axis.place(next(left)) for axis in self.axes]
        if inside is not None:
            index[0] = scalar.emit_select(inside, index[0], scalar.constant(-1, index[0].dtype))
        return tuple(index)


def _checked(indices: Sequence[Value], extents: Sequence[Value], name: str) -> Value | None:
    """Return whether an index is in range, where that is checked: a failing check is reported."""
    if not scalar.trace_of().options.check_bounds:
        return None
    inside: Value | None = None
    for index, extent in zip(indices, extents):
        t = index.dtype
        ok = scalar.bit_and(scalar.emit(ir.ge, index, scalar.constant(0, t)), scalar.emit(ir.lt, index, scalar.cast(extent, t)))
        inside = ok if inside is None else scalar.bit_and(inside, ok)
    assert inside is not None
    shown = [f"{{{k}}}" if k < FAULT_MAX_OPERANDS else "?" for k in range(2 * len(indices))]
    ranges = " x ".join(f"[0, {extent})" for extent in shown[len(indices) :])
    message = f"index ({', '.join(shown[: len(indices)])}) out of range of {name}: {ranges}"
    scalar.emit_check("bounds", inside, message, [*indices, *extents][:FAULT_MAX_OPERANDS])
    return inside


# --- slices ------------------------------------------------------------------------------------------------------------------


def subview(base: ArrayProxy | ViewProxy, offset: object, size: object = None) -> ViewProxy:
    """Return a view of ``size`` elements, or all, of a one-dimensional array or view from element ``offset`` on."""
    if len(base.shape) != 1:
        raise type_error(f"`subview` takes a range of a one-dimensional array or view, not of {describe(base)}", "slice it: `a[1:3, :]`")
    begin = scalar.as_value(offset)
    count = size if size is None or scalar.is_scalar(size) else scalar.as_value(size)
    return sliced(base, slice(begin, None if count is None else scalar.add(begin, count)))


def sliced(base: Viewed | ViewProxy, key: object) -> ViewProxy:
    """Return the view of an array, a field or a view at ``key``, which has slices in it."""
    what = describe(base)
    _refuse_fields(base)
    if isinstance(base, ViewProxy):
        of, axes, name = base.base, base.axes, base.name if base.name.startswith("a slice") else "a slice of " + base.name
    else:
        of, axes, name = base, tuple([ViewAxis(extent=scalar.as_value(n)) for n in _extents(base)]), "a slice of " + _name(base)
    parts = iter(padded(key, len(_extents(base)), what))
    return ViewProxy(of, [axis if axis.extent is None else _part(axis, next(parts), name, what) for axis in axes], name)


def _extents(base: Viewed | ViewProxy) -> tuple[Scalar, ...]:
    return base.shape_in_kernels if isinstance(base, Field) else base.shape


def _refuse_fields(base: object) -> None:
    """Raise SpirogradTypeError for fields whose indices mean more than where an element lies."""
    field = base
    while isinstance(field, StructField):  # all members have the same indices
        field = next(iter(field.members.values()))
    if isinstance(field, (ScalarField, MatrixField)) and (field.sparse_path is not None or any(field.origin)):
        why = "is sparse" if field.sparse_path is not None else "has an offset"
        raise type_error(f"{describe(base)} {why}, and cannot be sliced", "use its indices")


def _name(base: Viewed) -> str:
    if isinstance(base, SharedArray):
        return f"`{base.ref.name}`"
    return f"`{base.decl.name if isinstance(base, ArrayProxy) else base.name}`"


def _part(outer: ViewAxis, key: object, name: str, what: str) -> ViewAxis:
    """Return what a slice, or one index, takes of an axis."""
    assert outer.extent is not None
    if not isinstance(key, slice):
        index = Value(integer_index(key, what))
        _checked([index], [outer.extent], name)
        return ViewAxis(outer.place(index))
    step = 1 if key.step is None else scalar.known(key.step)
    if not isinstance(step, int) or isinstance(step, bool) or step == 0:
        raise type_error(
            f"the step of a slice of {what} is an integer other than 0 that is known while compiling",
            "write a literal, or `sg.static(...)`",
        )
    first, last = (_bound(bound, outer.extent) for bound in (key.start, key.stop))
    if first is None:
        first = scalar.constant(0, i32) if step > 0 else outer.extent - 1
    if last is None:
        last = outer.extent if step > 0 else scalar.constant(-1, i32)
    extent = _extent(first, last, step)
    _check_range(first, last, step, extent, outer.extent, name)
    scale = step if outer.step is None else scalar.mul(outer.step, step)
    return ViewAxis(outer.place(first), extent, None if isinstance(scale, int) and scale == 1 else scalar.as_value(scale))


def _bound(bound: object, extent: Value) -> Value | None:
    """Return a bound of a slice as i32; constants below 0 count from the end."""
    bound = scalar.known(bound)
    if bound is None:
        return None
    value = scalar.cast(Value(integer_index(bound, "slice")), i32)
    return scalar.add(scalar.cast(extent, i32), value) if isinstance(bound, int) and bound < 0 else value


def _extent(first: Value, last: Value, step: int) -> Value:
    """Return how many indices a slice has; none if it ends before it begins."""
    begin, end, _ = strided(first, last, step)
    count = scalar.cast(_address(ir.sub, end, begin), i32)
    return scalar.emit(ir.max_, count, scalar.constant(0, i32))


def _check_range(first: Value, last: Value, step: int, extent: Value, size: Value, name: str) -> None:
    """Check, in debug mode, that a slice with any elements lies within the extent: kernels do not cut off bounds. Tiles do that: in kernels
    with tiles, only accesses are checked."""
    if not scalar.trace_of().options.check_bounds or scalar.trace_of().tiles:
        return
    zero = scalar.constant(0, i32)
    low, high = (first, last) if step > 0 else (last + 1, first + 1)
    good = scalar.bit_and(scalar.emit(ir.ge, low, zero), scalar.emit(ir.le, high, scalar.cast(size, i32)))
    good = scalar.bit_or(good, scalar.emit(ir.eq, extent, zero))
    message = f"{name} from {{0}} to {{1}} is out of range: there are {{2}} indices"
    scalar.emit_check("bounds", good, message, (first, last, scalar.cast(size, i32)))
