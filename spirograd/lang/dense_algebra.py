"""Small dense linear algebra on flat lists of scalars (numbers or run-time values), unrolled."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

from spirograd.base.dtypes import DType, f32, f64, promote, u32, u64
from spirograd.ir import ops as ir
from spirograd.lang import arithmetic, scalar
from spirograd.lang.scalar import Scalar, Value, type_error


def dot(a: Sequence[Scalar], b: Sequence[Scalar]) -> Scalar:
    """Return the sum of products of two lists of one length."""
    return functools.reduce(scalar.add, [scalar.mul(x, y) for x, y in zip(a, b)])


def product(a: Sequence[Scalar], b: Sequence[Scalar], n: int, k: int, m: int) -> list[Scalar]:
    """Return the n x m product of an n x k and a k x m matrix, all row-major."""
    return [dot(a[i * k : (i + 1) * k], b[j::m]) for i in range(n) for j in range(m)]


def outer(a: Sequence[Scalar], b: Sequence[Scalar]) -> list[Scalar]:
    """Return all products of an entry of a and one of b, row-major."""
    return [scalar.mul(x, y) for x in a for y in b]


def cross(a: Sequence[Scalar], b: Sequence[Scalar]) -> list[Scalar]:
    """Return the cross product of two 3-vectors; of two 2-vectors its third component."""

    def component(i: int, j: int) -> Scalar:
        return scalar.sub(scalar.mul(a[i], b[j]), scalar.mul(a[j], b[i]))

    if len(a) == 2:
        return [component(0, 1)]
    return [component(1, 2), component(2, 0), component(0, 1)]


def total(a: Sequence[Scalar]) -> Scalar:
    """Return the sum of a list."""
    return functools.reduce(scalar.add, a)


LARGEST = 8  # matrix whose determinant and inverse are unrolled


def _check_size(name: str, n: int) -> None:
    if n > LARGEST:
        raise type_error(f"`{name}` takes matrices of up to {LARGEST}x{LARGEST}, got {n}x{n}", "factorise larger matrices in a loop")


def determinant(a: Sequence[Scalar], n: int) -> Scalar:
    """Return the determinant by Laplace expansion; n up to 8. There are no divisions, so singular matrices and integers are no special
    cases."""
    _check_size("determinant", n)
    return _minors(a, n, range(n))


def _minors(a: Sequence[Scalar], n: int, rows: Sequence[int], left_out: int = -1) -> Scalar:
    """Return the determinant of some rows of an n x n matrix without the column ``left_out``. Minors of the last rows are shared."""
    columns = tuple([j for j in range(n) if j != left_out])
    known: dict[tuple[int, ...], Scalar] = {(j,): a[rows[-1] * n + j] for j in columns}
    for size in range(2, len(rows) + 1):
        row = rows[len(rows) - size]
        for chosen in itertools.combinations(columns, size):
            terms = [scalar.mul(a[row * n + j], known[chosen[:k] + chosen[k + 1 :]]) for k, j in enumerate(chosen)]
            known[chosen] = _alternating(terms)
    return known[columns]


def _alternating(terms: Sequence[Scalar]) -> Scalar:
    """Return the sum of terms, every other one negative."""
    result = terms[0]
    for k, term in enumerate(terms[1:]):
        result = scalar.add(result, term) if k % 2 else scalar.sub(result, term)
    return result


# For a type of 32 or 64 bits: the unsigned integer of its width, and the least and the largest exponent, with their bias, for which the
# power of two and its reciprocal are normal numbers. The bits of a reciprocal are those of both limits together, minus those of the power.
_POWERS = {32: (u32, 23, 2, 252), 64: (u64, 52, 2, 2044)}


def power_of_two(entries: Sequence[Scalar], t: DType) -> tuple[Scalar, Scalar]:
    """Return the largest power of two that is not above the size of the largest entry, and its reciprocal, of type ``t``, f32 or f64.
    Dividing by it is exact. Both are computed from the exponents of the entries, which takes no division."""
    word, digits, low, high = _POWERS[t.bits]
    if not any(isinstance(e, Value) for e in entries):
        bias = (low + high) // 2
        size = max(abs(float(e)) for e in entries)
        exponent = high if math.isinf(size) else min(max(math.frexp(size)[1] - 1 + bias, low), high) if size else low
        return 2.0 ** (exponent - bias), 2.0 ** (bias - exponent)
    mask = scalar.constant((low + high + 1) << digits, word)
    exponents = [scalar.bit_and(scalar.bit_cast(scalar.cast(e, t), word), mask) for e in entries]
    least, largest = [scalar.constant(n << digits, word) for n in (low, high)]
    bits = arithmetic.min(arithmetic.max(*exponents, least), largest)
    reciprocal = scalar.sub(scalar.constant((low + high) << digits, word), bits)
    return scalar.bit_cast(bits, t), scalar.bit_cast(reciprocal, t)


def inverse(a: Sequence[Scalar], n: int) -> list[Scalar]:
    """Return the inverse: up to 4x4 adjugate over determinant, up to 8x8 by elimination. Entries of a singular matrix come out infinite or
    NaN."""
    _check_size("inverse", n)
    if n == 1:
        return [scalar.truediv(1.0, a[0])]
    if n > 4:
        identity = [[1.0 if i == j else 0.0 for j in range(n)] for i in range(n)]
        return [x for row in solution([list(a[i * n : (i + 1) * n]) for i in range(n)], identity) for x in row]
    return _by_adjugate(a, n)


def _by_adjugate(a: Sequence[Scalar], n: int) -> list[Scalar]:
    """Return the inverse as adjugate over determinant.

    Each row is divided by a power of two first, so that products of entries are neither infinite nor lost. So is the determinant, so that
    its reciprocal is finite: one division serves all entries. f16 is computed in f32.
    """
    runs = any(isinstance(x, Value) for x in a)
    t = wanted = functools.reduce(promote, [scalar.to_float(x).dtype for x in a]) if runs else f64
    if t.bits < 32:
        t = f32
    floats = [scalar.cast(scalar.to_float(x), t) for x in a] if runs else a
    parts, scaled = [], []
    for row in (floats[i * n : (i + 1) * n] for i in range(n)):
        parts.append(_reciprocal_power(row, t))
        scaled += [scalar.mul(x, parts[-1]) for x in row]
    cofactors = [[_cofactor(scaled, n, i, j) for j in range(n)] for i in range(n)]
    determinant_value = dot(scaled[:n], cofactors[0])
    part = _reciprocal_power([determinant_value], t)
    reciprocal = scalar.truediv(1.0, scalar.mul(determinant_value, part))
    entries = [scalar.mul(scalar.mul(cofactors[j][i], reciprocal), part) for i in range(n) for j in range(n)]
    result = [scalar.mul(entry, parts[k % n]) for k, entry in enumerate(entries)]
    return [scalar.cast(x, wanted) for x in result] if runs else result


def _reciprocal_power(entries: Sequence[Scalar], t: DType) -> Scalar:
    """Return the reciprocal of the power of two that belongs to ``entries``. It is a constant for derivatives."""
    _, reciprocal = power_of_two(entries, t)
    return scalar.emit(ir.stop_grad, reciprocal) if isinstance(reciprocal, Value) else reciprocal


def _cofactor(a: Sequence[Scalar], n: int, i: int, j: int) -> Scalar:
    value = _minors(a, n, [k for k in range(n) if k != i], j)
    return -value if (i + j) % 2 else value


def solution(a: Sequence[Sequence[Scalar]], b: Sequence[Sequence[Scalar]]) -> list[list[Scalar]]:
    """Return the rows of x with a @ x = b, by Gaussian elimination with partial pivoting; infinite or NaN where ``a`` is singular."""
    n = len(a)
    rows: list[list[Scalar]] = [[*x, *y] for x, y in zip(a, b)]
    for k in range(n):
        for i in range(k + 1, n):
            other: Scalar = rows[i][k].__abs__()
            pivot: Scalar = rows[k][k].__abs__()
            larger = scalar.greater(other, pivot)
            pairs = list(zip(rows[k], rows[i]))
            rows[k][k:] = [scalar.select(larger, y, x) for x, y in pairs[k:]]
            rows[i][k:] = [scalar.select(larger, x, y) for x, y in pairs[k:]]
        for i in range(k + 1, n):
            factor = scalar.truediv(rows[i][k], rows[k][k])
            rows[i][k + 1 :] = [scalar.sub(y, scalar.mul(factor, x)) for x, y in zip(rows[k][k + 1 :], rows[i][k + 1 :])]
    for k in reversed(range(n)):
        for j in range(n, len(rows[k])):
            known = [scalar.mul(rows[k][i], rows[i][j]) for i in range(k + 1, n)]
            rows[k][j] = scalar.truediv(functools.reduce(scalar.sub, known, rows[k][j]), rows[k][k])
    return [row[n:] for row in rows]
