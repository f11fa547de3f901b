"""`for` over index spaces: `ndrange`, `grouped`, fields and arrays; in parallel and in order. Python is the reference."""

import numpy as np
import pytest
from backend.twin import run_both

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]
INTS = sg.types.ndarray(sg.i32, 1)
PLANE = sg.types.ndarray(sg.i32, 2)


def ints(n: int) -> np.ndarray:
    return np.zeros(n, np.int32)


def test_ndrange(arch: str) -> None:
    @sg.kernel
    def run(n: sg.i32, out: PLANE, flat: INTS):
        for i, j in sg.ndrange(n, 5):
            out[i, j] += i * 10 + j + 1
        for i, j in sg.ndrange((1, n), (2, 4)):
            out[i, j] += 1000
        for i, j, k in sg.ndrange((-1, 1), 3, (n - 2, n)):
            flat[(i + 1) * 6 + j * 2 + k - n + 2] += 100 + i + j + k

    for n in (2, 3, 6):
        run_both(run, n, np.zeros((6, 6), np.int32), ints(12))


def test_empty_ndrange(arch: str) -> None:
    @sg.kernel
    def run(n: sg.i32, out: INTS):
        for i in sg.ndrange(n):
            out[i] += 1000 * i
        for i, j in sg.ndrange(n, 4):
            out[i] += 1
        for i, j in sg.ndrange(4, (2, n)):
            out[i] += 10
        for k in range(2):
            for i, j in sg.ndrange((3, n), 2):
                out[i] += 100

    for n in (0, 2, 4):
        out = ints(6)
        run(n, out)
        want = ints(6)
        want[:n] += 4 + 1000 * np.arange(n, dtype=np.int32)
        want[:4] += 10 * max(n - 2, 0)
        want[3:n] += 400
        np.testing.assert_array_equal(out, want)


def test_inner_ndrange_and_its_order(arch: str) -> None:
    """In order, the last index fastest; `axes` changes the order, and the indices keep their places."""

    @sg.kernel
    def run(out: INTS, n: sg.i32):
        for _ in range(1):
            at = 0
            for i, j in sg.ndrange(2, (1, n)):
                out[at] = i * 10 + j
                at += 1
            for i, j in sg.ndrange(2, 3, axes=(1, 0)):
                out[at] = i * 10 + j
                at += 1
            for i, j, k in sg.ndrange(2, 2, 2, axes=(2, 0, 1)):
                if i == 1 and k == 0:
                    continue
                out[at] = i * 100 + j * 10 + k
                at += 1

    run_both(run, ints(24), 4)


def test_grouped(arch: str) -> None:
    x = sg.field(sg.i32, shape=(3, 4))
    y = sg.field(sg.i32, shape=5)

    @sg.kernel
    def run(out: PLANE, n: sg.i32):
        for index in sg.grouped(x):
            x[index] = index[0] * 10 + index[1]
        for index in sg.grouped(sg.ndrange(n, (1, 3))):
            out[index] = index.x + index.y * 100
            out[index + 1] += 7
        for index in sg.grouped(y):
            y[index] = index[0] * 2
        for index in sg.grouped(out):
            out[index] += index.sum()

    out = np.zeros((4, 5), np.int32)
    run(out, 2)
    i, j = np.indices((3, 4))
    np.testing.assert_array_equal(x.to_numpy(), i * 10 + j)
    np.testing.assert_array_equal(y.to_numpy(), np.arange(5) * 2)
    i, j = np.indices((4, 5))
    base = np.where((i < 2) & (j >= 1) & (j < 3), i + j * 100, 0)
    # The second loop stores and adds in any order where its cells overlap: only the others are certain.
    certain = ~((i == 1) & (j == 2))
    plus = np.where((i >= 1) & (i < 3) & (j >= 2) & (j < 4), 7, 0)
    np.testing.assert_array_equal(out[certain], (base + plus + i + j)[certain])


@pytest.mark.parametrize("shape", [(), (6,), (3, 4), (2, 3, 4)], ids=str)
def test_loops_over_fields_and_arrays(arch: str, shape: tuple[int, ...]) -> None:
    x = sg.field(sg.f32, shape=shape)
    v = sg.Vector.field(2, sg.i32, shape=shape)
    a = sg.ndarray(sg.i32, shape=shape)
    n = len(shape)

    @sg.kernel
    def run(b: sg.types.ndarray(sg.i32, n)):
        if sg.static(n == 0):
            x[None] = 5
            v[None] = [1, 2]
        elif sg.static(n == 1):
            for i in x:
                x[i] = i + 5
            for i in v:
                v[i] = [i, -i]
            for i in b:
                b[i] = i * 3
        elif sg.static(n == 2):
            for i, j in x:
                x[i, j] = i * 10 + j + 5
            for i, j in v:
                v[i, j] = [i, -j]
            for i, j in b:
                b[i, j] = i * 30 + j
        else:
            for i, j, k in x:
                x[i, j, k] = i * 100 + j * 10 + k + 5
            for i, j, k in v:
                v[i, j, k] = [i + j, -k]
            for i, j, k in b:
                b[i, j, k] = i * 300 + j * 30 + k

    run(a)
    where = np.indices(shape)
    scale = [[], [1], [10, 1], [100, 10, 1]][n]
    np.testing.assert_array_equal(x.to_numpy(), sum((s * w for s, w in zip(scale, where)), np.zeros(shape)) + 5)
    if n:
        thirds = [[], [3], [30, 1], [300, 30, 1]][n]
        np.testing.assert_array_equal(a.to_numpy(), sum(s * w for s, w in zip(thirds, where)))
        first = where[0] + where[1] if n == 3 else where[0]
        np.testing.assert_array_equal(v.to_numpy(), np.stack([first, -where[-1]], -1))


def test_inner_loops_over_fields(arch: str) -> None:
    x = sg.field(sg.i32, shape=(3, 2))

    @sg.kernel
    def run(out: INTS, b: INTS):
        for k in range(4):
            total = 0
            for i, j in x:
                total += x[i, j] * (k + 1)
            for i in b:
                if b[i] == 3:
                    continue
                total = total * 2 + b[i]
            for index in sg.grouped(x):
                total += index[1] * x[index]
            out[k] = total

    data = np.arange(6, dtype=np.int32).reshape(3, 2)
    x.from_numpy(data)
    b = np.array([1, 3, 5], np.int32)
    out = ints(4)
    run(out, b)
    assert out.tolist() == [(15 * (k + 1) * 2 + 1) * 2 + 5 + (1 + 3 + 5) for k in range(4)]
