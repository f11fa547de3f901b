"""Stencils that skip, clamp and wrap their neighbours at the ends of rows, against NumPy's indexing."""

from __future__ import annotations

import itertools

import needs
import numpy as np
import pytest
from cases import by_day

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]

SHAPES = [(2, 2), (2, 40), (3, 16), (5, 17), (7, 129), (40, 2), (3, 8), (130, 400)]
LARGE = 4096  # more of these, the interpreter, which treats all elements alike, has in long runs


def data(shape: tuple[int, ...]) -> np.ndarray:
    return (np.arange(int(np.prod(shape))) * 37 % 101).astype(np.int32).reshape(shape)


def shifted(x: np.ndarray, by: int, how: str) -> np.ndarray:
    """Element j + ``by`` of each row."""
    j = np.arange(x.shape[-1]) + by
    return x[..., np.clip(j, 0, x.shape[-1] - 1) if how == "clip" else j % x.shape[-1]]


def on_back_ends(cases, size) -> pytest.MarkDecorator:
    """Each of ``cases``, whose sizes ``size`` gives, on each back end."""
    both = by_day(itertools.product(needs.ARCHS, cases), lambda arch, case: arch != "interpreter" or size(case) < LARGE)
    return pytest.mark.parametrize("arch,case", both, indirect=["arch"], ids=str)


@on_back_ends(SHAPES, np.prod)
@pytest.mark.parametrize("memory", ["field", "ndarray"])
def test_rows(case, memory):
    shape = case
    if memory == "field":
        x, y, z, w = (sg.field(sg.i32, shape=shape) for _ in range(4))
        kind = sg.template()
    else:
        x, y, z, w = (sg.ndarray(sg.i32, shape) for _ in range(4))
        kind = sg.types.NDArray[sg.i32, 2]

    @sg.kernel
    def guarded(x: kind, y: kind):
        for i, j in x:
            if i > 0 and i < x.shape[0] - 1 and j > 0 and j < x.shape[1] - 1:
                y[i, j] = x[i - 1, j] + x[i + 1, j] + 2 * x[i, j - 1] + 3 * x[i, j + 1]

    @sg.kernel
    def clamped(x: kind, y: kind):
        n = x.shape[1]
        for i, j in x:
            y[i, j] = x[i, sg.max(j - 2, 0)] + 10 * x[i, sg.min(j + 1, n - 1)] + 100 * x[i, sg.min(n - 1, sg.max(0, j + 3))]

    @sg.kernel
    def wrapped(x: kind, y: kind):
        n = x.shape[1]
        for i, j in x:
            y[i, j] = x[i, (j - 1) % n] + 10 * x[i, (j + 2) % n] + 100 * x[i, (n + j - 1) % n]

    a = data(shape)
    x.from_numpy(a)
    for _ in range(2):
        guarded(x, y)
        clamped(x, z)
        wrapped(x, w)
        expected = np.zeros(shape, np.int32)
        expected[1:-1, 1:-1] = a[:-2, 1:-1] + a[2:, 1:-1] + 2 * a[1:-1, :-2] + 3 * a[1:-1, 2:]
        assert (y.to_numpy() == expected).all()
        assert (z.to_numpy() == shifted(a, -2, "clip") + 10 * shifted(a, 1, "clip") + 100 * shifted(a, 3, "clip")).all()
        assert (w.to_numpy() == shifted(a, -1, "wrap") + 10 * shifted(a, 2, "wrap") + 100 * shifted(a, -1, "wrap")).all()
        a = a + 1
        x.from_numpy(a)


