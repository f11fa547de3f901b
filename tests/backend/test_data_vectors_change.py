"""Vectors and matrices that change in loops and branches: run-time indices, references, sums over parallel loops."""

import numpy as np
import pytest

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]


def test_carried_through_control_flow(arch: str) -> None:
    out = sg.Vector.field(3, sg.f32, shape=8)
    mats = sg.Matrix.field(2, 2, sg.f32, shape=8)

    @sg.kernel
    def power(n: sg.i32):
        for i in out:
            v = sg.Vector([1.0, 0.0, 0.0])
            m = sg.Matrix([[1.0, 1.0], [0.0, 1.0]])
            for j in range(i):
                if j % 2 == 0:
                    v = v + 1
                elif j == 3:
                    v = v.zxy
                    m[0, 1] = 5
                else:
                    v[0] *= 2
                m = m @ sg.Matrix([[0.5, 1.0], [0.0, 2.0]])
                if m[1, 1] > n:
                    break
            k = 0
            while k < 3 and v[k] != 1.0:
                v[k] -= 1
                k += 1
            out[i] = v
            mats[i] = m

    power(17)
    for i in range(8):
        v, m = np.array([1.0, 0.0, 0.0]), np.array([[1.0, 1.0], [0.0, 1.0]])
        for j in range(i):
            if j % 2 == 0:
                v = v + 1
            elif j == 3:
                v = v[[2, 0, 1]]
                m[0, 1] = 5
            else:
                v[0] *= 2
            m = m @ np.array([[0.5, 1.0], [0.0, 2.0]])
            if m[1, 1] > 17:
                break
        k = 0
        while k < 3 and v[k] != 1.0:
            v[k] -= 1
            k += 1
        np.testing.assert_allclose(out.to_numpy()[i], v, rtol=1e-6)
        np.testing.assert_allclose(mats.to_numpy()[i], m, rtol=1e-6)


@pytest.mark.parametrize("size", [3, 8, 17, 32])
def test_run_time_indices(arch: str, size: int) -> None:
    """A local array with run-time indices: a sieve, an insertion sort, a histogram."""
    out = sg.field(sg.i32, shape=(6, size))
    ordered = sg.field(sg.f32, shape=(6, size))

    @sg.kernel
    def work():
        for i in range(6):
            counts = sg.Vector([0] * size)
            for j in range(3 * size):
                counts[(j * j + i) % size] += 1
            for j in range(size):
                out[i, j] = counts[j]
            x = sg.Vector([0.0] * size)
            for j in range(size):
                x[j] = (j * 7 + i * 3) % size
            for j in range(1, size):
                at = j
                held = x[j]
                while at > 0 and x[sg.max(at - 1, 0)] > held:
                    x[at] = x[at - 1]
                    at -= 1
                x[at] = held
            for j in range(size):
                ordered[i, j] = x[j]

    work()
    for i in range(6):
        counts = np.bincount([(j * j + i) % size for j in range(3 * size)], minlength=size)
        np.testing.assert_array_equal(out.to_numpy()[i], counts)
        np.testing.assert_array_equal(ordered.to_numpy()[i], sorted((j * 7 + i * 3) % size for j in range(size)))


def test_run_time_indices_in_two_dimensions(arch: str) -> None:
    out = sg.Matrix.field(4, 4, sg.i32, shape=3)
    picks = sg.field(sg.i32, shape=(3, 4))

    @sg.kernel
    def work():
        for i in range(3):
            m = sg.Matrix.zero(sg.i32, 4, 4)
            for r, c in sg.ndrange(4, 4):
                m[r, (c + i) % 4] += 10 * r + c
                if r == c:
                    m[r, c] = -m[r, c]
            out[i] = m
            for c in range(4):
                picks[i, c] = m[(c + i) % 4, c] + m[c, 1]

    work()
    for i in range(3):
        m = np.zeros((4, 4), int)
        for r in range(4):
            for c in range(4):
                m[r, (c + i) % 4] += 10 * r + c
                if r == c:
                    m[r, c] = -m[r, c]
        np.testing.assert_array_equal(out.to_numpy()[i], m)
        np.testing.assert_array_equal(picks.to_numpy()[i], [m[(c + i) % 4, c] + m[c, 1] for c in range(4)])


def test_updated_by_parallel_loops(arch: str) -> None:
    """Local aggregates that all iterations of a parallel loop add to."""
    v = sg.Vector.field(2, sg.f32, shape=1000)
    pair = sg.types.struct(a=sg.f32, v=sg.types.vector(2, sg.i32))

    @sg.kernel
    def sums(n: sg.i32) -> sg.math.vec3:
        total = sg.Vector([0.0, 0.0])
        counts = sg.Vector([0] * 8)
        for i in range(n):
            total += v[i]
            total.x -= 0.5
            counts[i % 8] += 1
        total[0] += counts[3]
        return sg.math.vec3(total, counts.sum())

    @sg.kernel
    def structs(n: sg.i32) -> pair:
        s = pair(0, 0)
        for i in range(n):
            s.a += 1.5
            s.v[i % 2] += 1
            s.v.y += 1
        return s

    v.fill([1, 2])
    assert sums(1000).to_list() == [500 + 125, 2000, 1000]
    assert structs(10).to_dict() == {"a": 15, "v": [5, 15]}


def test_elements_by_reference(arch: str) -> None:
    x = sg.Vector.field(2, sg.f32, shape=4)
    n = sg.ndarray(sg.i32, 4)

    @sg.func
    def swap(a: sg.template(), b: sg.template()):
        a, b = b, a

    @sg.func
    def increase(a: sg.template(), by):
        a += by

    @sg.kernel
    def work(n: sg.types.ndarray()):
        for _ in range(1):
            swap(x[0], x[1])
            swap(n[0], n[3])
            increase(n[2], 5)
            increase(x[3], 2)
            increase(x[3].y, 1)
            increase(x[2][0], 9)

    x.from_numpy(np.arange(8).reshape(4, 2))
    n.from_numpy(np.arange(4))
    work(n)
    assert n.to_numpy().tolist() == [3, 1, 7, 0]
    assert x.to_numpy().tolist() == [[2, 3], [0, 1], [13, 5], [8, 10]]


def test_large_ones(arch: str) -> None:
    size = sg.types.matrix(8, 8, sg.f32)
    a = np.random.default_rng(0).normal(size=(8, 8))
    counts = sg.field(sg.i32, shape=(2, 64))

    @sg.kernel
    def product(a: size, b: size) -> size:
        return a @ b + a.transpose()

    @sg.kernel
    def histogram():
        for i in range(2):
            v = sg.Vector([0] * 64)
            for j in range(300):
                v[(j * j + i) % 64] += j
            for j in range(64):
                counts[i, j] = v[j]

    np.testing.assert_allclose(product(a, a).to_numpy(), a @ a + a.T, rtol=1e-4, atol=1e-4)
    histogram()
    j = np.arange(300)
    for i in range(2):
        np.testing.assert_array_equal(counts.to_numpy()[i], np.bincount((j * j + i) % 64, j, 64))
