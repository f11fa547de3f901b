"""Decompositions and linear systems of small matrices, in Python and in kernels: unrolled, for matrices of every scale.

Matrices are divided by a power of two first, so that squares of entries are neither infinite nor lost. The results are accurate to a few
units in the last place of the largest entry.
"""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base.dtypes import DType, f32
from spirograd.base.records import dataclass
from spirograd.lang import arithmetic, context, dense_algebra, jacobi, scalar
from spirograd.lang import decomposition_rates as rates
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Scalar, Value, type_error

_LARGEST = 6
# The number of rotations of all pairs of rows, for symmetric matrices by their size; two more in f64.
_SWEEPS = (0, 1, 4, 5, 7, 8)


@dataclass(slots=True)
class _Square:
    """A square matrix to decompose: its ``rows`` as floats of type ``t``. Results are of type ``wanted``."""

    rows: list[list[Scalar]]
    t: DType
    wanted: DType

    @property
    def n(self) -> int:
        return len(self.rows)

    @property
    def runs(self) -> bool:
        """Whether entries are known at run time only."""
        return any(isinstance(x, Value) for row in self.rows for x in row)

    def result(self, rows: Sequence[Sequence[object]]) -> Matrix:
        matrix = Matrix([list(row) for row in rows])
        return matrix if self.t is self.wanted else arithmetic.cast(matrix, self.wanted)

    def vector(self, entries: Sequence[object]) -> Matrix:
        column = Matrix(list(entries))
        return column if self.t is self.wanted else arithmetic.cast(column, self.wanted)


def _square(a: object, dt: object, name: str, sizes: Sequence[int]) -> _Square:
    """Check the argument of a function of this file. f16 is computed in f32."""
    if not isinstance(a, Matrix) or len(a.shape) != 2 or a.shape[0] != a.shape[1] or a.shape[0] not in sizes:
        known = "a 2x2 matrix" if len(sizes) == 1 else " or ".join(f"{n}x{n}" for n in sizes) if len(sizes) == 2 else ""
        known = known or f"square matrices of up to {sizes[-1]}x{sizes[-1]}"
        takes = known if known.startswith(("a ", "square")) else f"a {known} matrix"
        raise type_error(f"`{name}` takes {takes}, not {scalar.describe(a)}", "decompose larger ones with NumPy, outside of kernels")
    n, first = a.shape[0], a.entries[0]
    default = context.language_options().default_fp
    wanted: DType = arithmetic.as_dtype(dt) if dt is not None else first.dtype if isinstance(first, Value) else default
    wanted = wanted if wanted.is_float else default
    t = f32 if wanted.bits < 32 else wanted
    cast = arithmetic.cast(a, t).entries
    return _Square([list(cast[i * n : (i + 1) * n]) for i in range(n)], t, wanted)


def _scaled(rows: Sequence[Sequence[Scalar]], t: DType) -> tuple[list[list[Scalar]], Scalar]:
    """Return the matrix divided by a power of two, and that power."""
    scale, part = dense_algebra.power_of_two([x for row in rows for x in row], t)
    return [[x * part for x in row] for row in rows], scale


def _transposed(rows: Sequence[Sequence[Scalar]]) -> list[list[Scalar]]:
    return [list(column) for column in zip(*rows)]


def _times(a: Sequence[Sequence[Scalar]], b: Sequence[Sequence[Scalar]]) -> list[list[Scalar]]:
    n = len(a)
    flat = dense_algebra.product([x for row in a for x in row], [x for row in b for x in row], n, n, n)
    return [flat[i * n : (i + 1) * n] for i in range(n)]


# --- symmetric matrices --------------------------------------------------------------------------------------------------------


