"""Sparse matrices, which SciPy stores and kernels multiply with vectors on the device."""

# mypy: disable-error-code="no-untyped-def, valid-type"
from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from spirograd.algorithms.recorded import HasGradient, refuse, tape_of
from spirograd.base import dtypes
from spirograd.base.arrays import Array
from spirograd.base.dtypes import DType, f32
from spirograd.base.errors import SpirogradIndexError, SpirogradTypeError, SpirogradValueError
from spirograd.base.near_names import NearNames
from spirograd.lang import arithmetic, context
from spirograd.lang.data.ndarray import Ndarray, ScalarNdarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.decorators import kernel
from spirograd.lang.scalar import describe
from spirograd.linalg.scipy_package import scipy_module
from spirograd.linalg.stored_entries import StoredEntries, sampled
from spirograd.types import template

if TYPE_CHECKING:
    from scipy.sparse import sparray

# SciPy's classes by the storage formats of the Taichi family.
STORAGE = {"col_major": "csc_array", "row_major": "csr_array"}


@kernel
def _multiply(starts: template(), columns: template(), values: template(), x: template(), out: template(), rows: int):
    for i in range(rows):
        total = arithmetic.cast(0, values.dtype)
        for k in range(starts[i], starts[i + 1]):
            total += values[k] * x[columns[k]]
        out[i] = total


def is_vector(x: object) -> TypeGuard[ScalarField | Ndarray]:
    """Return whether ``x`` is a one-dimensional field or ndarray of scalars."""
    return isinstance(x, (ScalarField, Ndarray)) and len(x.shape) == 1 and not x.element_shape


