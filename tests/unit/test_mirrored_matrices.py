"""The symmetric matrix of a lower triangle, which "LLT" and "LDLT" factorise, beside the same matrix by dense NumPy."""

from __future__ import annotations

import needs
import numpy as np
import pytest

from spirograd.base.dtypes import f32, f64

scipy = needs.package("scipy")

_SYMMETRIC = [[4, 1, 0], [1, 5, 2], [0, 2, 6]]
# name -> entries, and the difference across the diagonal that is reported
_CASES = {
    "symmetric": (_SYMMETRIC, 0.0),
    "apart, with one pattern": ([[4, 3, 0], [1, 5, 2], [0, 2, 6]], 2.0),
    "apart, with two patterns": ([[4, 1, 7], [1, 5, 2], [0, 2, 6]], 7.0),
    "rounding": ([[4, 1 + 1e-12, 0], [1, 5, 2], [0, 2, 6]], 0.0),
    "lower triangle only": ([[4, 0, 0], [1, 5, 0], [0, 2, 6]], 0.0),
    "zeros": (np.zeros((3, 3)), 0.0),
    "negative": ([[-4, 1, 0], [1, -5, 2], [0, 2, -6]], 0.0),
}


@pytest.mark.parametrize("dtype", [f32, f64])
def test_the_lower_triangle_is_mirrored(dtype) -> None:
    from spirograd.linalg.sparse_solver import _mirrored

    for name, (entries, difference) in _CASES.items():
        dense = np.array(entries, np.float64)
        mirrored, asymmetry = _mirrored(scipy.sparse.csc_array(dense), dtype)
        expected = np.tril(dense) + np.tril(dense, -1).T
        np.testing.assert_array_equal(mirrored.toarray(), expected, name)
        assert asymmetry == difference, name
        assert mirrored.nnz == np.count_nonzero(expected), name


def test_stored_zeros_are_dropped() -> None:
    """A zero above the diagonal is no entry of an upper triangle, and the factors of a matrix do not depend on zeros that it stores."""
    from spirograd.linalg.sparse_solver import _mirrored

    held = scipy.sparse.csc_array(([4.0, 1.0, 0.0, 5.0], ([0, 1, 0, 1], [0, 0, 1, 1])), (2, 2))
    mirrored, asymmetry = _mirrored(held, f64)
    np.testing.assert_array_equal(mirrored.toarray(), [[4, 1], [1, 5]])
    assert asymmetry == 0.0
