"""Solvers of the family accept matrices that are not symmetric for "LLT" and "LDLT", and read the lower triangle."""

import warnings

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd.compat import taichi as ti

scipy = needs.package("scipy")
pytestmark = pytest.mark.archs("cpu")  # SciPy solves on the host

MATRIX = np.array([[5.0, -2.0, 0.5], [1.0, 6.0, -1.0], [2.0, 0.0, 7.0]])


@pytest.mark.parametrize("kind", ["LLT", "LDLT"])
def test_the_lower_triangle_is_used(arch, kind):
    ti.init(arch=arch)
    A = ti.linalg.SparseMatrix(sm=scipy.sparse.csc_array(MATRIX), dtype=ti.f64)
    solver, b = ti.linalg.SparseSolver(ti.f64, kind), np.array([1.0, 2.0, 3.0])
    with pytest.warns(
        RuntimeWarning, match=f"{kind} takes symmetric matrices: .* differ by up to 3; only the lower triangle is used"
    ) as caught:
        solver.compute(A)
    assert caught[0].filename == __file__
    lower = np.tril(MATRIX) + np.tril(MATRIX, -1).T
    np.testing.assert_allclose(solver.solve(b), np.linalg.solve(lower, b))
    with warnings.catch_warnings():  # one warning a solver: programs factorise in each step
        warnings.simplefilter("error")
        solver.compute(A)
    with pytest.raises(sg.SpirogradValueError, match=f"{kind} takes symmetric matrices"):
        sg.linalg.SparseSolver(sg.f64, kind).compute(A)


def test_lu_uses_both_triangles(arch):
    ti.init(arch=arch)
    solver = ti.linalg.SparseSolver(ti.f64, "LU")
    solver.compute(ti.linalg.SparseMatrix(sm=scipy.sparse.csc_array(MATRIX), dtype=ti.f64))
    np.testing.assert_allclose(solver.solve(np.ones(3)), np.linalg.solve(MATRIX, np.ones(3)))
