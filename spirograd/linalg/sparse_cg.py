"""Conjugate gradients with a sparse matrix, on the device of the session."""

from __future__ import annotations

import numpy as np

from spirograd.algorithms.recorded import refuse, tape_of
from spirograd.base.arrays import Array
from spirograd.base.errors import SpirogradTypeError, SpirogradValueError
from spirograd.base.near_names import NearNames
from spirograd.lang.data.ndarray import Ndarray, ScalarNdarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.scalar import describe
from spirograd.linalg.matrix_free import LinearOperator, conjugate_gradients
from spirograd.linalg.sparse_matrix import SparseMatrix

_HINT = "use `MatrixFreeCG(LinearOperator(A.spmv), b, x)`, which a tape differentiates"


class SparseCG(NearNames):
    """Solves ``A @ x = b`` by conjugate gradients; ``A`` is a symmetric, positive definite SparseMatrix.

    ``b`` and ``x0``, the first guess (zero by default): NumPy arrays, ndarrays or fields of one axis. ``max_iter``: how many iterations are
    done at most; ``atol``: the tolerance of the residual, relative to the norm of ``b``. Raises SpirogradTypeError and SpirogradValueError
    for arguments that do not fit.
    """

    def __init__(self, A: SparseMatrix, b: object, x0: object = None, max_iter: int = 50, atol: float = 1e-6) -> None:
        if not isinstance(A, SparseMatrix) or A.shape[0] != A.shape[1]:
            raise SpirogradTypeError(f"SparseCG takes a square SparseMatrix, not {describe(A)}")
        if tape_of(A) is not None:
            refuse("SparseCG", "takes the matrix as numbers, which have no gradient", _HINT)
        self._matrix, self._operator = A, LinearOperator(A.spmv)
        self._b = self._numbers(b, "b")
        self._start = np.zeros_like(self._b) if x0 is None else self._numbers(x0, "x0")
        self.max_iter, self.atol = max_iter, atol

    def _numbers(self, x: object, name: str) -> Array:
        if isinstance(x, (Ndarray, ScalarField)) and tape_of(x) is not None:
            refuse("SparseCG", f"takes `{name}` as numbers, which have no gradient", _HINT)
        numbers = x.to_numpy() if isinstance(x, (Ndarray, ScalarField)) else x
        if not isinstance(numbers, np.ndarray) or numbers.dtype.kind not in "iuf":
            raise SpirogradTypeError(f"`{name}` is a NumPy array, an ndarray or a field of numbers, not {describe(x)}")
        if numbers.shape != self._matrix.shape[:1]:
            raise SpirogradValueError(f"`{name}` has shape {numbers.shape}; the matrix has {self._matrix.shape[0]} rows")
        return numbers.astype(self._matrix.dtype.np)

    def solve(self) -> tuple[Array, bool]:
        """Return the solution as a NumPy array, and whether the residual became small enough."""
        vectors = []
        for numbers in (self._b, self._start):
            vector = ScalarNdarray(self._matrix.dtype, len(numbers))
            vector.from_numpy(numbers)
            vectors.append(vector)
        tolerance = self.atol * float(np.linalg.norm(self._b.astype(np.float64)))
        if tolerance == 0:
            return np.zeros_like(self._b), True
        b, x = vectors
        converged, _ = conjugate_gradients(self._operator, b, x, tolerance, self.max_iter)
        return x.to_numpy(), converged
