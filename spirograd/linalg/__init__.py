"""Sparse matrices, which kernels assemble, and solvers of linear systems.

SciPy, which the extra ``spirograd[linalg]`` installs, stores and factorises matrices. `MatrixFreeCG` and `MatrixFreeBICGSTAB` do not need
it.
"""

from spirograd.linalg.matrix_free import LinearOperator, MatrixFreeBICGSTAB, MatrixFreeCG
from spirograd.linalg.sparse_builder import SparseMatrixBuilder
from spirograd.linalg.sparse_cg import SparseCG
from spirograd.linalg.sparse_matrix import SparseMatrix
from spirograd.linalg.sparse_solver import SparseSolver

__all__ = ["LinearOperator", "MatrixFreeBICGSTAB", "MatrixFreeCG", "SparseCG", "SparseMatrix", "SparseMatrixBuilder", "SparseSolver"]