def _eigen(a: object, dt: object, name: str) -> tuple[_Square, list[list[Scalar]], list[Scalar], list[list[Scalar]]]:
    """Return the matrix to decompose, its symmetric part, eigenvalues and eigenvectors, the latter two with derivatives."""
    matrix = _square(a, dt, name, range(1, _LARGEST + 1))
    n, rows = matrix.n, matrix.rows
    symmetric = [[rows[i][i] if i == j else 0.5 * rows[i][j] + 0.5 * rows[j][i] for j in range(n)] for i in range(n)]
    scaled, scale = _scaled(symmetric, matrix.t)
    sweeps = _SWEEPS[n - 1] + (2 if matrix.t.bits == 64 and n > 2 else 0)
    values, columns = jacobi.eigen(scaled, sweeps)
    values, vectors = [x * scale for x in values], _transposed(columns)
    if matrix.runs:
        values, vectors = rates.eigen(symmetric, values, vectors, matrix.t)
    return matrix, symmetric, values, vectors


@arithmetic.traceable
def sym_eig(a: object, dt: object = None) -> tuple[Matrix, Matrix]:
    """Return the eigenvalues of a symmetric matrix of up to 6x6, smallest first, and the matrix whose columns are the eigenvectors, of
    length 1.

    For a matrix that is not symmetric, the results are those of (a + a^T) / 2. ``dt``: the float type to compute in, by default that of
    ``a``. Derivatives of the eigenvectors of equal eigenvalues are NaN; derivatives of the eigenvalues are correct for sums of any function
    over all of them. Raises SpirogradTypeError for other shapes.
    """
    matrix, _, values, vectors = _eigen(a, dt, "sym_eig")
    return matrix.vector(values), matrix.result(vectors)


@arithmetic.traceable
def make_spd(a: object, dt: object = None) -> Matrix:
    """Return the positive semi-definite matrix nearest to a symmetric one of up to 6x6: its negative eigenvalues become 0.

    The derivative exists where no eigenvalue is 0; there it is the derivative from below. ``dt``, shapes and errors are those of `sym_eig`.
    """
    matrix, symmetric, values, vectors = _eigen(a, dt, "make_spd")
    part = [[arithmetic.max(value, 0.0) * x for value, x in zip(values, row)] for row in vectors]
    projected = _times(part, _transposed(vectors))
    return matrix.result(rates.projection(symmetric, values, vectors, projected, matrix.t) if matrix.runs else projected)


# --- singular values -----------------------------------------------------------------------------------------------------------


def _singular(matrix: _Square) -> tuple[list[list[Scalar]], list[Scalar], list[list[Scalar]]]:
    """Return U, singular values and V, without derivatives."""
    scaled, scale = _scaled(matrix.rows, matrix.t)
    sweeps = 2 if matrix.n == 2 else 4 if matrix.t.bits < 64 else 6
    u, sigma, v = jacobi.singular(_transposed(scaled), sweeps)
    return _transposed(u), [x * scale for x in sigma], _transposed(v)


@arithmetic.traceable
def svd(a: object, dt: object = None) -> tuple[Matrix, Matrix, Matrix]:
    """Return matrices U, S, V with a = U @ S @ V.transpose(), U and V orthogonal, S diagonal with the largest first; 2x2 or 3x3.

    V is a rotation. 2x2: the singular values are not negative, and U reflects if the determinant is negative. 3x3: U is a rotation, and the
    last singular value has the sign of the determinant. Derivatives of U and V are NaN where singular values are equal: there
    `polar_decompose` gives those of U @ V.transpose(). Those of S are right for sums of any function over all singular values. ``dt``: as
    of `sym_eig`. Raises SpirogradTypeError for other shapes.
    """
    matrix = _square(a, dt, "svd", (2, 3))
    u, sigma, v = _singular(matrix)
    if matrix.runs:
        u, sigma, v = rates.singular(matrix.rows, u, sigma, v, matrix.t)
    n = matrix.n
    diagonal = [[sigma[i] if i == j else 0.0 * sigma[i] for j in range(n)] for i in range(n)]
    return matrix.result(u), matrix.result(diagonal), matrix.result(v)


