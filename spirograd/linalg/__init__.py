"""Sparse matrices, which kernels assemble, and solvers of linear systems.

SciPy stores and factorises matrices: it comes with the extra ``spirograd[linalg]``. `MatrixFreeCG` and `MatrixFreeBICGSTAB` do without.
"""

from spirograd.linalg.matrix_free import LinearOperator, MatrixFreeBICGSTAB, MatrixFreeCG
from spirograd.linalg.sparse_builder import SparseMatrixBuilder
from spirograd.linalg.sparse_cg import SparseCG
from spirograd.linalg.sparse_matrix import SparseMatrix
from spirograd.linalg.sparse_solver import SparseSolver

__all__ = ["LinearOperator", "MatrixFreeBICGSTAB", "MatrixFreeCG", "SparseCG", "SparseMatrix", "SparseMatrixBuilder", "SparseSolver"]
