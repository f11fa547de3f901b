"""Sparse matrices: SciPy stores them, and kernels multiply them with vectors on the device."""

# mypy: disable-error-code="no-untyped-def, valid-type"
from __future__ import annotations

from typing import Any

import numpy as np

from spirograd.base import dtypes
from spirograd.base.dtypes import DType, f32, i32
from spirograd.base.errors import SpirogradIndexError, SpirogradTypeError, SpirogradValueError
from spirograd.base.near_names import NearNames
from spirograd.lang import arithmetic, context
from spirograd.lang.data.ndarray import Ndarray, ScalarNdarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.decorators import kernel
from spirograd.lang.scalar import describe
from spirograd.linalg.scipy_package import scipy_module
from spirograd.types import template

# The family's names of arrangements -> SciPy's classes.
STORAGE = {"col_major": "csc_array", "row_major": "csr_array"}


@kernel
def _multiply(starts: template(), columns: template(), values: template(), x: template(), out: template(), rows: int):
    for i in range(rows):
        total = arithmetic.cast(0, values.dtype)
        for k in range(starts[i], starts[i + 1]):
            total += values[k] * x[columns[k]]
        out[i] = total


def is_vector(x: Any) -> bool:
    """Whether ``x`` is a one-dimensional field or ndarray of scalars."""
    return isinstance(x, (ScalarField, Ndarray)) and len(x.shape) == 1 and not x.element_shape


