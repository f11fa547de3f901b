"""The builder of a sparse matrix: kernels append triplets to its arrays, and SciPy sums triplets of the same position."""

from __future__ import annotations

import numpy as np

from spirograd.algorithms.recorded import tape_of
from spirograd.base.arrays import Array
from spirograd.base.dtypes import DType, f32, f64
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError, SpirogradValueError, render
from spirograd.lang import arithmetic, context
from spirograd.lang.data.triplets import Triplets
from spirograd.linalg.scipy_package import scipy_module
from spirograd.linalg.sparse_matrix import STORAGE, SparseMatrix
from spirograd.linalg.stored_entries import StoredEntries


def float_type(dtype: object, what: str) -> DType:
    """Return ``dtype``. Raises SpirogradTypeError unless it is f32 or f64."""
    t = arithmetic.as_dtype(dtype)
    if t not in (f32, f64):
        raise SpirogradTypeError(f"{what} is of f32 or f64, not of {t}")
    return t


class SparseMatrixBuilder(Triplets):
    """Collects the entries of a matrix of ``num_rows`` rows and ``num_cols`` columns, and builds it.

    Kernels take it as an argument annotated ``types.sparse_matrix_builder`` and add to entries: ``A[i, j] += value``, ``A[i, j] -= value``.
    Each addition is a triplet; there is room for ``max_num_triplets``. ``dtype``: f32 or f64. ``storage_format`` of the matrix: "col_major"
    or "row_major". ``needs_grad``: whether matrices have gradients, which tapes propagate to the memory that the kernels read. Raises
    SpirogradValueError for sizes below 1 and SpirogradTypeError for other types.
    """

    def __init__(
        self,
        num_rows: int | None = None,
        num_cols: int | None = None,
        max_num_triplets: int = 0,
        dtype: object = f32,
        storage_format: str = "col_major",
        needs_grad: bool = False,
    ) -> None:
        for name, size in (("num_rows", num_rows), ("num_cols", num_cols), ("max_num_triplets", max_num_triplets)):
            if not isinstance(size, (int, np.integer)) or not 1 <= size < 2**31:
                raise SpirogradValueError(f"`{name}` of a SparseMatrixBuilder is an integer from 1 to 2^31 - 1, got {size!r}")
        if storage_format not in STORAGE:
            raise SpirogradValueError(f"`storage_format` is one of {', '.join(STORAGE)}, not {storage_format!r}")
        assert num_rows is not None and num_cols is not None
        super().__init__(int(max_num_triplets), float_type(dtype, "a SparseMatrixBuilder"), needs_grad)
        self.num_rows, self.num_cols = int(num_rows), int(num_cols)
        self.max_num_triplets, self.storage_format = int(max_num_triplets), storage_format

    @property
    def num_triplets(self) -> int:
        """The number of triplets that kernels have added. Raises SpirogradRuntimeError if there was no room for all of them."""
        count = int(self.count[0])
        if count > self.max_num_triplets:
            self.count[0] = 0
            problem = f"{count} triplets were added to a SparseMatrixBuilder that has room for {self.max_num_triplets}"
            raise SpirogradRuntimeError(render(problem, None, f"make it with `max_num_triplets={count}` or more"))
        return count

    def _triplets(self) -> tuple[Array, Array, Array]:
        """Return rows, columns and values. Raises SpirogradRuntimeError if there are too many, or one is outside of the matrix."""
        n = self.num_triplets
        rows, columns, values = (array.to_numpy()[:n] for array in (self.rows, self.columns, self.values))
        outside = (rows < 0) | (rows >= self.num_rows) | (columns < 0) | (columns >= self.num_cols)
        if outside.any():
            k = int(np.argmax(outside))
            self.count[0] = 0
            raise SpirogradRuntimeError(
                f"a kernel added to entry [{rows[k]}, {columns[k]}] of a matrix with {self.num_rows} rows and {self.num_cols} columns "
                f"({int(outside.sum())} of {n} triplets are outside of it)"
            )
        return rows, columns, values

    def build(self, dtype: object = None, _format: str = "CSR") -> SparseMatrix:
        """Return the matrix of all triplets since the last call, and clear the builder. Triplets of one entry are summed in f64.

        ``dtype`` of the matrix: by default that of the builder. ``_format`` is accepted and has no meaning here. Raises
        SpirogradRuntimeError if there was no room for all triplets, or some are outside of the matrix, and SpirogradCompilationError in a
        tape if kernels computed values from memory with gradients, and the builder has none.
        """
        t = self.dtype if dtype is None else float_type(dtype, "a SparseMatrix")
        recorder = context.recorder()
        if recorder is not None and recorder.reverses:
            recorder.numbers_of(self.values, "`build`")
        tape = tape_of(self.values)
        if tape is None:
            return self._built(t)[0]
        sources: list[tuple[StoredEntries, object, int]] = []

        def run() -> SparseMatrix:
            matrix, n = self._built(t)
            entries = matrix.entries()
            sources.append((entries, entries.places(self.rows, self.columns, n), n))
            return matrix

        def reverse() -> None:
            entries, places, n = sources[0]
            entries.send_gradient(places, self.values.grad, n)

        matrix: SparseMatrix = tape.with_reverse(run, reverse, (self.values,), saves=True)
        return matrix

    def _built(self, dtype: DType) -> tuple[SparseMatrix, int]:
        """Return the matrix, and the number of triplets that it is made of."""
        rows, columns, values = self._triplets()
        coordinates = scipy_module("sparse").coo_array((values.astype(np.float64), (rows, columns)), (self.num_rows, self.num_cols))
        matrix = SparseMatrix(sm=coordinates, dtype=dtype, storage_format=self.storage_format, needs_grad=self.values.has_grad())
        self.count[0] = 0
        return matrix, len(rows)

    def print_triplets(self) -> None:
        """Print the triplets, in the order in which they were added."""
        rows, columns, values = self._triplets()
        print(f"n={self.num_rows}, m={self.num_cols}, num_triplets={len(rows)} (max={self.max_num_triplets})")
        for i, j, value in zip(rows, columns, values):
            print(f"[{i}, {j}] = {value:g}")
