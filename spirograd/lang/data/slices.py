"""Slices of arrays in Python scope: the part of each axis in a view, and the layout of its elements.

A view has all of an axis, a range of its indices with a step, or one index, for which the view has no axis. Slices of slices are slices of
the array, so a view never refers to another one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradBoundsError, SpirogradTypeError
from spirograd.base.records import dataclass
from spirograd.base.wording import counted
from spirograd.lang.data.views import Block, HostView, dense_view, is_row_major

# Kind of the part of an axis -> the numbers that a kernel takes for it.
WHOLE, RANGE, STRIDE, AT = "whole", "range", "stride", "at"
_NUMBERS = {WHOLE: (), RANGE: ("first", "extent"), STRIDE: ("first", "extent", "step"), AT: ("first",)}


def numbers_of(kind: str) -> tuple[str, ...]:
    """Return the names of the numbers that a kernel takes for an axis of a kind."""
    return _NUMBERS[kind]


@dataclass(frozen=True, slots=True)
class Axis:
    """The part of an axis of an array that a view has: ``extent`` indices from ``first`` on, ``step`` apart. ``extent`` None: one index."""

    first: int
    extent: int | None
    step: int = 1

    def kind(self, length: int) -> str:
        """Return the kind of the part of an axis of ``length`` indices: each kind needs other numbers at a launch."""
        if self.extent is None:
            return AT
        if self.step != 1:
            return STRIDE
        return WHOLE if self.first == 0 and self.extent == length else RANGE

    def numbers(self, length: int) -> tuple[int, ...]:
        """Return the numbers that a launch passes for it."""
        return tuple([getattr(self, name) for name in _NUMBERS[self.kind(length)]])

    @property
    def indices(self) -> range:
        """Return the indices of the array that it stands for."""
        count = 1 if self.extent is None else self.extent
        return range(self.first, self.first + count * self.step, self.step)

    def taken(self, key: slice[int | None, int | None, int | None]) -> Axis:
        """Return a slice of it, as Python slices a sequence."""
        assert self.extent is not None
        indices = range(*key.indices(self.extent))
        return Axis(
            self.first + indices.start * self.step if indices else self.first, len(indices), self.step * indices.step if indices else 1
        )


def axes_of(kinds: Sequence[str], shape: Sequence[int], numbers: Sequence[int]) -> tuple[Axis, ...]:
    """Return the axes that a launch passes ``numbers`` for, of an array of ``shape``; all axes if it is not a view."""
    left = iter(numbers)
    axes = []
    for kind, extent in zip(kinds or [WHOLE] * len(shape), shape):
        given = [next(left) for _ in _NUMBERS[kind]]
        axes.append(Axis(0, extent) if kind == WHOLE else Axis(given[0], None) if kind == AT else Axis(*given))
    return tuple(axes)


def disjoint(a: Sequence[Axis], b: Sequence[Axis]) -> bool:
    """Return whether two views of one array have no element in common."""
    return not all(_meet(x.indices, y.indices) for x, y in zip(a, b))


def _meet(a: range, b: range) -> bool:
    """Return whether two arithmetic progressions have a number in common (Chinese remainder theorem)."""
    if not a or not b:
        return False
    a, b = (r if r.step > 0 else r[::-1] for r in (a, b))
    shared = math.gcd(a.step, b.step)
    if (b.start - a.start) % shared:
        return False
    modulus = b.step // shared
    period = a.step * modulus
    common = a.start + (b.start - a.start) // shared * pow(a.step // shared, -1, modulus) % modulus * a.step
    least = max(a.start, b.start)
    return common + max(0, -(-(least - common) // period)) * period <= min(a[-1], b[-1])


def whole_axes(shape: Sequence[int]) -> tuple[Axis, ...]:
    """Return the axes of the whole array."""
    return tuple(Axis(0, extent) for extent in shape)


def parts_of(key: object) -> tuple[object, ...]:
    """Return the index expression, axis by axis."""
    return key if isinstance(key, tuple) else (key,)


def is_slice(key: object) -> bool:
    """Return whether ``key`` asks for a view rather than for an element."""
    return any(isinstance(k, slice) or k is Ellipsis for k in parts_of(key))


def bounds_of(key: object) -> tuple[object, ...]:
    """Return begin, end and step of a slice; an empty tuple for an index."""
    return (key.start, key.stop, key.step) if isinstance(key, slice) else ()


def padded(key: object, ndim: int, what: str) -> list[object]:
    """Return one index or slice for each axis: an ellipsis, and missing entries at the end, stand for whole axes."""
    parts = list(parts_of(key))
    dots = [k for k, part in enumerate(parts) if part is Ellipsis]
    missing = [slice(None)] * (ndim - len(parts) + len(dots))
    if len(dots) > 1 or len(parts) - len(dots) > ndim:
        raise SpirogradBoundsError(f"{what} has {counted(ndim, 'axis', 'axes')}, but is sliced along {len(parts)}")
    at = dots[0] if dots else len(parts)
    return [*parts[:at], *missing, *parts[at + len(dots) :]]


def sliced(axes: Sequence[Axis], key: object, what: str) -> tuple[Axis, ...]:
    """Return the slice of a view at ``key``. Raises SpirogradTypeError or SpirogradBoundsError for invalid slices."""
    shape = [axis.extent for axis in axes if axis.extent is not None]
    given = iter(padded(key, len(shape), what))
    return tuple(axis if axis.extent is None else _part(axis, next(given), k, what) for k, axis in enumerate(axes))


def _part(axis: Axis, key: object, number: int, what: str) -> Axis:
    assert axis.extent is not None
    if isinstance(key, slice):
        try:
            return axis.taken(key)
        except (TypeError, ValueError) as error:
            raise SpirogradTypeError(f"{what} cannot be sliced by {key!r}: {error}") from None
    if isinstance(key, bool) or not isinstance(key, (int, np.integer)):
        raise SpirogradTypeError(f"{what} is sliced by integers and slices, not by {key!r}")
    at = int(key) + axis.extent if key < 0 else int(key)
    if not 0 <= at < axis.extent:
        raise SpirogradBoundsError(f"index {key} is out of range on axis {number} of {what}, which has {axis.extent} indices there")
    return Axis(axis.first + at * axis.step, None)


def strides_in_memory(shape: Sequence[int], layout: Sequence[int] | None) -> list[int]:
    """Return how many elements apart neighbours along each axis are. ``layout``: see `Ndarray`."""
    order = range(len(shape)) if layout is None else layout
    strides = {axis: math.prod([shape[inner] for inner in order[k + 1 :]]) for k, axis in enumerate(order)}
    return [strides[axis] for axis in range(len(shape))]


def view_of_axes(
    dtype: DType, shape: Sequence[int], element_shape: tuple[int, ...], axes: Sequence[Axis], layout: Sequence[int] | None
) -> HostView:
    """Return how the elements of a view of an array of ``shape`` lie in memory. ``layout``: see `Ndarray`."""
    extents = tuple(axis.extent for axis in axes if axis.extent is not None)
    count = math.prod(element_shape)
    rows = [stride * count * dtype.size for stride in strides_in_memory(shape, layout)]
    first = sum(axis.first * row for axis, row in zip(axes, rows))
    strides = [axis.step * row for axis, row in zip(axes, rows) if axis.extent is not None]
    if 0 in extents or not count:
        return dense_view(dtype, extents, element_shape)
    dims = [*extents, *([count] if element_shape else [])]
    strides += [dtype.size] if element_shape else []
    reach = [(d - 1) * s for d, s in zip(dims, strides)]
    span = sum(map(abs, reach)) + dtype.size
    block = Block(first + sum(r for r in reach if r < 0), tuple(dims), tuple(strides), span)
    longer = [(d, s) for d, s in zip(dims, strides) if d != 1]
    if is_row_major(Block(0, tuple(d for d, _ in longer), tuple(s for _, s in longer), span), dtype.size):
        total = math.prod(dims)
        block = Block(block.offset, (total,), (dtype.size,), span)
    return HostView(dtype, extents, element_shape, (block,))
