"""Direct solvers of sparse linear systems, by SciPy's SuperLU, in f64."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING

import numpy as np

from spirograd.algorithms.recorded import need_gradient, tape_of
from spirograd.base.arrays import Array
from spirograd.base.dtypes import DType, f32
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError, SpirogradValueError, render
from spirograd.base.near_names import NearNames
from spirograd.base.tracebacks import user_location
from spirograd.lang.data.ndarray import Ndarray, ScalarNdarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.scalar import describe
from spirograd.linalg.scipy_package import scipy_module
from spirograd.linalg.sparse_builder import float_type
from spirograd.linalg.sparse_matrix import SparseMatrix, is_vector
from spirograd.linalg.stored_entries import StoredEntries, add_to

if TYPE_CHECKING:
    from scipy.sparse import csc_array
    from scipy.sparse.linalg import SuperLU

_TYPES = ("LLT", "LDLT", "LU")
# Orderings of SuperLU, for symmetric matrices and for others, by the names of the Taichi family.
_ORDERINGS = {"AMD": ("MMD_AT_PLUS_A", "COLAMD"), "COLAMD": ("MMD_AT_PLUS_A", "COLAMD")}

# Columns that SuperLU updates together. Its default (20) takes 1.3 to 1.6 times as long on meshes of 300 to 10,000 unknowns, and 5 % less
# on a grid of 18^3.
_PANEL = 2


class SparseSolver(NearNames):
    """Solves linear systems with one sparse matrix of ``dtype`` by factorising it.

    ``solver_type``: "LLT" for symmetric, positive definite matrices, "LDLT" for symmetric ones, "LU" for all others. If the upper triangle
    of a matrix is empty, "LLT" and "LDLT" use the lower one for both. ``ordering``: "AMD" or "COLAMD". Raises SpirogradValueError for other
    names. Factors are computed in f64.
    """

    reads_lower_triangle = False  # whether "LLT" and "LDLT" take the lower triangle of a matrix that is not symmetric, with a warning

    def __init__(self, dtype: object = f32, solver_type: str = "LLT", ordering: str = "AMD") -> None:
        self.dtype = float_type(dtype, "a SparseSolver")
        for name, value, known in (("solver_type", solver_type, _TYPES), ("ordering", ordering, tuple(_ORDERINGS))):
            if value not in known:
                raise SpirogradValueError(f"`{name}` is one of {', '.join(known)}, not {value!r}")
        self.solver_type, self.ordering = solver_type, ordering
        self._factors: SuperLU | None = None
        self._entries: StoredEntries | None = None  # for a matrix with gradients
        self._analyzed: tuple[int, int] | None = None
        self._failure = ""
        self._warned = False

    @property
    def _is_symmetric(self) -> bool:
        return self.solver_type != "LU"

    def analyze_pattern(self, sparse_matrix: SparseMatrix) -> None:
        """Check the shape of ``sparse_matrix``: the order of elimination is found with the factors."""
        self._check(sparse_matrix)
        self._analyzed = sparse_matrix.shape

    def factorize(self, sparse_matrix: SparseMatrix) -> None:
        """Compute the factors of ``sparse_matrix``. If that fails, `info` is False, and `solve` raises an error with the reason.

        Raises SpirogradTypeError and SpirogradValueError for matrices of another type, for those that are not square and, with "LLT" and
        "LDLT", not symmetric.
        """
        self._check(sparse_matrix)
        if self._analyzed not in (None, sparse_matrix.shape):
            raise SpirogradValueError(f"a pattern of shape {self._analyzed} was analysed, the matrix has shape {sparse_matrix.shape}")
        held = sparse_matrix.to_scipy().astype(np.float64, copy=False).tocsc()
        if self._is_symmetric:
            held, asymmetry = _mirrored(held, self.dtype)
            if asymmetry:
                self._report_asymmetry(asymmetry)
        self._factors, self._failure = None, ""
        self._entries = sparse_matrix.entries() if sparse_matrix.has_grad() else None
        if not np.isfinite(held.data).all():
            self._failure = "an entry of the matrix is infinite or NaN"
            return
        options = {"diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}} if self.solver_type == "LLT" else {}
        ordering = _ORDERINGS[self.ordering][0 if self._is_symmetric else 1]
        with contextlib.ExitStack() as stack:
            linalg = scipy_module("sparse.linalg")
            stack.enter_context(np.errstate(all="ignore"))
            try:
                factors = linalg.splu(held, permc_spec=ordering, panel_size=_PANEL, **options)
            except RuntimeError:  # what SciPy raises for singular matrices
                self._failure = "the matrix is singular"
                return
        if self.solver_type == "LLT" and not ((factors.U.diagonal() > 0).all() and (factors.perm_r == factors.perm_c).all()):
            self._failure = 'the matrix is not positive definite: use solver_type="LDLT" or "LU"'
            return
        self._factors = factors

    def _report_asymmetry(self, asymmetry: float) -> None:
        """Raise SpirogradValueError for a matrix that is not symmetric, or warn of the first one if the lower triangle is to be used."""
        problem = f"{self.solver_type} takes symmetric matrices: entries across the diagonal differ by up to {asymmetry:g}"
        if not self.reads_lower_triangle:
            raise SpirogradValueError(render(problem, None, 'use solver_type="LU"'))
        if not self._warned:
            self._warned = True
            at, text = user_location(), f'{problem}; only the lower triangle is used. solver_type="LU" uses both'
            warnings.warn_explicit(text, RuntimeWarning, at.file if at else "", at.line if at else 0)

    def compute(self, sparse_matrix: SparseMatrix) -> None:
        """`analyze_pattern`, then `factorize`."""
        self.analyze_pattern(sparse_matrix)
        self.factorize(sparse_matrix)

    def info(self) -> bool:
        """Return whether there are factors of a matrix."""
        return self._factors is not None

    def solve(self, b: ScalarField | Ndarray | Array, out: ScalarField | Ndarray | None = None) -> ScalarField | Ndarray | Array:
        """Return the solution x of ``A @ x = b``: an ndarray for an ndarray, a NumPy array for a field and for a NumPy array of one axis,
        or of two, whose columns are right-hand sides; or write it to ``out``, a field or an ndarray.

        A tape differentiates it with respect to ``b`` and to a matrix with gradients, if the result is an ndarray or ``out``, by solving
        with the transposed matrix; "LLT" and "LDLT" read the lower triangle of a matrix, which gets the gradient. Raises
        SpirogradRuntimeError without factors, SpirogradTypeError and SpirogradValueError for arguments that do not fit.
        """
        factors = self._factors
        if factors is None:
            problem = f"the factorisation failed: {self._failure}" if self._failure else "there are no factors to solve with"
            hint = "" if self._failure else "call `compute(A)`, or `analyze_pattern(A)` and `factorize(A)`, before `solve`"
            raise SpirogradRuntimeError(render(problem, None, hint))
        if out is not None and (not is_vector(out) or out.dtype is not self.dtype or out.shape != factors.shape[:1]):
            n = factors.shape[0]
            raise SpirogradTypeError(f"`out` is a field or ndarray of {n} elements of {self.dtype}, not {describe(out)}")
        memory = b if isinstance(b, (ScalarField, Ndarray)) else None
        tape = tape_of(memory, self._entries.values if self._entries is not None else None)
        if tape is None:
            return self._stored(self._solved(factors, b), b, out)
        if out is None and not isinstance(b, Ndarray):
            hint = "pass a field or ndarray for the solution as `out`"
            what = "a NumPy array" if memory is None else "a field"
            raise SpirogradRuntimeError(render(f"`solve` of {what} gives numbers, which have no gradient", None, hint))
        self._right_side(factors, b)
        out = ScalarNdarray(self.dtype, b.shape[0], needs_grad=True) if out is None else out
        need_gradient(out, "out", "solve")
        solution = _Solution(factors, self._entries, self._is_symmetric, memory, out)

        def run() -> ScalarField | Ndarray | Array:
            solution.x = self._solved(factors, b)
            return self._stored(solution.x, b, out)

        return tape.with_reverse(run, solution.add_adjoint, () if memory is None else (memory,))

    def _solved(self, factors: SuperLU, b: object) -> Array:
        solution: Array = factors.solve(self._right_side(factors, b).astype(np.float64))
        return solution

    def _stored(self, x: Array, b: object, out: ScalarField | Ndarray | None) -> ScalarField | Ndarray | Array:
        x = x.astype(self.dtype.np)
        if out is None and not isinstance(b, Ndarray):
            return x
        out = ScalarNdarray(self.dtype, len(x)) if out is None else out
        out.from_numpy(x)
        return out

    def _right_side(self, factors: SuperLU, b: object) -> Array:
        n = factors.shape[0]
        if isinstance(b, (ScalarField, Ndarray)):
            if not is_vector(b) or b.dtype is not self.dtype:
                raise SpirogradTypeError(f"a right-hand side is a one-dimensional field or ndarray of {self.dtype}, not {describe(b)}")
            b = b.to_numpy()
        if not isinstance(b, np.ndarray) or b.dtype.kind not in "iuf":
            raise SpirogradTypeError(f"a right-hand side is a field, an ndarray or a NumPy array of numbers, not {describe(b)}")
        if b.ndim not in (1, 2) or b.shape[0] != n:
            raise SpirogradValueError(f"the matrix has {n} rows, the right-hand side shape {b.shape}")
        return b

    def _check(self, matrix: object) -> None:
        if not isinstance(matrix, SparseMatrix):
            raise SpirogradTypeError(f"a SparseSolver takes a SparseMatrix, not {describe(matrix)}")
        if matrix.dtype is not self.dtype:
            hint = f"make the solver with `dtype=sg.{matrix.dtype}`"
            raise SpirogradTypeError(f"a SparseSolver of {self.dtype} got a matrix of {matrix.dtype}", None, hint)
        if matrix.shape[0] != matrix.shape[1]:
            raise SpirogradValueError(f"a SparseSolver takes square matrices, not one of shape {matrix.shape}")


class _Solution:
    """The record of one solve for the reverse pass: the factors and the entries of the matrix, the right-hand side if it is memory, the
    memory of the solution, and its numbers."""

    def __init__(
        self, factors: SuperLU, entries: StoredEntries | None, symmetric: bool, b: ScalarField | Ndarray | None, out: ScalarField | Ndarray
    ) -> None:
        self._factors, self._entries, self._symmetric = factors, entries, symmetric
        self._b, self._out = b, out
        self.x: Array | None = None

    def add_adjoint(self) -> None:
        """Propagate the gradient of the solution x of A x = b. With A^T w = dL/dx, dL/db is w, and dL/dA is -w x^T at the stored
        entries."""
        w = self._factors.solve(self._out.grad.to_numpy().astype(np.float64), trans="T")
        self._out.grad.fill(0)
        if self._b is not None and self._b.has_grad():
            adjoint = ScalarNdarray(self._out.dtype, len(w))
            adjoint.from_numpy(w.astype(self._out.dtype.np))
            add_to(adjoint, self._b.grad, len(w))
        if self._entries is None:
            return
        assert self.x is not None
        rows, columns = self._entries.positions()
        flow = -w[rows] * self.x[columns]
        if self._symmetric:  # an entry below the diagonal also represents the one above it
            across = flow - w[columns] * self.x[rows]
            flow = np.where(np.greater(rows, columns), across, np.where(rows == columns, flow, 0))
        self._entries.add_gradient(flow)


def _mirrored(held: csc_array, dtype: DType) -> tuple[csc_array, float]:
    """Return the symmetric matrix of the lower triangle of ``held``, and by how much entries of ``held`` differ across its diagonal: 0 for
    rounding, and if there are none above it."""
    held.eliminate_zeros()
    across = held.T.tocsc()
    if np.array_equal(held.indptr, across.indptr) and np.array_equal(held.indices, across.indices):
        with np.errstate(invalid="ignore"):
            apart = np.abs(held.data - across.data).max(initial=0.0)
        asymmetry = apart if apart > np.sqrt(np.finfo(dtype.np).eps) * np.abs(held.data).max(initial=0.0) else 0.0
        columns = np.repeat(np.arange(held.shape[1]), np.diff(held.indptr))
        np.copyto(held.data, across.data, where=held.indices < columns)
        return held, float(asymmetry)
    sparse = scipy_module("sparse")
    lower = sparse.tril(held, format="csc")
    mirrored = (lower + sparse.tril(held, -1, format="csc").T).tocsc()
    if sparse.triu(held, 1).nnz:
        asymmetry = abs(held - across).max()
        if asymmetry > np.sqrt(np.finfo(dtype.np).eps) * abs(held).max():
            return mirrored, float(asymmetry)
    return mirrored, 0.0
