"""Vectors of all numbers of some fields and ndarrays, on the device, and the operations that optimisers do with them.

A vector is an ndarray with one axis: the elements of each memory in turn, row by row, and the components of each element.
"""

# mypy: disable-error-code="no-untyped-def, valid-type"
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import NamedTuple

from spirograd.base.dtypes import DType
from spirograd.lang import arithmetic, forms
from spirograd.lang.data.ndarray import Ndarray, ndarray
from spirograd.lang.frontend.decorators import kernel
from spirograd.lang.matrix import Matrix, make
from spirograd.lang.scalar import Value
from spirograd.optim.parameters import Memory, origin_of, working_type
from spirograd.types import NDArray, template


class FlatVectors:
    """The vectors for some memories, and for others of the same shapes, such as their gradients. ``size``: the length of a vector."""

    def __init__(self, memories: Sequence[Memory]) -> None:
        self.dtype = working_type(memories)
        layouts: list[_Layout] = []
        self.size = 0
        for memory in memories:
            layouts.append(_Layout(self.size, memory.shape, origin_of(memory), memory.element_shape))
            self.size += math.prod((*memory.shape, *memory.element_shape))
        self._layouts = tuple(layouts)
        self._kernels = _vector_kernels(self.dtype)

    def zeros(self, *rows: int) -> Ndarray:
        """Return a vector of zeros, or a matrix with a vector in each of its rows."""
        return ndarray(self.dtype, (*rows, self.size))

    def read(self, memories: Sequence[Memory], vector: Ndarray) -> None:
        """Set ``vector`` to the contents of ``memories``."""
        _read(tuple(memories), self._layouts, vector)

    def write(self, memories: Sequence[Memory], vector: Ndarray) -> None:
        """Set the contents of ``memories`` to ``vector``."""
        _write(tuple(memories), self._layouts, vector)

    def write_one(self, index: int, memory: Memory, vector: Ndarray) -> None:
        """Set ``memory`` to what ``vector`` has for the memory of number ``index``."""
        _write((memory,), (self._layouts[index],), vector)

    def combine(self, result: Ndarray, a: float, x: Ndarray, b: float, y: Ndarray) -> None:
        """Set ``result``, which may be ``x`` or ``y``, to ``a * x + b * y``."""
        self._kernels.combine(result, a, x, b, y)

    def dot(self, x: Ndarray, y: Ndarray) -> float:
        """Return the inner product of two vectors."""
        return float(self._kernels.dot(x, y))

    def norm1(self, x: Ndarray) -> float:
        """Return the sum of the absolute values."""
        return float(self._kernels.norm1(x))

    def largest(self, x: Ndarray) -> float:
        """Return the largest absolute value. NaN if ``x`` has one."""
        return float(self._kernels.largest(x))


class _Layout(NamedTuple):
    """Where the numbers of a memory are in a vector: from ``first`` on. ``shape``, ``origin``, ``element_shape``: of the memory."""

    first: int
    shape: tuple[int, ...]
    origin: tuple[int, ...]
    element_shape: tuple[int, ...]


@cache
def _vector_kernels(dtype: DType) -> SimpleNamespace:
    """Return the kernels for vectors of ``dtype``."""

    @kernel
    def combine(result: NDArray, a: dtype, x: NDArray, b: dtype, y: NDArray):
        for i in result:
            result[i] = a * x[i] + b * y[i]

    @kernel
    def dot(x: NDArray, y: NDArray) -> dtype:
        total = arithmetic.cast(0, dtype)
        for i in x:
            total += x[i] * y[i]
        return total

    @kernel
    def norm1(x: NDArray) -> dtype:
        total = arithmetic.cast(0, dtype)
        for i in x:
            total += abs(x[i])
        return total

    @kernel
    def largest(x: NDArray) -> dtype:
        size = arithmetic.cast(0, dtype)
        undefined = 0
        for i in x:
            forms.atomic_max(size, abs(x[i]))
            if arithmetic.isnan(x[i]):
                undefined += 1
        return arithmetic.select(undefined > 0, arithmetic.cast(math.nan, dtype), size)

    return SimpleNamespace(combine=combine, dot=dot, norm1=norm1, largest=largest)


@arithmetic.traceable
def _places(layout: _Layout, at: Matrix) -> list[object]:
    """Return the places in a vector of the components of an element."""
    row: object = 0
    for index, origin, extent in zip(at, layout.origin or (0,) * len(layout.shape), layout.shape):
        row = row * extent + (index - origin)
    components = math.prod(layout.element_shape)
    return [layout.first + row * components + k for k in range(components)]


@arithmetic.traceable
def _components(element: Matrix | Value, dtype: DType) -> list[object]:
    """Return the components of an element in ``dtype``."""
    return [arithmetic.cast(x, dtype) for x in (element.entries if isinstance(element, Matrix) else [element])]


@arithmetic.traceable
def _element(components: Sequence[Value], layout: _Layout, dtype: DType) -> object:
    """Return the element with these components."""
    cast = [arithmetic.cast(x, dtype) for x in components]
    return make(cast, layout.element_shape) if layout.element_shape else cast[0]


@kernel
def _read(memories: template(), layouts: template(), vector: NDArray):
    for k in forms.static(range(len(memories))):
        for at in forms.grouped(memories[k]):
            places = _places(layouts[k], at)
            values = _components(memories[k][at], vector.dtype)
            for c in forms.static(range(len(values))):
                vector[places[c]] = values[c]


@kernel
def _write(memories: template(), layouts: template(), vector: NDArray):
    for k in forms.static(range(len(memories))):
        for at in forms.grouped(memories[k]):
            components = [vector[place] for place in _places(layouts[k], at)]
            memories[k][at] = _element(components, layouts[k], memories[k].dtype)
