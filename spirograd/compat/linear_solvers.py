"""The solvers of sparse linear systems as programs of the Taichi family use them."""

from __future__ import annotations

from spirograd import linalg


class SparseSolver(linalg.SparseSolver):
    """`linalg.SparseSolver` that accepts any square matrix for "LLT" and "LDLT", and reads its lower triangle. The family does not check
    that a matrix is symmetric; here a warning says so."""

    reads_lower_triangle = True
