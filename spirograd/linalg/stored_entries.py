"""The entries of a sparse matrix in memory of the session, row by row, with gradients if they have any."""

# mypy: disable-error-code="no-untyped-def, valid-type"
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spirograd.base.arrays import Array
from spirograd.base.dtypes import DType, i32
from spirograd.lang import arithmetic
from spirograd.lang.data.ndarray import ScalarNdarray
from spirograd.lang.frontend.decorators import kernel
from spirograd.linalg.scipy_package import scipy_module
from spirograd.types import template

if TYPE_CHECKING:
    from scipy.sparse import sparray


@kernel
def add_to(source: template(), target: template(), n: int):
    for k in range(n):
        target[k] = target[k] + source[k]


@kernel
def _find_entries(rows: template(), columns: template(), starts: template(), stored: template(), places: template(), n: int):
    for k in range(n):
        low, high = starts[rows[k]], starts[rows[k] + 1] - 1
        while low < high:  # columns of a row are in order and include that of the triplet
            middle = low + (high - low) // 2
            if stored[middle] < columns[k]:
                low = middle + 1
            else:
                high = middle
        places[k] = low


@kernel
def _add_from_places(flow: template(), places: template(), target: template(), n: int):
    for k in range(n):
        target[k] = target[k] + arithmetic.cast(flow[places[k]], target.dtype)


class StoredEntries:
    """The stored entries of ``held``, a sparse array of SciPy: row i has ``columns[k]`` and ``values[k]`` for k from ``starts[i]`` up to
    ``starts[i + 1]``, with columns in order. ``count``: the number of entries."""

    def __init__(self, held: sparray, dtype: DType, needs_grad: bool) -> None:
        by_rows = held.tocsr()
        self.shape, self.count = by_rows.shape, int(by_rows.nnz)
        self._starts, self._columns = by_rows.indptr, by_rows.indices
        self.starts, self.columns = _array(i32, self._starts), _array(i32, self._columns)
        self.values = _array(dtype, by_rows.data, needs_grad)

    def positions(self) -> tuple[Array, Array]:
        """Return the row and the column of each entry."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self._starts)), self._columns

    def gradient(self) -> sparray:
        """Return the gradients of all entries, as a sparse array of SciPy in f64."""
        numbers = self.values.grad.to_numpy()[: self.count].astype(np.float64)
        gradient: sparray = scipy_module("sparse").csr_array((numbers, self._columns.copy(), self._starts.copy()), self.shape)
        return gradient

    def take_gradient(self) -> sparray:
        """Return the `gradient` and set it to zero."""
        gradient = self.gradient()
        self.values.grad.fill(0)
        return gradient

    def add_gradient(self, numbers: Array) -> None:
        """Add a number to the gradient of each entry."""
        add_to(_array(self.values.dtype, numbers), self.values.grad, self.count)

    def places(self, rows: object, columns: object, n: int) -> ScalarNdarray:
        """Return the index of the entry of each of ``n`` triplets."""
        numbers = ScalarNdarray(i32, max(n, 1))
        _find_entries(rows, columns, self.starts, self.columns, numbers, n)
        return numbers

    def send_gradient(self, places: object, target: object, n: int) -> None:
        """Take the gradients of the entries, and add them to those of the triplets at these places."""
        _add_from_places(self.values.grad, places, target, n)
        self.values.grad.fill(0)


def _array(dtype: DType, numbers: Array, needs_grad: bool = False) -> ScalarNdarray:
    array = ScalarNdarray(dtype, max(len(numbers), 1), needs_grad=needs_grad)
    if len(numbers):
        array.from_numpy(np.ascontiguousarray(numbers, dtype.np))
    return array


def sampled(held: sparray, rows: Array, columns: Array) -> Array:
    """Return the entries of a sparse array of SciPy at some positions, which are zero where none is stored."""
    by_rows = held.tocsr()
    by_rows.sum_duplicates()
    width = by_rows.shape[1]
    stored = np.repeat(np.arange(by_rows.shape[0], dtype=np.int64), np.diff(by_rows.indptr)) * width + by_rows.indices
    wanted = np.asarray(rows, np.int64) * width + columns
    if not len(stored):
        return np.zeros(len(wanted), by_rows.dtype)
    at = np.minimum(np.searchsorted(stored, wanted), len(stored) - 1)
    return np.where(stored[at] == wanted, by_rows.data[at], 0)
