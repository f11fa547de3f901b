"""Small dense linear algebra on flat lists of scalars (numbers or run-time values), unrolled."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from spirograd.lang import scalar
from spirograd.lang.scalar import type_error


def dot(a: Sequence[Any], b: Sequence[Any]) -> Any:
    """The sum of products of two lists of one length."""
    return functools.reduce(scalar.add, [scalar.mul(x, y) for x, y in zip(a, b)])


def product(a: Sequence[Any], b: Sequence[Any], n: int, k: int, m: int) -> list[Any]:
    """The n x m product of an n x k and a k x m matrix, all row-major."""
    return [dot(a[i * k : (i + 1) * k], b[j::m]) for i in range(n) for j in range(m)]


def outer(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    """All products of an entry of a and one of b, row-major."""
    return [scalar.mul(x, y) for x in a for y in b]


def cross(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    """The cross product of two 3-vectors; of two 2-vectors its third component."""

    def component(i: int, j: int) -> Any:
        return scalar.sub(scalar.mul(a[i], b[j]), scalar.mul(a[j], b[i]))

    if len(a) == 2:
        return [component(0, 1)]
    return [component(1, 2), component(2, 0), component(0, 1)]


def _minor(a: Sequence[Any], n: int, row: int, column: int) -> list[Any]:
    return [a[i * n + j] for i in range(n) for j in range(n) if i != row and j != column]


def determinant(a: Sequence[Any], n: int) -> Any:
    """By Laplace expansion along the first row; n up to 4."""
    if n > 4:
        raise type_error(f"`determinant` takes matrices of up to 4x4, got {n}x{n}", "factorise larger matrices in a loop")
    if n == 1:
        return a[0]
    if n == 2:
        return scalar.sub(scalar.mul(a[0], a[3]), scalar.mul(a[1], a[2]))
    total: Any = None
    for j in range(n):
        term = scalar.mul(a[j], determinant(_minor(a, n, 0, j), n - 1))
        if total is None:
            total = term
        else:
            total = scalar.sub(total, term) if j % 2 else scalar.add(total, term)
    return total


def inverse(a: Sequence[Any], n: int) -> list[Any]:
    """Adjugate over determinant; n up to 4. Entries of a singular matrix come out infinite or NaN."""
    if n > 4:
        raise type_error(f"`inverse` takes matrices of up to 4x4, got {n}x{n}", "solve larger systems in a loop")
    if n == 1:
        return [scalar.truediv(1.0, a[0])]
    cofactors = [[_cofactor(a, n, i, j) for j in range(n)] for i in range(n)]
    whole = dot(a[:n], cofactors[0])
    return [scalar.truediv(cofactors[j][i], whole) for i in range(n) for j in range(n)]


def _cofactor(a: Sequence[Any], n: int, i: int, j: int) -> Any:
    value = determinant(_minor(a, n, i, j), n - 1)
    return -value if (i + j) % 2 else value