@arithmetic.traceable
def polar_decompose(a: object, dt: object = None) -> tuple[Matrix, Matrix]:
    """Return an orthogonal matrix R and a symmetric P with a = R @ P; 2x2 or 3x3, from `svd`, whose signs R and P take over.

    The derivative exists where no two singular values, with their signs, add up to 0: at multiples of rotations, too. Elsewhere it is
    infinite or NaN. ``dt``, errors: as of `svd`.
    """
    matrix = _square(a, dt, "polar_decompose", (2, 3))
    u, sigma, v = _singular(matrix)
    transposed = _transposed(v)
    r = _times(u, transposed)
    p = _times([[x * s for x, s in zip(row, sigma)] for row in v], transposed)
    if matrix.runs:
        r, p = rates.polar(matrix.rows, r, p, matrix.t)
    return matrix.result(r), matrix.result(p)


# --- others ----------------------------------------------------------------------------------------------------------------------


@arithmetic.traceable
def eig(a: object, dt: object = None) -> tuple[Matrix, Matrix]:
    """Return eigenvalues and eigenvectors of a 2x2 matrix, which may be complex.

    The first result has a row for each eigenvalue: its real and its imaginary part, the largest real or imaginary part first. The second is
    4x2: each column is an eigenvector of length 1, with the real and the imaginary part of its first entry, then those of its second.
    Derivatives are infinite or NaN where the eigenvalues are equal. ``dt``: as of `sym_eig`. Raises SpirogradTypeError for other shapes.
    """
    matrix = _square(a, dt, "eig", (2,))
    scaled, scale = _scaled(matrix.rows, matrix.t)
    (a00, a01), (a10, a11) = scaled
    middle, half = 0.5 * (a00 + a11), 0.5 * (a00 - a11)
    square = half * half + a01 * a10
    is_real = square >= 0
    root = arithmetic.sqrt(arithmetic.select(is_real, square, -square))
    real, imaginary = arithmetic.select(is_real, root, 0.0), arithmetic.select(is_real, 0.0, root)
    values, columns = [], []
    for sign, unit in ((1.0, (1.0, 0.0)), (-1.0, (0.0, 1.0))):
        values.append([(middle + sign * real) * scale, sign * imaginary * scale])
        # Two multiples of the eigenvector: the second where the first is zero, or too small to be accurate.
        first = [sign * real + half, sign * imaginary, a10, 0.0]
        second = [a01, 0.0, sign * real - half, sign * imaginary]
        sizes = [dense_algebra.dot(x, x) for x in (first, second)]
        weak = sizes[0] < 1e-3 * sizes[1]
        length = arithmetic.sqrt(arithmetic.select(weak, sizes[1], sizes[0]))
        nothing = length <= 0.0
        part = 1.0 / arithmetic.select(nothing, 1.0, length)
        rest = (unit[0], 0.0, unit[1], 0.0)
        columns.append([arithmetic.select(nothing, o, arithmetic.select(weak, y, x) * part) for x, y, o in zip(first, second, rest)])
    return matrix.result(values), matrix.result(_transposed(columns))


@arithmetic.traceable
def solve(a: object, b: object, dt: object = None) -> Matrix:
    """Return the vector x with a @ x = b, for matrices of up to 6x6, by elimination with pivoting.

    Entries come out infinite or NaN where ``a`` is singular. ``dt``: as of `sym_eig`. Raises SpirogradTypeError for other shapes.
    """
    matrix = _square(a, dt, "solve", range(1, _LARGEST + 1))
    if not isinstance(b, Matrix) or b.shape != (matrix.n,):
        raise type_error(f"`solve` with a {matrix.n}x{matrix.n} matrix takes a vector of {matrix.n}, not {scalar.describe(b)}")
    right = arithmetic.cast(b, matrix.t).entries
    return matrix.vector([row[0] for row in dense_algebra.solution(matrix.rows, [[x] for x in right])])
