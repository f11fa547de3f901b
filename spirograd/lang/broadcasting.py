"""The shapes of operations entry by entry: equal ones in kernels; in Python, shapes broadcast as those of NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from spirograd.lang.context import current_trace
from spirograd.lang.indexing import Shape, shape_name
from spirograd.lang.scalar import type_error

T = TypeVar("T")


def joint_shape(shapes: Sequence[Shape]) -> Shape:
    """Return the shape of an operation on vectors and matrices of these shapes; raise SpirogradTypeError if there is none."""
    first = shapes[0]
    other = next((shape for shape in shapes if shape != first), None)
    if other is None:
        return first
    problem = f"shapes differ: a {shape_name(first)} with a {shape_name(other)}"
    if current_trace() is not None:
        hint = "operators work entry by entry; the matrix product is `@`, and `.transpose()` swaps rows and columns"
        raise type_error(problem, hint)
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise type_error(problem, "a vector is combined with each row of a matrix; the matrix product is `@`") from None


def spread(entries: list[T], shape: Shape, to: Shape) -> list[T]:
    """Return the row-major entries of a vector or matrix of ``shape``, repeated to the shape ``to``."""
    if shape == to:
        return entries
    positions = np.broadcast_to(np.arange(len(entries)).reshape(shape), to)
    return [entries[p] for p in positions.flat]