@on_back_ends([1, 2, 15, 16, 17, 64, 100, 4096], int)
def test_comparisons(case):
    """Every comparison with numbers at both ends and in the middle, both ways round; what is not met is counted, too."""
    n = case
    x = sg.field(sg.i32, shape=(3, n))
    y = sg.field(sg.i32, shape=(3, n))
    bounds = (-1, 0, 1, 7, 9, n // 2, n - 9, n - 2, n - 1, n)

    @sg.kernel
    def count():
        for i, j in x:
            total = 0
            for k in sg.static(bounds):
                total = total * 2 + (j + 1 < k) + (j <= k) + (j - 2 > k) + (k <= j) + (j == k) + (j + 2 != k) + (k > j - 1)
            x[i, j] = total
            if j == 0 or j == n - 1:
                y[i, j] = -1
            elif j < 3:
                y[i, j] = j
            else:
                y[i, j] = 2 * j

    count()
    j = np.arange(n)
    total = np.zeros(n, np.int32)
    for k in bounds:
        total = total * 2 + sum(c.astype(np.int32) for c in (j + 1 < k, j <= k, j - 2 > k, k <= j, j == k, j + 2 != k, k > j - 1))
    assert (x.to_numpy() == total).all()
    assert (y.to_numpy() == np.where((j == 0) | (j == n - 1), -1, np.where(j < 3, j, 2 * j))).all()


@pytest.mark.parametrize(("begin", "end"), [(0, 0), (0, 1), (-20, 30), (5, 6), (0, 1000), (-7, -2), (3, 70000)])
def test_one_axis(begin, end):
    n = 70000
    x = sg.field(sg.i32, shape=n)
    y = sg.ndarray(sg.i32, n + 100)
    x.from_numpy(data((n,)))

    @sg.kernel
    def known():
        for i in range(begin, end):
            left = x[i - 1] if i > 0 else 5
            right = x[i + 1] if i + 1 >= 0 and i + 1 < n else 7
            y[i + 50] = left + 10 * right

    @sg.kernel
    def given(begin: sg.i32, end: sg.i32, y: sg.types.NDArray[sg.i32, 1]):
        for i in range(begin, end):
            if i + 50 < y.shape[0] - 1 and i + 50 > 0:
                y[i + 50] += sg.max(i - 1, 0) + sg.min(i + 1, n - 1)

    known()
    given(begin, end, y)
    a = data((n,)).astype(np.int64)
    i = np.arange(begin, end)
    expected = np.zeros(n + 100, np.int64)
    left = np.where(i > 0, a[np.clip(i - 1, 0, n - 1)], 5)
    right = np.where((i + 1 >= 0) & (i + 1 < n), a[np.clip(i + 1, 0, n - 1)], 7)
    expected[i + 50] = left + 10 * right + np.maximum(i - 1, 0) + np.minimum(i + 1, n - 1)
    assert (y.to_numpy() == expected).all()


@pytest.mark.parametrize("begin", [2**31 - 20, -(2**31)])
def test_counters_that_neighbours_of_overflow(begin):
    """`i + 1` wraps around in the last iterations, and `i - 1` in the first ones: the comparison sees what the arithmetic gives."""
    x = sg.ndarray(sg.i32, 19)

    @sg.kernel
    def run(begin: sg.i32, end: sg.i32, x: sg.types.NDArray[sg.i32, 1]):
        for i in range(begin, end):
            x[i - begin] = (i + 3 > 0) + 2 * (i - 1 < 1) + 4 * (i + 3 < 2147483647)

    run(begin, begin + 19, x)
    i = np.arange(19, dtype=np.int64) + begin
    wrap = lambda v: (v + 2**31) % 2**32 - 2**31  # noqa: E731
    assert (x.to_numpy() == (wrap(i + 3) > 0) + 2 * (wrap(i - 1) < 1) + 4 * (wrap(i + 3) < 2**31 - 1)).all()


def test_three_axes_and_long_indices():
    shape = (4, 5, 70)
    x = sg.field(sg.i64, shape=shape)

    @sg.kernel
    def run():
        for i, j, k in x:
            inside = 0 < i < 3 and 0 < j < 4 and 0 < k < 69
            x[i, j, k] = sg.i64(k) + 1000 if inside else -sg.i64(k)

    run()
    i, j, k = np.indices(shape)
    inside = (i > 0) & (i < 3) & (j > 0) & (j < 4) & (k > 0) & (k < 69)
    assert (x.to_numpy() == np.where(inside, k + 1000, -k)).all()