class SparseMatrix(NearNames):
    """A sparse matrix of ``n`` rows and ``m`` columns, of f32 or f64, made by `SparseMatrixBuilder.build`.

    ``sm``: a SparseMatrix, or a sparse array or matrix of SciPy, that it is a copy of; without it all entries are zero. ``storage_format``:
    "col_major" or "row_major". ``A + B``, ``A - B``, ``A * B`` (entry by entry), ``A @ B``, ``-A`` and ``s * A`` give matrices, ``A[i, j]``
    reads and writes entries. Raises SpirogradValueError for shapes that do not fit.
    """

    def __init__(
        self, n: int | None = None, m: int | None = None, sm: Any = None, dtype: Any = f32, storage_format: str = "col_major"
    ) -> None:
        if storage_format not in STORAGE:
            raise SpirogradValueError(f"`storage_format` is one of {', '.join(STORAGE)}, not {storage_format!r}")
        sparse = scipy_module("sparse")
        if isinstance(sm, SparseMatrix):
            sm = sm.to_scipy()
        if sm is None and (n is None or n < 1 or (m is not None and m < 1)):
            raise SpirogradValueError(f"a SparseMatrix has at least one row and one column, got n={n!r}, m={m!r}")
        source = (n, n if m is None else m) if sm is None else sm
        self._held = getattr(sparse, STORAGE[storage_format])(source, dtype=arithmetic.as_dtype(dtype).np)
        self._held.sum_duplicates()
        self.storage_format = storage_format
        self._on_device: tuple[Any, ...] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self._held.shape
        return int(rows), int(columns)

    @property
    def dtype(self) -> DType:
        """The type of the entries."""
        return dtypes.from_numpy(self._held.dtype)

    @property
    def nnz(self) -> int:
        """How many entries are stored."""
        return int(self._held.nnz)

    def to_scipy(self) -> Any:
        """A copy as a sparse array of SciPy."""
        return self._held.copy()

    def to_numpy(self) -> Any:
        """All entries as a NumPy array of two axes."""
        return self._held.toarray()

    def __repr__(self) -> str:
        return f"<sparse matrix of {self.shape[0]}x{self.shape[1]} {self.dtype}, {self.nnz} entries>"

    def __str__(self) -> str:
        numbers = [[f"{value:g}" for value in row] for row in self.to_numpy()]
        width = max(len(text) for row in numbers for text in row)
        return "\n".join(f"[{', '.join(text.rjust(width) for text in row)}]" for row in numbers)

    # --- arithmetic ------------------------------------------------------------------------------------------------------

    def _like(self, held: Any) -> SparseMatrix:
        return SparseMatrix(sm=held, dtype=dtypes.from_numpy(held.dtype), storage_format=self.storage_format)

    def _same_shape(self, other: SparseMatrix, symbol: str) -> Any:
        if other.shape != self.shape:
            raise SpirogradValueError(f"`{symbol}` needs matrices of one shape, got {self.shape} and {other.shape}")
        return other._held

    def __add__(self, other: Any) -> SparseMatrix:
        return self._like(self._held + self._same_shape(other, "+")) if isinstance(other, SparseMatrix) else NotImplemented

    def __sub__(self, other: Any) -> SparseMatrix:
        return self._like(self._held - self._same_shape(other, "-")) if isinstance(other, SparseMatrix) else NotImplemented

    def __iadd__(self, other: Any) -> SparseMatrix:
        return self._replaced(self + other)

    def __isub__(self, other: Any) -> SparseMatrix:
        return self._replaced(self - other)

    def __neg__(self) -> SparseMatrix:
        return self._like(-self._held)

    def __mul__(self, other: Any) -> SparseMatrix:
        """Entry by entry with a matrix, or every entry times a number."""
        if isinstance(other, SparseMatrix):
            return self._like(self._held.multiply(self._same_shape(other, "*")))
        return self._like(self._held * float(other)) if _is_number(other) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> SparseMatrix:
        return self._like(self._held / float(other)) if _is_number(other) else NotImplemented

    def transpose(self) -> SparseMatrix:
        """The transposed matrix."""
        return self._like(self._held.T)

    def _replaced(self, by: SparseMatrix) -> SparseMatrix:
        self._held, self._on_device = by._held, None
        return self

    # --- products --------------------------------------------------------------------------------------------------------

    def __matmul__(self, other: Any) -> Any:
        """A SparseMatrix for one; an ndarray for an ndarray, computed on the device; a NumPy array for a NumPy array (of one axis or two)
        and for a field."""
        if isinstance(other, SparseMatrix):
            if self.shape[1] != other.shape[0]:
                raise SpirogradValueError(
                    f"`@` needs as many columns on the left as rows on the right, got shapes {self.shape} and {other.shape}"
                )
            return self._like(self._held @ other._held)
        if isinstance(other, Ndarray):
            out = ScalarNdarray(other.dtype, self.shape[0], needs_grad=other.grad is not None)
            self.spmv(other, out)
            return out
        if isinstance(other, ScalarField):
            self._check_vector(other, "x", self.shape[1])
            other = other.to_numpy()
        if not isinstance(other, np.ndarray):
            return NotImplemented
        if other.ndim not in (1, 2) or other.shape[0] != self.shape[1]:
            rows = self.shape[1]
            raise SpirogradValueError(f"`@` of a matrix of shape {self.shape} needs shape ({rows},) or ({rows}, n), got {other.shape}")
        return self._held @ other

    def spmv(self, x: Any, out: Any) -> None:
        """Set ``out`` to ``A @ x`` on the device: one-dimensional fields or ndarrays of the type of the matrix, ``x`` with an
        element for each column and ``out`` for each row. A tape records it.

        Raises SpirogradTypeError and SpirogradValueError for others.
        """
        rows, columns = self.shape
        self._check_vector(x, "x", columns)
        self._check_vector(out, "out", rows)
        if x is out:
            raise SpirogradValueError("`spmv` cannot write the product to the vector that it reads: give it another `out`")
        _multiply(*self._arrays(), x, out, rows)

    def _check_vector(self, x: Any, name: str, length: int) -> None:
        if not is_vector(x) or x.dtype is not self.dtype:
            raise SpirogradTypeError(f"`{name}` is a one-dimensional field or ndarray of {self.dtype}, not {describe(x)}")
        if x.shape[0] != length:
            raise SpirogradValueError(f"`{name}` has {x.shape[0]} elements; the matrix of shape {self.shape} needs {length}")

    def _arrays(self) -> tuple[Any, Any, Any]:
        """The starts of the rows, the columns and the values, in memory of the session."""
        session = context.session()
        if self._on_device is None or self._on_device[0] is not session:
            by_rows = self._held.tocsr()
            parts = ((i32, by_rows.indptr), (i32, by_rows.indices), (self.dtype, by_rows.data))
            made = []
            for dtype, numbers in parts:
                array = ScalarNdarray(dtype, max(len(numbers), 1))
                if len(numbers):
                    array.from_numpy(np.ascontiguousarray(numbers, dtype.np))
                made.append(array)
            self._on_device = session, tuple(made)
        arrays: tuple[Any, Any, Any] = self._on_device[1]
        return arrays

    # --- entries ---------------------------------------------------------------------------------------------------------

    def _position(self, indices: Any) -> tuple[int, int]:
        if not isinstance(indices, tuple) or len(indices) != 2 or not all(isinstance(k, (int, np.integer)) for k in indices):
            raise SpirogradIndexError(f"an entry of a SparseMatrix has two integers as its index, got {indices!r}")
        for k, extent in zip(indices, self.shape):
            if not 0 <= k < extent:
                raise SpirogradIndexError(
                    f"index {list(map(int, indices))} is outside of a matrix with {self.shape[0]} rows and {self.shape[1]} columns"
                )
        return int(indices[0]), int(indices[1])

    def __getitem__(self, indices: Any) -> float:
        return float(self._held[self._position(indices)])

    def __setitem__(self, indices: Any, value: float) -> None:
        position = self._position(indices)
        editable = self._held.tolil()
        editable[position] = value
        self._held, self._on_device = getattr(scipy_module("sparse"), STORAGE[self.storage_format])(editable), None

    def build_from_ndarray(self, ndarray: Any) -> None:
        """Add to the matrix triplets of row, column and value, which an ndarray of floats holds one after the other.

        Raises SpirogradTypeError for what is no ndarray of floats, and SpirogradValueError for a number of elements that is no multiple of
        3 and for entries outside of the matrix.
        """
        if not isinstance(ndarray, Ndarray) or not ndarray.dtype.is_float:
            raise SpirogradTypeError(f"triplets are an ndarray of floats, not {describe(ndarray)}")
        numbers = ndarray.to_numpy().reshape(-1)
        if len(numbers) % 3:
            raise SpirogradValueError(f"triplets of row, column and value are a multiple of 3 numbers, not {len(numbers)}")
        rows, columns, values = numbers.reshape(-1, 3).T
        inside = (rows >= 0) & (rows < self.shape[0]) & (columns >= 0) & (columns < self.shape[1])
        if not inside.all():
            k = int(np.argmin(inside))
            raise SpirogradValueError(
                f"entry [{rows[k]:g}, {columns[k]:g}] is outside of a matrix with {self.shape[0]} rows and {self.shape[1]} columns"
            )
        positions = rows.astype(np.int64), columns.astype(np.int64)
        self._replaced(self + self._like(scipy_module("sparse").coo_array((values.astype(self._held.dtype), positions), self.shape)))

    def mmwrite(self, filename: str) -> None:
        """Write the matrix to the Matrix Market file ``filename``."""
        scipy_module("io").mmwrite(filename, self._held, symmetry="general")


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool)
