"""The test whether arrays overlap, which each launch evaluates."""

from __future__ import annotations

import math

from spirograd.base.dtypes import i32, u1, u64
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayRef, Op


def overlap(b: Builder, first: ArrayRef, second: ArrayRef) -> Op:
    """Return whether two arrays have bytes in common (u1)."""
    places = []
    for ref in (first, second):
        address = b.emit(ops.address, attr=(ref.arg, ref.role), type=u64)
        size = b.const(math.prod(ref.element_shape) * ref.dtype.size, u64)
        for axis in range(ref.ndim):
            size = b.emit(ops.mul, size, b.cast(b.emit(ops.shape, attr=(ref.arg, axis), type=i32), u64))
        places.append((address, b.emit(ops.add, address, size)))
    (start, stop), (other, end) = places
    return b.emit(ops.and_, b.emit(ops.lt, start, end, type=u1), b.emit(ops.lt, other, stop, type=u1))
