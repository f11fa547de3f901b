"""Decompositions of 2x2 and 3x3 matrices, unrolled, in Python and in kernels.

Rotations of Jacobi: G. H. Golub, C. F. Van Loan, Matrix Computations, 4th edition, sections 8.5 (symmetric) and 8.6.3 (one-sided, for
singular values, which keeps small ones accurate). The results are accurate to a few units in the last place of the largest entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spirograd.base.dtypes import DType
from spirograd.lang import context, ops
from spirograd.lang.linear import cross, dot
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value, type_error

Column = list[Any]
# An off-diagonal entry below this part of the diagonal is left alone; its square is a normal number of f32.
_TINY = 1e-18


def _columns(a: Any, dt: Any, what: str) -> tuple[list[Column], int]:
    """The columns of a square matrix as floats, and how many sweeps of rotations its type needs."""
    if not isinstance(a, Matrix) or len(a.shape) != 2 or a.shape[0] != a.shape[1] or a.shape[0] not in (2, 3):
        raise type_error(f"`{what}` takes a 2x2 or 3x3 matrix", "decompose larger ones with NumPy, outside of kernels")
    n = a.shape[0]
    first = a.entries[0]
    default = context.language_options().default_fp
    t: DType = ops.as_dtype(dt) if dt is not None else first.dtype if isinstance(first, Value) else default
    t = t if t.is_float else default
    cast = ops.cast(a, t)
    sweeps = 2 if n == 2 else 4 if t.bits < 64 else 6
    return [[cast.entries[i * n + j] for i in range(n)] for j in range(n)], sweeps


def _from_columns(columns: Sequence[Column]) -> Matrix:
    return Matrix([list(row) for row in zip(*columns)])


def _identity(n: int) -> list[Column]:
    return [[1.0 if i == j else 0.0 for i in range(n)] for j in range(n)]


def _rotation(low: Any, high: Any, off: Any) -> tuple[Any, Any]:
    """Cosine and sine of the rotation that makes the symmetric [[low, off], [off, high]] diagonal."""
    active = ops.abs(off) > _TINY * (ops.abs(low) + ops.abs(high))
    theta = (high - low) / (2.0 * ops.select(active, off, 1.0))
    size = 1.0 / (ops.abs(theta) + ops.sqrt(theta * theta + 1.0))
    t = ops.select(active, ops.select(theta < 0, -size, size), 0.0)
    c = 1.0 / ops.sqrt(t * t + 1.0)
    return c, t * c


def _turn(a: Column, b: Column, c: Any, s: Any) -> tuple[Column, Column]:
    return [c * x - s * y for x, y in zip(a, b)], [s * x + c * y for x, y in zip(a, b)]


def _pairs(n: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(n) for j in range(i + 1, n)]


def _sorting(n: int) -> list[tuple[int, int]]:
    return [(0, 1)] if n == 2 else [(0, 1), (1, 2), (0, 1)]


def _exchange(condition: Any, a: Column, b: Column) -> tuple[Column, Column]:
    """(b, -a) where the condition holds, else (a, b): keeps the orientation."""
    pairs = list(zip(a, b))
    return [ops.select(condition, y, x) for x, y in pairs], [ops.select(condition, -x, y) for x, y in pairs]


@ops.traceable
def sym_eig(a: Any, dt: Any = None) -> tuple[Matrix, Matrix]:
    """Eigenvalues of a symmetric 2x2 or 3x3 matrix, smallest first, and the matrix whose columns are the eigenvectors, of length 1.

    ``dt``: the float type to compute in, by default that of ``a``. Raises SpirogradTypeError for other shapes.
    """
    rows, sweeps = _columns(a, dt, "sym_eig")
    n = len(rows)
    vectors = _identity(n)
    for p, q in _pairs(n) * (1 if n == 2 else sweeps):
        c, s = _rotation(rows[p][p], rows[q][q], rows[p][q])
        rows[p], rows[q] = _turn(rows[p], rows[q], c, s)
        columns = [list(column) for column in zip(*rows)]
        columns[p], columns[q] = _turn(columns[p], columns[q], c, s)
        rows = [list(row) for row in zip(*columns)]
        vectors[p], vectors[q] = _turn(vectors[p], vectors[q], c, s)
    values = [rows[k][k] for k in range(n)]
    for p, q in _sorting(n):
        swap = values[p] > values[q]
        values[p], values[q] = ops.select(swap, values[q], values[p]), ops.select(swap, values[p], values[q])
        vectors[p], vectors[q] = _exchange(swap, vectors[p], vectors[q])
    return Matrix(values), _from_columns(vectors)


@ops.traceable
def svd(a: Any, dt: Any = None) -> tuple[Matrix, Matrix, Matrix]:
    """Matrices U, S, V with a = U @ S @ V.transpose(), U and V orthogonal, S diagonal with the largest first; 2x2 or 3x3.

    V is a rotation. 2x2: the singular values are not negative, and U reflects if the determinant is negative. 3x3: U is a rotation, and the
    last singular value has the sign of the determinant. ``dt``: as of `sym_eig`. Raises SpirogradTypeError for other shapes.
    """
    b, sweeps = _columns(a, dt, "svd")
    n = len(b)
    v = _identity(n)
    for p, q in _pairs(n) * sweeps:
        c, s = _rotation(dot(b[p], b[p]), dot(b[q], b[q]), dot(b[p], b[q]))
        b[p], b[q] = _turn(b[p], b[q], c, s)
        v[p], v[q] = _turn(v[p], v[q], c, s)
    for p, q in _sorting(n):
        swap = dot(b[p], b[p]) < dot(b[q], b[q])
        b[p], b[q] = _exchange(swap, b[p], b[q])
        v[p], v[q] = _exchange(swap, v[p], v[q])
    u = _completed(b)
    sigma = [dot(x, y) for x, y in zip(u, b)]
    if n == 2:
        negative = sigma[1] < 0
        u[1] = [ops.select(negative, -x, x) for x in u[1]]
        sigma[1] = ops.abs(sigma[1])
    diagonal = [[sigma[i] if i == j else 0.0 * sigma[i] for i in range(n)] for j in range(n)]
    return _from_columns(u), _from_columns(diagonal), _from_columns(v)


def _unit(x: Column, otherwise: Column) -> Column:
    """x of length 1, or ``otherwise`` where x is zero."""
    square = dot(x, x)
    scale = 1.0 / ops.sqrt(ops.select(square > 0, square, 1.0))
    return [ops.select(square > 0, e * scale, o) for e, o in zip(x, otherwise)]


def _completed(b: list[Column]) -> list[Column]:
    """The rotation whose first columns have the directions of those of b, which are orthogonal, longest first."""
    if len(b) == 2:
        first = _unit(b[0], [1.0, 0.0])
        return [first, [-first[1], first[0]]]
    x, y, z = first = _unit(b[0], [1.0, 0.0, 0.0])
    # Some direction across the first, for where the second column is zero: x or y is left out, whichever is smaller.
    small = ops.abs(x) < ops.abs(y)
    across = _unit([ops.select(small, 0.0 * x, -z), ops.select(small, -z, 0.0 * y), ops.select(small, y, x)], [0.0, 1.0, 0.0])
    along = dot(first, b[1])
    rest = [e - along * f for e, f in zip(b[1], first)]
    tiny = dot(rest, rest) <= 1e-12 * dot(b[0], b[0]) * _TINY
    second = _unit([ops.select(tiny, 0.0 * e, e) for e in rest], across)
    return [first, second, cross(first, second)]


@ops.traceable
def polar_decompose(a: Any, dt: Any = None) -> tuple[Matrix, Matrix]:
    """An orthogonal matrix R and a symmetric P with a = R @ P; 2x2 or 3x3, from `svd`, whose signs R and P take over."""
    u, sigma, v = svd(a, dt)
    transposed = v.transpose()
    return u @ transposed, v @ sigma @ transposed


@ops.traceable
def solve(a: Any, b: Any, dt: Any = None) -> Matrix:
    """The vector x with a @ x = b; 2x2 or 3x3. Entries come out infinite or NaN where ``a`` is singular. ``dt``: as of `sym_eig`."""
    columns, _ = _columns(a, dt, "solve")
    if not isinstance(b, Matrix) or b.shape != (len(columns),):
        raise type_error(f"`solve` with a {len(columns)}x{len(columns)} matrix takes a vector of {len(columns)}")
    solution: Matrix = _from_columns(columns).inverse() @ b
    return solution
