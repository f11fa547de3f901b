"""Decompositions of small matrices by Jacobi's rotations, unrolled over the entries, on lists of scalars (numbers or run-time values).

G. H. Golub, C. F. Van Loan, Matrix Computations, 4th edition, sections 8.5 (symmetric matrices) and 8.6.3 (one-sided, for singular values,
which keeps small ones accurate). The magnitude of entries is at most a few units, see `dense_algebra.power_of_two`.
"""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.dtypes import i32
from spirograd.lang import arithmetic, scalar
from spirograd.lang.dense_algebra import cross, dot
from spirograd.lang.scalar import Scalar, Value

Column = list[Scalar]
Columns = list[Column]
# An off-diagonal entry below this fraction of the diagonal is left alone; its square is a normal number of f32.
_TINY = 1e-18
# Above this size the sweeps are a loop of the kernel.
_LARGEST_UNROLLED = 3


def repeated(count: int, values: Column, body: Callable[[Column], Column]) -> Column:
    """Apply ``body`` to scalars ``count`` times; in kernels by a loop that carries them."""
    first = next((v for v in values if isinstance(v, Value)), None)
    if first is None:
        for _ in range(count):
            values = body(values)
        return values
    b = scalar.builder()
    initial = [scalar.cast(v, first.dtype).op for v in values]
    params = b.begin(i32, *[op.type for op in initial])[1:]
    region = b.end([scalar.cast(v, first.dtype).op for v in body([Value(p) for p in params])])
    return [Value(op) for op in b.for_(b.const(0), b.const(count), initial, region)]


def _pairs(n: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(n) for j in range(i + 1, n)]


