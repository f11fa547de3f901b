"""Serial loops that update an element of memory in each iteration, which they carry in a register: against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]

N = 5
START = np.arange(2 * N, dtype=np.float32).reshape(N, 2)


def test_vectors_under_a_condition() -> None:
    """Both entries, in nested loops, of which the inner one may not run; sums in the order of the loop."""
    f, g = sg.Vector.field(2, sg.f32, N), sg.field(sg.f32, N)

    @sg.kernel
    def step(n: sg.i32, m: sg.i32):
        for i in range(N):
            for j in range(n):
                for k in range(m):
                    if i != j:
                        f[i] += sg.Vector([1.0, 0.5]) * g[j] + k
                if j == 1:
                    f[i][0] *= 2.0

    values = np.linspace(0.1, 0.9, N, dtype=np.float32)
    g.from_numpy(values)
    for n, m in ((0, 2), (1, 1), (N, 0), (N, 2)):
        f.from_numpy(START)
        step(n, m)
        expected = START.copy()
        for i in range(N):
            for j in range(n):
                for k in range(m):
                    if i != j:
                        expected[i] += np.float32([1.0, 0.5]) * values[j] + np.float32(k)
                if j == 1:
                    expected[i, 0] *= 2
        np.testing.assert_allclose(f.to_numpy(), expected, rtol=1e-6)


def test_arrays_that_are_one() -> None:
    """What another argument of the same memory reads in the loop is what was stored; integers, 64 bits where there are any."""
    array = sg.types.ndarray(sg.i32, 1)

    @sg.kernel
    def step(x: array, y: array, n: sg.i32):
        for i in x:
            for j in range(n):
                x[i] += y[i] + j

    @sg.kernel
    def own(x: array, n: sg.i32):
        for i in x:
            while x[i] < n:
                x[i] = 2 * x[i] + 1

    x, y = sg.ndarray(sg.i32, N), sg.ndarray(sg.i32, N)
    x.from_numpy(np.arange(N, dtype=np.int32))
    y.from_numpy(np.arange(N, dtype=np.int32))
    step(x, y, 3)
    np.testing.assert_array_equal(x.to_numpy(), np.arange(N) * 4 + 3)
    step(y, y, 3)
    np.testing.assert_array_equal(y.to_numpy(), [8 * k + 4 for k in range(N)])  # k, 2 k, 4 k + 1, 8 k + 4
    own(x, 12)
    np.testing.assert_array_equal(x.to_numpy(), [15, 15, 23, 15, 19])


def test_elements_that_other_iterations_write() -> None:
    """Such a loop has no carried elements: each iteration adds to its own element and to the next one."""
    s = sg.field(sg.i32, N + 1)

    @sg.kernel
    def step(n: sg.i32):
        for i in range(N):
            for j in range(n):
                s[i] += 1
                s[i + 1] += j

    step(4)
    np.testing.assert_array_equal(s.to_numpy(), [4, *[10] * (N - 1), 6])


@pytest.mark.parametrize("kind", ["bitmasked", "pointer"])
def test_sparse_fields(kind: str) -> None:
    """Cells of which a loop only might store elements do not become active."""
    s = sg.field(sg.f32)
    cells = getattr(sg.root, kind)(sg.i, N)
    cells.place(s)
    active = sg.field(sg.i32, N)

    @sg.kernel
    def step(n: sg.i32):
        for i in range(N):
            active[i] = int(s[i])
            for j in range(n):
                if (i + j) % 5 == 1:
                    s[i] += 2.0
            active[i] += sg.is_active(cells, [i])

    step(2)
    np.testing.assert_array_equal(s.to_numpy(), [2, 2, 0, 0, 0])
    np.testing.assert_array_equal(active.to_numpy(), [1, 1, 0, 0, 0])


def test_gradients() -> None:
    """The gradient of such a loop, which updates gradients in serial loops: against the derivative by hand."""
    x, y = (sg.field(sg.f32, N, needs_grad=True) for _ in range(2))

    @sg.kernel
    def sums():
        for i in range(N):
            for j in range(3):
                y[i] += x[i] * x[j]

    values = np.linspace(0.5, 1.5, N, dtype=np.float32)
    x.from_numpy(values)
    y.grad.fill(1.0)
    sums()
    np.testing.assert_allclose(y.to_numpy(), values * values[:3].sum(), rtol=1e-6)
    sums.grad()
    expected = np.full(N, values[:3].sum())
    expected[:3] += values.sum()
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-6)