class SparseMatrix(NearNames):
    """A sparse matrix of ``n`` rows and ``m`` columns, of f32 or f64, made by `SparseMatrixBuilder.build`.

    ``sm``: a SparseMatrix, or a sparse array or matrix of SciPy, that it is a copy of; without it all entries are zero. ``storage_format``:
    "col_major" or "row_major". ``A + B``, ``A - B``, ``A * B`` (entry by entry), ``A @ B``, ``-A`` and ``s * A`` give matrices, ``A[i, j]``
    reads and writes entries. ``needs_grad``: whether the stored entries have gradients, which tapes compute; matrices that are made of
    such matrices have them, too. Raises SpirogradValueError for shapes that do not fit.
    """

    def __init__(
        self,
        n: int | None = None,
        m: int | None = None,
        sm: object = None,
        dtype: object = f32,
        storage_format: str = "col_major",
        needs_grad: bool = False,
    ) -> None:
        if storage_format not in STORAGE:
            raise SpirogradValueError(f"`storage_format` is one of {', '.join(STORAGE)}, not {storage_format!r}")
        sparse = scipy_module("sparse")
        if isinstance(sm, SparseMatrix):
            sm._refuse_on_tape("SparseMatrix(sm=A)", "copies the numbers of a matrix", "write `1.0 * A`")
            sm = sm.to_scipy()
        if sm is None and (n is None or n < 1 or (m is not None and m < 1)):
            raise SpirogradValueError(f"a SparseMatrix has at least one row and one column, got n={n!r}, m={m!r}")
        source = (n, n if m is None else m) if sm is None else sm
        self._held = getattr(sparse, STORAGE[storage_format])(source, dtype=arithmetic.as_dtype(dtype).np)
        self._held.sum_duplicates()
        self.storage_format = storage_format
        self._needs_grad = needs_grad
        self._on_device: tuple[object, StoredEntries] | None = None
        if needs_grad:
            self.entries()  # tapes set all gradients to zero when they begin, so these must exist by then

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

    def has_grad(self) -> bool:
        """Return whether the entries have gradients."""
        return self._needs_grad

    @property
    def grad(self) -> SparseMatrix | None:
        """The gradients of the stored entries, as a copy; None of a matrix without."""
        return self._like(self.entries().gradient().astype(self._held.dtype)) if self._needs_grad else None

    def to_scipy(self) -> sparray:
        """Return a copy as a sparse array of SciPy."""
        copy: sparray = self._held.copy()
        return copy

    def to_numpy(self) -> Array:
        """Return all entries as a NumPy array of two axes."""
        numbers: Array = self._held.toarray()
        return numbers

    def __repr__(self) -> str:
        return f"<sparse matrix of {self.shape[0]}x{self.shape[1]} {self.dtype}, {self.nnz} entries>"

    def __str__(self) -> str:
        numbers = [[f"{value:g}" for value in row] for row in self.to_numpy()]
        width = max(len(text) for row in numbers for text in row)
        return "\n".join(f"[{', '.join(text.rjust(width) for text in row)}]" for row in numbers)

    # --- arithmetic ------------------------------------------------------------------------------------------------------

    def _like(self, held: sparray, needs_grad: bool = False) -> SparseMatrix:
        dtype = dtypes.from_numpy(held.dtype)
        return SparseMatrix(sm=held, dtype=dtype, storage_format=self.storage_format, needs_grad=needs_grad)

    def _computed(
        self, held: sparray, stored: Callable[..., sparray], *sources: tuple[SparseMatrix, Callable[[sparray], sparray]]
    ) -> SparseMatrix:
        """Return the matrix ``held``, computed from ``sources``, each with the function from the gradient of the result to its own.
        ``stored`` computes the pattern of the result from matrices of ones, because SciPy drops some entries that happen to be zero."""
        if not any(source.has_grad() for source, _ in sources):
            return self._like(held)
        places = stored(*[_ones(source._held) for source, _ in sources]).tocoo()
        rows, columns = places.coords
        numbers = sampled(held, rows, columns).astype(held.dtype)
        result = self._like(scipy_module("sparse").coo_array((numbers, (rows, columns)), held.shape), needs_grad=True)
        own, parts = result.entries(), [(source.entries(), adjoint) for source, adjoint in sources if source.has_grad()]

        def reverse() -> None:
            flow = own.take_gradient()
            for entries, adjoint in parts:
                entries.add_gradient(sampled(adjoint(flow), *entries.positions()))

        tape = tape_of(*[source for source, _ in sources])
        if tape is not None:
            tape.with_reverse(lambda: None, reverse, [entries.values for entries, _ in parts])
        return result

    def _same_shape(self, other: SparseMatrix, symbol: str) -> sparray:
        if other.shape != self.shape:
            raise SpirogradValueError(f"`{symbol}` needs matrices of one shape, got {self.shape} and {other.shape}")
        return other._held

    def __add__(self, other: object) -> SparseMatrix:
        if not isinstance(other, SparseMatrix):
            return NotImplemented
        total = self._held + self._same_shape(other, "+")
        return self._computed(total, operator.add, (self, _unchanged), (other, _unchanged))

    def __sub__(self, other: object) -> SparseMatrix:
        if not isinstance(other, SparseMatrix):
            return NotImplemented
        difference = self._held - self._same_shape(other, "-")
        return self._computed(difference, operator.add, (self, _unchanged), (other, operator.neg))

    def __iadd__(self, other: object) -> SparseMatrix:
        return self._replaced(self + other)

    def __isub__(self, other: object) -> SparseMatrix:
        return self._replaced(self - other)

    def __neg__(self) -> SparseMatrix:
        return self._computed(-self._held, _unchanged, (self, operator.neg))

    def __mul__(self, other: object) -> SparseMatrix:
        """Multiply entry by entry with a matrix, or every entry by a number."""
        if isinstance(other, SparseMatrix):
            a, b = self._held, self._same_shape(other, "*")
            sources = (self, lambda flow: flow.multiply(b)), (other, lambda flow: flow.multiply(a))
            return self._computed(a.multiply(b), operator.add, *sources)
        return self._scaled(float(other), operator.mul) if _is_number(other) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> SparseMatrix:
        return self._scaled(float(other), operator.truediv) if _is_number(other) else NotImplemented

    def _scaled(self, number: float, how: Callable[[sparray, float], sparray]) -> SparseMatrix:
        scaled = how(self._held, number).astype(self._held.dtype)
        return self._computed(scaled, _unchanged, (self, lambda flow: how(flow, number)))

    def transpose(self) -> SparseMatrix:
        """Return the transposed matrix."""
        return self._computed(self._held.T, operator.attrgetter("T"), (self, operator.attrgetter("T")))

    def _replaced(self, by: SparseMatrix) -> SparseMatrix:
        self._held, self._on_device, self._needs_grad = by._held, by._on_device, by._needs_grad
        return self

    # --- products --------------------------------------------------------------------------------------------------------

    def __matmul__(self, other: object) -> SparseMatrix | ScalarNdarray | Array:
        """Return the product: a SparseMatrix for a SparseMatrix; an ndarray for an ndarray, computed on the device; a NumPy array for a
        NumPy array (of one axis or two) and for a field."""
        if isinstance(other, SparseMatrix):
            if self.shape[1] != other.shape[0]:
                raise SpirogradValueError(
                    f"`@` needs as many columns on the left as rows on the right, got shapes {self.shape} and {other.shape}"
                )
            a, b = self._held, other._held
            return self._computed(a @ b, operator.matmul, (self, lambda flow: flow @ b.T), (other, lambda flow: a.T @ flow))
        if isinstance(other, Ndarray):
            out = ScalarNdarray(other.dtype, self.shape[0], needs_grad=other.grad is not None or self.has_grad())
            self.spmv(other, out)
            return out
        if not isinstance(other, (ScalarField, np.ndarray)):
            return NotImplemented
        hint = "`A.spmv(x, out)` writes the product to a field or an ndarray"
        memory = other if isinstance(other, ScalarField) else None
        self._refuse_on_tape("A @ x", "is a NumPy array here, which has no gradient", hint, memory)
        if isinstance(other, ScalarField):
            self._check_vector(other, "x", self.shape[1])
            other = other.to_numpy()
        if other.ndim not in (1, 2) or other.shape[0] != self.shape[1]:
            rows = self.shape[1]
            raise SpirogradValueError(f"`@` of a matrix of shape {self.shape} needs shape ({rows},) or ({rows}, n), got {other.shape}")
        product: Array = self._held @ other
        return product

    def spmv(self, x: object, out: object) -> None:
        """Set ``out`` to ``A @ x`` on the device: one-dimensional fields or ndarrays of the type of the matrix, ``x`` with an
        element for each column and ``out`` for each row. A tape records it.

        Raises SpirogradTypeError and SpirogradValueError for other vectors.
        """
        rows, columns = self.shape
        self._check_vector(x, "x", columns)
        self._check_vector(out, "out", rows)
        if x is out:
            raise SpirogradValueError("`spmv` cannot write the product to the vector that it reads: give it another `out`")
        entries = self.entries()
        _multiply(entries.starts, entries.columns, entries.values, x, out, rows)

    def _check_vector(self, x: object, name: str, length: int) -> None:
        if not is_vector(x) or x.dtype is not self.dtype:
            raise SpirogradTypeError(f"`{name}` is a one-dimensional field or ndarray of {self.dtype}, not {describe(x)}")
        if x.shape[0] != length:
            raise SpirogradValueError(f"`{name}` has {x.shape[0]} elements; the matrix of shape {self.shape} needs {length}")

    def entries(self) -> StoredEntries:
        """Return the stored entries in memory of the session."""
        session = context.session()
        if self._on_device is None or self._on_device[0] is not session:
            self._on_device = session, StoredEntries(self._held, self.dtype, self._needs_grad)
        return self._on_device[1]

    def _refuse_on_tape(self, name: str, what: str, hint: str, *others: HasGradient | None) -> None:
        """Raise SpirogradUnsupportedError if a tape records and one of the matrices has gradients, which would be lost."""
        if tape_of(self, *others) is not None:
            refuse(name, what, hint)

    # --- entries ---------------------------------------------------------------------------------------------------------

    def _position(self, indices: object) -> tuple[int, int]:
        if not isinstance(indices, tuple) or len(indices) != 2 or not all(isinstance(k, (int, np.integer)) for k in indices):
            raise SpirogradIndexError(f"an entry of a SparseMatrix has two integers as its index, got {indices!r}")
        for k, extent in zip(indices, self.shape):
            if not 0 <= k < extent:
                raise SpirogradIndexError(
                    f"index {list(map(int, indices))} is outside of a matrix with {self.shape[0]} rows and {self.shape[1]} columns"
                )
        return int(indices[0]), int(indices[1])

    def __getitem__(self, indices: object) -> float:
        return float(self._held[self._position(indices)])

    def __setitem__(self, indices: object, value: float) -> None:
        position = self._position(indices)
        self._refuse_on_tape("A[i, j] = value", "replaces an entry that has a gradient", "add a matrix with that entry")
        editable = self._held.tolil()
        editable[position] = value
        self._held, self._on_device = getattr(scipy_module("sparse"), STORAGE[self.storage_format])(editable), None
        if self._needs_grad:
            self.entries()

    def build_from_ndarray(self, ndarray: object) -> None:
        """Add triplets of row, column and value, which an ndarray of floats holds one after the other, to the matrix.

        Raises SpirogradTypeError if it is not an ndarray of floats, and SpirogradValueError if its length is not a multiple of 3 or an
        entry is outside of the matrix.
        """
        if not isinstance(ndarray, Ndarray) or not ndarray.dtype.is_float:
            raise SpirogradTypeError(f"triplets are an ndarray of floats, not {describe(ndarray)}")
        hint = "fill a SparseMatrixBuilder by a kernel"
        self._refuse_on_tape("build_from_ndarray", "takes numbers, which have no gradient", hint, ndarray)
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


def _is_number(x: object) -> TypeGuard[float]:
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool)


def _ones(held: sparray) -> sparray:
    """Return a matrix with a one for each stored entry."""
    ones = held.copy().astype(np.float64)
    ones.data[:] = 1
    return ones


def _unchanged(held: object) -> object:
    return held
