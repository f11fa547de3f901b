"""64-bit integers on devices without them, as pairs of words: every operation agrees with NumPy, in sessions restricted to such devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.archs("vulkan", "wgpu")

_EDGES = [
    0,
    1,
    2,
    3,
    31,
    32,
    33,
    63,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**32 + 1,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 2,
    2**64 - 1,
]
_SAMPLES = 40


@pytest.fixture(autouse=True)
def words(arch: str) -> None:
    sg.init(arch=arch, profile={"vulkan": "bare", "wgpu": "browser"}[arch])
    assert not sg.lang.context.session().device.caps.int64


def operands(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of edges, and random numbers of all lengths."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(0, 64, (2, _SAMPLES)).astype(np.uint64)
    random = rng.integers(0, 2**64, (2, _SAMPLES), dtype=np.uint64) >> lengths
    numbers = np.array(_EDGES, np.uint64)
    edges = np.array(np.meshgrid(numbers, numbers)).reshape(2, -1)
    a, b = np.concatenate([edges, random], axis=1)
    return a.view(dtype), b.view(dtype)


def _quotient(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quotients rounded down and remainders of exact integers; 0 for a divisor of 0."""
    pairs = [divmod(int(x), int(y)) if y else (0, 0) for x, y in zip(a, b)]
    quotients, remainders = ([number % 2**64 for number in column] for column in zip(*pairs))
    return np.array(quotients, np.uint64).view(a.dtype), np.array(remainders, np.uint64).view(a.dtype)


@pytest.mark.parametrize("signed", [True, False])
def test_operators(signed: bool) -> None:
    t, dtype = (sg.i64, np.int64) if signed else (sg.u64, np.uint64)
    a, b = operands(dtype)
    n = len(a)
    names = ("add", "sub", "mul", "div", "mod", "and", "or", "xor", "not", "neg", "shl", "shr", "min", "max", "abs", "select")
    x, y, out = sg.field(t, n), sg.field(t, n), sg.field(t, (n, len(names)))
    compared = sg.field(sg.i32, (n, 6))

    @sg.kernel
    def run():
        for i in x:
            p, q = x[i], y[i]
            count = q & 63
            results = sg.Vector([p + q, p - q, p * q, p // q, p % q, p & q, p | q, p ^ q, ~p, -p, p << count, p >> count,
                                 min(p, q), max(p, q), abs(p), sg.select(p < q, p, q)])  # fmt: skip
            for k in sg.static(range(len(names))):
                out[i, k] = results[k]
            flags = sg.Vector([p == q, p != q, p < q, p <= q, p > q, p >= q])
            for k in sg.static(range(6)):
                compared[i, k] = sg.cast(flags[k], sg.i32)

    x.from_numpy(a)
    y.from_numpy(b)
    run()
    count = b & dtype(63)
    with np.errstate(all="ignore"):
        quotient, remainder = _quotient(a, b)
        if signed:  # The smallest number divided by -1 is itself.
            assert (quotient[(a == a.min()) & (b == -1)] == a.min()).all()
        negated = (~a.view(np.uint64) + np.uint64(1)).view(dtype)
        wanted = [a + b, a - b, a * b, quotient, remainder, a & b, a | b, a ^ b, ~a, negated, a << count, a >> count,
                  np.minimum(a, b), np.maximum(a, b), np.abs(a), np.where(a < b, a, b)]  # fmt: skip
    for name, got, want in zip(names, out.to_numpy().T, wanted):
        np.testing.assert_array_equal(got, want, name)
    np.testing.assert_array_equal(compared.to_numpy().T, [a == b, a != b, a < b, a <= b, a > b, a >= b])


def test_conversions() -> None:
    a, _ = operands(np.int64)
    n = len(a)
    x, reals, narrow, wide = sg.field(sg.i64, n), sg.field(sg.f32, (n, 2)), sg.field(sg.i32, n), sg.field(sg.i64, (n, 4))

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            unsigned = sg.cast(v, sg.u64)
            reals[i, 0], reals[i, 1] = sg.cast(v, sg.f32), sg.cast(unsigned, sg.f32)
            narrow[i] = sg.cast(v, sg.i32)
            wide[i, 0], wide[i, 1] = sg.cast(narrow[i], sg.i64), sg.cast(sg.cast(v, sg.u32), sg.i64)
            wide[i, 2] = sg.cast(reals[i, 0], sg.i64)
            wide[i, 3] = sg.cast(reals[i, 0] * 0.37, sg.i64)

    x.from_numpy(a)
    run()
    as_floats = a.astype(np.float32)
    np.testing.assert_array_equal(reals.to_numpy().T, [as_floats, a.view(np.uint64).astype(np.float32)])
    np.testing.assert_array_equal(narrow.to_numpy(), a.astype(np.int32))
    low, unsigned, back, part = wide.to_numpy().T
    np.testing.assert_array_equal(low, a.astype(np.int32).astype(np.int64))
    np.testing.assert_array_equal(unsigned, a.astype(np.uint32).astype(np.int64))
    saturated = [min(max(int(v), -(2**63)), 2**63 - 1) for v in as_floats]
    np.testing.assert_array_equal(back, np.array(saturated, np.int64))
    np.testing.assert_array_equal(part, (as_floats * np.float32(0.37)).astype(np.int64))


def test_control_flow_and_arguments() -> None:
    """Loops over i64, loop-carried values, reductions, vectors that are indexed at run time, arguments and return values."""
    x = sg.field(sg.i64, 100)

    @sg.func
    def collatz(n: sg.i64) -> sg.i64:
        steps = sg.cast(0, sg.i64)
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return steps

    @sg.kernel
    def run(first: sg.i64, count: sg.i64) -> sg.i64:
        total = sg.cast(0, sg.i64)
        for i in x:
            v = sg.Vector([first, first * 3, first - count], sg.i64)
            inner = sg.cast(0, sg.i64)
            for j in range(first, first + count):
                inner += j * v[i % 3]
            x[i] = inner + collatz(i + 1)
            total += x[i]
        return total

    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    first, count = 2**33 + 5, 4
    found = run(first, count)
    values = [first, first * 3, first - count]
    wanted = [sum(j * values[i % 3] for j in range(first, first + count)) + steps(i + 1) for i in range(100)]
    wrapped = np.array([w % 2**64 for w in wanted], np.uint64).view(np.int64)
    np.testing.assert_array_equal(x.to_numpy(), wrapped)
    assert found == int(np.array([sum(wanted) % 2**64], np.uint64).view(np.int64)[0])


def test_atomics() -> None:
    """They run under locks, on the words of the element."""
    x = sg.field(sg.i64, 2)

    @sg.kernel
    def run():
        for i in range(100):
            sg.atomic_add(x[i % 2], sg.cast(i, sg.i64) * 2**40)

    run()
    assert x.to_numpy().tolist() == [sum(range(k, 100, 2)) * 2**40 for k in range(2)]
