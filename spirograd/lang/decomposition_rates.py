"""Derivatives of decompositions, computed from the decomposition itself; the rotations that compute it are not differentiated.

A result is a constant with partial derivatives (`with_partial`), whose coefficients come from the same results. Where eigenvalues or
singular values coincide, eigenvectors and singular vectors have no derivative: it is NaN there. Polar decompositions and projections have
one, and compute it differently. The results are computed twice: the coefficients of the second results are the first results, whose
derivatives give the derivatives of the coefficients for second derivatives.

M. B. Giles, Collected Matrix Derivative Results for Forward and Reverse Mode Algorithmic Differentiation, 2008, sections 3.1 and 3.2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from spirograd.base.dtypes import DType
from spirograd.ir import ops as ir
from spirograd.lang import arithmetic, dense_algebra, scalar
from spirograd.lang.scalar import Scalar, Value

Matrix = Sequence[Sequence[Scalar]]  # Rows of a matrix.
Rows = list[list[Scalar]]
# Values that differ by less, in units of the rounding error of the larger one, count as equal.
_EQUAL = 4


def constant(x: Scalar, t: DType) -> Value:
    """Return a run-time value whose derivatives end here."""
    return scalar.emit(ir.stop_grad, scalar.cast(x, t))


def constants(rows: Matrix, t: DType) -> Rows:
    return [[constant(x, t) for x in row] for row in rows]


def dependent(value: Scalar, terms: Iterable[tuple[Scalar, Scalar]], t: DType) -> Value:
    """Return ``value`` with the derivatives c * da for each of the ``terms`` (c, a) in addition to its own."""
    result = scalar.cast(value, t)
    for c, a in terms:
        result = scalar.emit(ir.with_partial, result, scalar.cast(a, t), scalar.cast(c, t))
    return result


def _between(u: Matrix, a: Matrix, v: Matrix, t: DType, upper: bool = False) -> Rows:
    """Return zeros with the derivatives of the entries of U^T a V, for constant U and V; of the ``upper`` triangle only (0.0 below)."""
    n = len(a)
    part = [[dependent(0.0, [(v[k][j], a[i][k]) for k in range(n)], t) for j in range(n)] for i in range(n)]
    return [[0.0 if upper and j < i else dependent(0.0, [(u[k][i], part[k][j]) for k in range(n)], t) for j in range(n)] for i in range(n)]


def _inverse_difference(x: Scalar, y: Scalar, t: DType) -> Scalar:
    """Return 1 / (x - y), or NaN where they are equal up to rounding."""
    difference = x - y
    unit = 2.0 ** -(23 if t.bits == 32 else 52)
    equal = arithmetic.abs(difference) <= _EQUAL * unit * arithmetic.max(arithmetic.abs(x), arithmetic.abs(y))
    inverse: Scalar = arithmetic.select(equal, math.nan, 1.0 / arithmetic.select(equal, 1.0, difference))
    return inverse


def _turned(x0: Matrix, x: Matrix, omega: dict[tuple[int, int], Value], t: DType) -> Rows:
    """Return ``x0`` with the derivative x Omega, Omega antisymmetric, given above its diagonal."""
    n = len(x0)

    def terms(k: int, j: int) -> list[tuple[Scalar, Scalar]]:
        return [(x[k][i], omega[i, j]) if i < j else (-x[k][i], omega[j, i]) for i in range(n) if i != j]

    return [[dependent(x0[k][j], terms(k, j), t) for j in range(n)] for k in range(n)]


def eigen(a: Matrix, values: Sequence[Scalar], vectors: Matrix, t: DType) -> tuple[list[Scalar], Rows]:
    """Return eigenvalues and eigenvectors (columns) of a symmetric ``a``, with derivatives."""
    n = len(a)
    fixed: tuple[list[Scalar], Rows] = [constant(x, t) for x in values], constants(vectors, t)
    factors = fixed
    for _ in range(2):
        l, q = factors
        m = _between(q, a, q, t, upper=True)
        pairs = itertools.combinations(range(n), 2)
        omega = {(i, j): dependent(0.0, [(_inverse_difference(l[j], l[i], t), m[i][j])], t) for i, j in pairs}
        factors = [dependent(fixed[0][k], [(1.0, m[k][k])], t) for k in range(n)], _turned(fixed[1], q, omega, t)
    return factors


def projection(a: Matrix, values: Sequence[Scalar], vectors: Matrix, projected: Matrix, t: DType) -> Rows:
    """Return ``projected``, the sum of max(value, 0) * vector * vector^T over the eigenvalues of a symmetric ``a``, with derivatives.

    ``values``, ``vectors``: with derivatives. The formula is that of Daleckii and Krein; N. J. Higham, Functions of Matrices, theorem 3.11.
    """
    n = len(a)
    m = _between(vectors, a, vectors, t, upper=True)
    inner: Rows = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(i, n):  # values[i] <= values[j]
            low, high = values[i], values[j]
            mixed = arithmetic.logical_and(low <= 0, high > 0)
            share = arithmetic.select(low > 0, 1.0, arithmetic.select(mixed, high / arithmetic.select(mixed, high - low, 1.0), 0.0))
            inner[i][j] = inner[j][i] = dependent(0.0, [(share, m[i][j])], t)
    half = [[dependent(0.0, [(vectors[i][k], inner[k][j]) for k in range(n)], t) for j in range(n)] for i in range(n)]
    return [
        [dependent(constant(projected[i][j], t), [(vectors[j][k], half[i][k]) for k in range(n)], t) for j in range(n)] for i in range(n)
    ]


def singular(a: Matrix, u: Matrix, sigma: Sequence[Scalar], v: Matrix, t: DType) -> tuple[Rows, list[Scalar], Rows]:
    """Return the singular value decomposition of ``a``, with derivatives; singular values may be negative."""
    n = len(a)
    fixed: tuple[Rows, list[Scalar], Rows] = constants(u, t), [constant(x, t) for x in sigma], constants(v, t)
    factors = fixed
    for _ in range(2):
        x, s, y = factors
        m = _between(x, a, y, t)
        left, right = {}, {}
        for i in range(n):
            for j in range(i + 1, n):
                # For U^T dU and V^T dV, the difference is finite where singular values coincide, the sum where they are opposite.
                across = 0.5 * _inverse_difference(s[i], -s[j], t)
                along = 0.5 * _inverse_difference(s[j], s[i], t)
                left[i, j] = dependent(0.0, [(along + across, m[i][j]), (along - across, m[j][i])], t)
                right[i, j] = dependent(0.0, [(along - across, m[i][j]), (along + across, m[j][i])], t)
        values: list[Scalar] = [dependent(fixed[1][k], [(1.0, m[k][k])], t) for k in range(n)]
        factors = _turned(fixed[0], x, left, t), values, _turned(fixed[2], y, right, t)
    return factors


def polar(a: Matrix, r: Matrix, p: Matrix, t: DType) -> tuple[Rows, Rows]:
    """Return the polar decomposition a = r p, with derivatives, also where singular values coincide.

    dr = r W with an antisymmetric W, which the antisymmetric part of r^T da = W p + dp determines.
    """
    n = len(a)
    pairs = [(0, 1)] if n == 2 else [(2, 1), (0, 2), (1, 0)]  # W is the cross product with its axis from the left.
    fixed = constants(r, t), constants(p, t)
    factors: tuple[Rows, Rows] = fixed
    for _ in range(2):
        x, s = factors
        unit = [[1.0 if i == j else 0.0 for j in range(n)] for i in range(n)]
        m = _between(x, a, unit, t)
        k = _axis_matrix(s, t)
        omega = {}
        for i, (row, column) in enumerate(pairs):
            sign = 1.0 if row < column else -1.0
            terms = [(sign * k[i][j], m[b][c], m[c][b]) for j, (b, c) in enumerate(pairs)]
            flat = [term for c, plus, minus in terms for term in ((c, plus), (-c, minus))]
            omega[min(row, column), max(row, column)] = dependent(0.0, flat, t)
        stretch: Rows = [[0.0] * n for _ in range(n)]
        for i in range(n):
            for j in range(i, n):
                turned = [(-s[k_][j], omega[i, k_]) if i < k_ else (s[k_][j], omega[k_, i]) for k_ in range(n) if k_ != i]
                stretch[i][j] = stretch[j][i] = dependent(fixed[1][i][j], [(1.0, m[i][j]), *turned], t)
        factors = _turned(fixed[0], x, omega, t), stretch
    return factors


def _axis_matrix(s: Matrix, t: DType) -> Rows:
    """Return the inverse of the matrix that takes the axis w of W to that of W s + s W: tr(s) - s, of 2x2 matrices tr(s)."""
    n = len(s)
    trace = dense_algebra.total([s[k][k] for k in range(n)])
    if n == 2:
        return [[_inverse_difference(s[0][0], -s[1][1], t)]]
    inverse = dense_algebra.inverse([(trace if i == j else 0.0) - s[i][j] for i in range(n) for j in range(n)], n)
    return [inverse[i * n : (i + 1) * n] for i in range(n)]
