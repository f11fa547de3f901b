"""Which parallel loops run in lockstep on the CPU, and what refuses to: where the order of iterations is seen, or vectors cost more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.analysis.loop_costs import has_masks
from spirograd.llvmgen.toolchain import host_caps

ints, floats = sg.types.ndarray(sg.i32, 1), sg.types.ndarray(sg.f32, 1)
pytestmark = [
    pytest.mark.optimized,
    pytest.mark.archs("cpu"),
    pytest.mark.usefixtures("session"),
    pytest.mark.skipif(not has_masks(host_caps()), reason="the CPU has no masked loads and stores"),
]


def lanes(kernel: Any, *args: Any) -> bool:
    kernel(*args)
    return "<16 x " in kernel.llvm()


def newton() -> tuple[Any, ...]:
    @sg.kernel
    def run(x: floats):
        for i in range(x.shape[0]):
            v = x[i]
            while v * v > 2.0:
                v = 0.5 * (v + 1.0 / v)
            x[i] = v

    return run, np.ones(20, np.float32)


def search() -> tuple[Any, ...]:
    @sg.kernel
    def run(table: ints, x: ints):
        for i in range(x.shape[0]):
            low, high = 0, table.shape[0]
            while low < high:
                middle = (low + high) // 2
                if table[middle] < x[i]:
                    low = middle + 1
                else:
                    high = middle
            x[i] = low

    return run, np.arange(50, dtype=np.int32), np.arange(20, dtype=np.int32)


def divisors() -> tuple[Any, ...]:
    @sg.kernel
    def run(x: ints):
        for i in range(x.shape[0]):
            d = 2
            while d * d <= i and i % d != 0:
                d += 1
            x[i] = d

    return run, np.zeros(20, np.int32)


def primes() -> tuple[Any, ...]:
    """Few lanes are active for long, and all divide: the remainder of Python costs more operations than `%` shows."""

    @sg.func
    def is_prime(n: int):
        result = True
        for k in range(2, int(n**0.5) + 1):
            if n % k == 0:
                result = False
                break
        return result

    @sg.kernel
    def run(n: int) -> int:
        count = 0
        for k in range(2, n):
            if is_prime(k):
                count += 1
        return count

    return run, 100


def sorting() -> tuple[Any, ...]:
    @sg.kernel
    def run(x: sg.types.ndarray(sg.i32, 2)):
        for i in range(x.shape[0]):
            for a in range(1, x.shape[1]):
                b = a
                while b > 0 and x[i, b] < x[i, b - 1]:
                    x[i, b], x[i, b - 1] = x[i, b - 1], x[i, b]
                    b -= 1

    return run, np.zeros((20, 5), np.int32)


def printing() -> tuple[Any, ...]:
    @sg.kernel
    def run(x: floats):
        for i in range(x.shape[0]):
            v = x[i]
            while v * v > 2.0:
                v = 0.5 * (v + 1.0 / v)
            print(i, v)

    return run, np.ones(3, np.float32)


def tickets() -> tuple[Any, ...]:
    @sg.kernel
    def run(x: floats, n: ints):
        for i in range(x.shape[0]):
            v = x[i]
            while v * v > 2.0:
                v = 0.5 * (v + 1.0 / v) + 0.0 * sg.atomic_add(n[0], 1)
            x[i] = v

    return run, np.ones(20, np.float32), np.zeros(1, np.int32)


def float_sums() -> tuple[Any, ...]:
    @sg.kernel
    def run(x: floats, total: floats):
        for i in range(x.shape[0]):
            v = x[i]
            for k in range(50):
                v = 0.5 * (v + 1.0 / v) + v * v * 0.01 + k
                if v > 1.0:
                    total[i % 2] += v
            x[i] = v

    return run, np.ones(20, np.float32), np.zeros(2, np.float32)


def ragged_sums() -> tuple[Any, ...]:
    """Each iteration adds to a range of elements, as derivatives of ragged nests do."""

    @sg.kernel
    def run(x: floats, starts: ints, total: floats):
        for i in range(x.shape[0]):
            v = x[i]
            for k in range(starts[i], starts[i + 1]):
                w = v + 1.0
                for _ in sg.static(range(6)):
                    w = w * 2.0 if w < 100.0 else w - 90.0
                v = w
                total[k // 4] += v

    starts = np.cumsum([0, *(3 * k % 7 for k in range(50))]).astype(np.int32)
    return run, np.arange(50, dtype=np.float32), starts, np.zeros(starts[-1] // 4 + 1, np.float32)


def test_sums_under_a_mask() -> None:
    """Elements are shared by several lanes: the sums are of integers, and exact."""
    run, x, starts, total = ragged_sums()
    assert lanes(run, x, starts, total)
    want = np.zeros_like(total)
    for i, v in enumerate(x):
        for k in range(starts[i], starts[i + 1]):
            v += 1
            for _ in range(6):
                v = v * 2 if v < 100 else v - 90
            want[k // 4] += v
    np.testing.assert_array_equal(total, want)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (newton, True),
        (ragged_sums, True),
        (search, True),
        (divisors, False),
        (primes, False),
        (sorting, False),
        (printing, False),
        (tickets, False),
        (float_sums, False),
    ],
    ids=lambda p: getattr(p, "__name__", str(p)),
)
def test_choice(program: Callable[[], tuple[Any, ...]], expected: bool) -> None:
    run, *args = program()
    assert lanes(run, *args) is expected


def test_checks_come_in_order() -> None:
    """With checks, the first iteration that fails is reported, whatever later ones do."""
    sg.init(arch=sg.cpu, debug=True, cpu_max_num_threads=1)

    @sg.kernel
    def run(x: ints):
        for i in range(20):
            k = 0
            while k < 30:
                k += 1
                if k == 20 - i // 7:
                    x[i + k * 10] = i

    with pytest.raises(AssertionError, match="200"):
        run(np.zeros(30, np.int32))
        sg.sync()
