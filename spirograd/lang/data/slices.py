"""Slices of arrays in Python scope: what of each axis a view has, and where its elements lie.

An axis of an array is taken whole, by a range of indices with a step, or at one index, which the view then has no axis for. Slices of
slices are slices of the array, so a view never refers to another one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradBoundsError, SpirogradTypeError
from spirograd.base.records import dataclass
from spirograd.base.wording import counted
from spirograd.lang.data.views import Block, HostView, dense_view, is_row_major

# What a view has of an axis -> the numbers that a kernel takes for it.
WHOLE, RANGE, STRIDE, AT = "whole", "range", "stride", "at"
_NUMBERS = {WHOLE: (), RANGE: ("first", "extent"), STRIDE: ("first", "extent", "step"), AT: ("first",)}


def numbers_of(kind: str) -> tuple[str, ...]:
    """The names of the numbers that a kernel takes for an axis of a kind."""
    return _NUMBERS[kind]


@dataclass(frozen=True, slots=True)
class Axis:
    """What a view has of an axis of its array: ``extent`` indices from ``first`` on, ``step`` apart. ``extent`` None: one index."""

    first: int
    extent: int | None
    step: int = 1

    def kind(self, whole: int) -> str:
        """How a kernel takes it, of an axis of ``whole`` indices: each kind needs other numbers at a launch."""
        if self.extent is None:
            return AT
        if self.step != 1:
            return STRIDE
        return WHOLE if self.first == 0 and self.extent == whole else RANGE

    def numbers(self, whole: int) -> tuple[int, ...]:
        """What a launch passes for it."""
        return tuple([getattr(self, name) for name in _NUMBERS[self.kind(whole)]])

    @property
    def indices(self) -> range:
        """The indices of the array that it stands for."""
        count = 1 if self.extent is None else self.extent
        return range(self.first, self.first + count * self.step, self.step)

    def taken(self, key: slice) -> Axis:
        """A slice of it, as Python slices a sequence."""
        assert self.extent is not None
        found = range(*key.indices(self.extent))
        return Axis(self.first + found.start * self.step if found else self.first, len(found), self.step * found.step if found else 1)


def axes_of(kinds: Sequence[str], shape: Sequence[int], numbers: Sequence[int]) -> tuple[Axis, ...]:
    """The axes that a launch passes ``numbers`` for, of an array of ``shape``; those of all of it if it is no view."""
    left = iter(numbers)
    axes = []
    for kind, extent in zip(kinds or [WHOLE] * len(shape), shape):
        given = [next(left) for _ in _NUMBERS[kind]]
        axes.append(Axis(0, extent) if kind == WHOLE else Axis(given[0], None) if kind == AT else Axis(*given))
    return tuple(axes)


def disjoint(a: Sequence[Axis], b: Sequence[Axis]) -> bool:
    """Whether two views of one array have no element in common."""
    return not all(_meet(x.indices, y.indices) for x, y in zip(a, b))


def _meet(a: range, b: range) -> bool:
    """Whether two arithmetic progressions have a number in common (Chinese remainder theorem)."""
    if not a or not b:
        return False
    a, b = (r if r.step > 0 else r[::-1] for r in (a, b))
    shared = math.gcd(a.step, b.step)
    if (b.start - a.start) % shared:
        return False
    modulus = b.step // shared
    period = a.step * modulus
    found = a.start + (b.start - a.start) // shared * pow(a.step // shared, -1, modulus) % modulus * a.step
    least = max(a.start, b.start)
    return found + max(0, -(-(least - found) // period)) * period <= min(a[-1], b[-1])


def whole_axes(shape: Sequence[int]) -> tuple[Axis, ...]:
    """All of an array."""
    return tuple(Axis(0, extent) for extent in shape)


def parts_of(key: object) -> tuple[Any, ...]:
    """What stands in brackets, axis by axis."""
    return key if isinstance(key, tuple) else (key,)


def is_slice(key: object) -> bool:
    """Whether ``key`` asks for a view rather than for an element."""
    return any(isinstance(k, slice) or k is Ellipsis for k in parts_of(key))


def bounds_of(key: object) -> tuple[Any, ...]:
    """Begin, end and step of a slice; nothing of an index."""
    return (key.start, key.stop, key.step) if isinstance(key, slice) else ()


def padded(key: object, ndim: int, what: str) -> list[Any]:
    """One index or slice for each axis: an ellipsis, and what is missing at the end, stand for whole axes."""
    parts = list(parts_of(key))
    dots = [k for k, part in enumerate(parts) if part is Ellipsis]
    missing = [slice(None)] * (ndim - len(parts) + len(dots))
    if len(dots) > 1 or len(parts) - len(dots) > ndim:
        raise SpirogradBoundsError(f"{what} has {counted(ndim, 'axis', 'axes')}, but is sliced along {len(parts)}")
    at = dots[0] if dots else len(parts)
    return [*parts[:at], *missing, *parts[at + len(dots) :]]


def sliced(axes: Sequence[Axis], key: object, what: str) -> tuple[Axis, ...]:
    """The slice of a view at ``key``. Raises SpirogradTypeError or SpirogradBoundsError for what is no slice of it."""
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


def view_of_axes(dtype: DType, shape: Sequence[int], element_shape: tuple[int, ...], axes: Sequence[Axis]) -> HostView:
    """Where the elements of a view of a row-major array of ``shape`` lie."""
    extents = tuple(axis.extent for axis in axes if axis.extent is not None)
    count = math.prod(element_shape)
    rows = [math.prod(shape[k + 1 :]) * count * dtype.size for k in range(len(shape))]
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
