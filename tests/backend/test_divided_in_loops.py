"""Quotients and remainders of integers in loops, which the CPU divides as f64 outside of recurrences: exact for all operands."""

from __future__ import annotations

import numpy as np
import pytest

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.optimized]
ints = sg.types.ndarray(sg.i32, 1)
EDGES = [1, -1, 2, -2, 3, -3, 7, 46340, 46341, 65535, 65536, 2**30 - 1, 2**30, -(2**30), 2**31 - 2, 2**31 - 1, -(2**31) + 1, -(2**31)]


def operands() -> tuple[np.ndarray, np.ndarray]:
    """All pairs of edges, pairs next to multiples, and random ones."""
    random = np.random.default_rng(0)
    a, b = (np.array(edges, np.int64).ravel() for edges in np.meshgrid([0, *EDGES], EDGES))
    divisors = random.integers(1, 2**16, 500)
    multiples = divisors * random.integers(-(2**15), 2**15, 500)
    near = [multiples + d for d in (-1, 0, 1)]
    wide = random.integers(-(2**31), 2**31, (2, 1000))
    a, b = np.concatenate([a, *near, wide[0]]), np.concatenate([b, *[divisors] * 3, wide[1]])
    fits = (b != 0) & ~((a == -(2**31)) & (b == -1))
    return a[fits].astype(np.int32), b[fits].astype(np.int32)


def test_quotients_and_remainders() -> None:
    a, b = operands()
    results = [np.zeros_like(a) for _ in range(3)]

    @sg.kernel
    def run(a: ints, b: ints, floored: ints, rest: ints, truncated: ints):
        for i in range(a.shape[0]):
            floored[i] = a[i] // b[i]
            rest[i] = a[i] % b[i]
            truncated[i] = sg.raw_mod(a[i], b[i])

    run(a, b, *results)
    x, y = a.astype(np.int64), b.astype(np.int64)
    np.testing.assert_array_equal(results[0], x // y)
    np.testing.assert_array_equal(results[1], x % y)
    np.testing.assert_array_equal(results[2], np.fmod(x, y))


def test_lanes_of_a_loop_that_diverges() -> None:
    """Long bodies run as lanes of vectors, some of which have ended."""
    n = np.arange(100, dtype=np.int32)
    out = np.zeros_like(n)

    @sg.kernel
    def run(n: ints, out: ints):
        for i in range(n.shape[0]):
            total, k = 0, 1
            while k < n[i]:
                x = n[i] // k
                for _ in sg.static(range(40)):
                    x = (x * 3 + k) ^ (x >> 2)
                total += x & 1023
                k += 1
            out[i] = total

    run(n, out)

    def one(n: int) -> int:
        total = 0
        for k in range(1, n):
            x = n // k
            for _ in range(40):
                x = ((x * 3 + k + 2**31) % 2**32 - 2**31) ^ (x >> 2)
            total += x & 1023
        return total

    np.testing.assert_array_equal(out, [one(int(v)) for v in n])


def test_recurrences() -> None:
    a, b = operands()
    a, b = np.abs(a[:400].astype(np.int64)) % 2**31, np.abs(b[:400].astype(np.int64)) % 2**31
    out = np.zeros(400, np.int32)

    @sg.kernel
    def run(a: ints, b: ints, out: ints):
        for i in range(a.shape[0]):
            x, y = a[i], b[i]
            while y != 0:
                x, y = y, x % y
            out[i] = x

    run(a.astype(np.int32), b.astype(np.int32), out)
    np.testing.assert_array_equal(out, np.gcd(a, b))