def _rotation(low: Scalar, high: Scalar, off: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """Return cosine, sine and tangent of the rotation that makes the symmetric [[low, off], [off, high]] diagonal."""
    active = arithmetic.abs(off) > _TINY * (arithmetic.abs(low) + arithmetic.abs(high))
    theta = (high - low) / (2.0 * arithmetic.select(active, off, 1.0))
    size = 1.0 / (arithmetic.abs(theta) + arithmetic.sqrt(theta * theta + 1.0))
    t = arithmetic.select(active, arithmetic.select(theta < 0, -size, size), 0.0)
    c = 1.0 / arithmetic.sqrt(t * t + 1.0)
    return c, t * c, t


def _turn(a: Column, b: Column, c: Scalar, s: Scalar) -> tuple[Column, Column]:
    return [c * x - s * y for x, y in zip(a, b)], [s * x + c * y for x, y in zip(a, b)]


def _exchange(condition: object, a: Column, b: Column) -> tuple[Column, Column]:
    """Return (b, -a) where the condition holds, else (a, b), which keeps the orientation."""
    pairs = list(zip(a, b))
    return [arithmetic.select(condition, y, x) for x, y in pairs], [arithmetic.select(condition, -x, y) for x, y in pairs]


def _identity(n: int) -> Columns:
    return [[1.0 if i == j else 0.0 for i in range(n)] for j in range(n)]


def _sorting(n: int) -> list[tuple[int, int]]:
    """Return the neighbours to compare, one after the other: bubble sort."""
    return [(k, k + 1) for end in range(n - 1, 0, -1) for k in range(end)]


# --- symmetric matrices --------------------------------------------------------------------------------------------------------


def eigen(a: Columns, sweeps: int) -> tuple[Column, Columns]:
    """Return the eigenvalues of a symmetric matrix, smallest first, and the eigenvectors. Only the upper triangle is read."""
    n = len(a)
    places = [(i, j) for i in range(n) for j in range(i, n)]

    def sweep(flat: Column) -> Column:
        m = dict(zip(places, flat))
        vectors = [flat[len(places) + n * j : len(places) + n * (j + 1)] for j in range(n)]
        for p, q in _pairs(n):
            _rotate(m, vectors, p, q)
        return [*[m[place] for place in places], *[x for column in vectors for x in column]]

    flat = [*[a[j][i] for i, j in places], *[x for column in _identity(n) for x in column]]
    if n > _LARGEST_UNROLLED:
        flat = repeated(sweeps, flat, sweep)
    else:
        for _ in range(sweeps):
            flat = sweep(flat)
    vectors = [flat[len(places) + n * j : len(places) + n * (j + 1)] for j in range(n)]
    values = [flat[places.index((k, k))] for k in range(n)]
    for p, q in _sorting(n):
        swap = values[p] > values[q]
        values[p], values[q] = arithmetic.select(swap, values[q], values[p]), arithmetic.select(swap, values[p], values[q])
        vectors[p], vectors[q] = _exchange(swap, vectors[p], vectors[q])
    return values, vectors


def _rotate(m: dict[tuple[int, int], Scalar], vectors: Columns, p: int, q: int) -> None:
    """Make entry (p, q) of a symmetric matrix zero."""
    off = m[p, q]
    c, s, t = _rotation(m[p, p], m[q, q], off)
    m[p, p], m[q, q], m[p, q] = m[p, p] - t * off, m[q, q] + t * off, 0.0 * off
    for k in range(len(vectors)):
        if k not in (p, q):
            x, y = (min(k, p), max(k, p)), (min(k, q), max(k, q))
            m[x], m[y] = c * m[x] - s * m[y], s * m[x] + c * m[y]
    vectors[p], vectors[q] = _turn(vectors[p], vectors[q], c, s)


# --- singular values -----------------------------------------------------------------------------------------------------------


def singular(b: Columns, sweeps: int) -> tuple[Columns, Column, Columns]:
    """Return U, the singular values, largest first, and V of a 2x2 or 3x3 matrix.

    U and V are rotations, and the last value has the sign of the determinant; for 2x2 matrices it is not negative, and U reflects instead.
    """
    n = len(b)
    v = _identity(n)
    for p, q in _pairs(n) * sweeps:
        c, s, _ = _rotation(dot(b[p], b[p]), dot(b[q], b[q]), dot(b[p], b[q]))
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
        u[1] = [arithmetic.select(negative, -x, x) for x in u[1]]
        sigma[1] = arithmetic.abs(sigma[1])
    return u, sigma, v


def _unit(x: Column, otherwise: Column) -> Column:
    """Return x divided by its length, or ``otherwise`` where x is zero."""
    square = dot(x, x)
    scale = 1.0 / arithmetic.sqrt(arithmetic.select(square > 0, square, 1.0))
    return [arithmetic.select(square > 0, e * scale, o) for e, o in zip(x, otherwise)]


def _across(first: Column, x: Column) -> Column:
    """Return x without its component along a vector of length 1."""
    along = dot(first, x)
    return [e - along * f for e, f in zip(x, first)]


def _completed(b: Columns) -> Columns:
    """Return the rotation whose first columns have the directions of those of b, which are orthogonal, longest first."""
    if len(b) == 2:
        first = _unit(b[0], [1.0, 0.0])
        return [first, [-first[1], first[0]]]
    x, y, z = first = _unit(b[0], [1.0, 0.0, 0.0])
    # In a singular matrix, the second column is rounding errors of any direction. Then it has no component across the first, or one that is
    # lost when the other is removed. Some direction across the first replaces it: x or y is omitted, whichever is smaller.
    rest = _across(first, _unit(_across(first, b[1]), [0.0, 0.0, 0.0]))
    small = arithmetic.abs(x) < arithmetic.abs(y)
    other = [arithmetic.select(small, 0.0 * x, -z), arithmetic.select(small, -z, 0.0 * y), arithmetic.select(small, y, x)]
    sound = dot(rest, rest) > 0.5
    second = _unit([arithmetic.select(sound, e, o) for e, o in zip(rest, other)], [0.0, 1.0, 0.0])
    return [first, second, cross(first, second)]
