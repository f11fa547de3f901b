"""Parallel loops around serial ones: the CPU runs several iterations in lockstep, as lanes of vectors; the last ones may be fewer."""

from itertools import product

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.dtypes import DType

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu, pytest.mark.optimized]
SIZES = [1, 15, 16, 37, 200]
TRIPS = 20
FAR = 2**28
vec = sg.types.ndarray(sg.f32, 1)
ints = sg.types.ndarray(sg.i32, 1)


def chained(v: np.ndarray, trips: int = TRIPS) -> np.ndarray:
    v = v.astype(np.float64)
    for _ in range(trips):
        v = np.sin(v) * 0.8 + 0.1
    return v


def numbers(n: int) -> np.ndarray:
    return np.linspace(-2, 2, n).astype(np.float32)


def test_chain() -> None:
    @sg.kernel
    def run(x: vec, y: vec, trips: sg.i32):
        for i in range(x.shape[0]):
            v = x[i]
            for _ in range(trips):
                v = sg.sin(v) * 0.8 + 0.1
            y[i] = v

    for n, trips in product(SIZES, (0, 1, TRIPS)):
        x, y = numbers(n), np.zeros(n, np.float32)
        run(x, y, trips)
        np.testing.assert_allclose(y, chained(x, trips), rtol=2e-5, atol=2e-6, err_msg=f"{n} iterations")


def test_branches() -> None:
    """One that all iterations take alike, with effects; one that differs; choices of integers, and a loop in a branch."""

    @sg.kernel
    def run(x: vec, y: vec, k: ints, trips: sg.i32, deep: sg.i32):
        for i in range(x.shape[0]):
            v = x[i]
            c = i
            for t in range(trips):
                if v > 0.5:
                    v = v * 0.5 - 0.25
                    c += 1
                else:
                    v = v + 0.3
                    c = c * 3 % 1000
                if t == 4:
                    y[i] = v
                    if deep > 0:
                        for _ in range(deep):
                            v = v * v - 0.1
            x[i] = v
            k[i] = c

    for n in SIZES:
        x, y, k = numbers(n), np.zeros(n, np.float32), np.zeros(n, np.int32)
        want, c, middle = x.astype(np.float32), np.arange(n), np.zeros(n)
        for t in range(TRIPS):
            high = want > np.float32(0.5)
            c = np.where(high, c + 1, c * 3 % 1000)
            want = np.where(high, want * np.float32(0.5) - np.float32(0.25), want + np.float32(0.3))
            if t == 4:
                middle = want.copy()
                for _ in range(3):
                    want = want * want - np.float32(0.1)
        run(x, y, k, TRIPS, 3)
        np.testing.assert_allclose(y, middle, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(x, want, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(k, c)


def test_memory() -> None:
    """Elements that lie next to each other, apart, or where another array says; atomics, and what they return."""

    @sg.kernel
    def run(x: vec, where: ints, out: vec, places: ints, total: ints):
        for i in range(where.shape[0]):
            v = x[where[i]] + x[2 * i] + x[i + 3]
            for t in range(TRIPS):
                v = v * 0.5 + x[t] + x[i + t]
            out[2 * i + 1] = v
            places[sg.atomic_add(total[0], 1)] = i
            sg.atomic_max(total[1], where[i])

    for n in SIZES:
        rng = np.random.default_rng(n)
        x = rng.uniform(-1, 1, 2 * n + TRIPS + 3).astype(np.float32)
        where = rng.permutation(n).astype(np.int32)
        out, places, total = np.zeros(2 * n, np.float32), np.full(n, -1, np.int32), np.zeros(2, np.int32)
        i = np.arange(n)
        want = x[where] + x[2 * i] + x[i + 3].astype(np.float64)
        for t in range(TRIPS):
            want = want * 0.5 + x[t] + x[i + t]
        run(x, where, out, places, total)
        np.testing.assert_allclose(out[1::2], want, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(out[::2], 0)
        np.testing.assert_array_equal(np.sort(places), i)
        np.testing.assert_array_equal(total, [n, n - 1])


@pytest.mark.parametrize("t", [sg.i32, sg.f32], ids=str)
def test_sums_of_all(t: DType) -> None:
    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), total: sg.types.ndarray(t, 1)):
        for i in range(x.shape[0]):
            v = x[i]
            for k in range(TRIPS):
                v = v * 3 - sg.cast(k, t)
                v = v - sg.cast(sg.floor(sg.cast(v, sg.f32) / 7), t) * 7
            sg.atomic_add(total[0], v)
            sg.atomic_max(total[1], v)
            sg.atomic_min(total[2], v)

    for n in SIZES:
        x = (np.arange(n) * 5 % 7).astype(t.np)
        want = x.astype(np.int64)
        for k in range(TRIPS):
            want = (want * 3 - k) % 7
        total = np.array([2, -9, 9], t.np)
        run(x, total)
        np.testing.assert_array_equal(total, [2 + want.sum(), want.max(), want.min()])


@pytest.mark.parametrize("shape", [(3, 5), (4, 16), (7, 50), (2, 3, 33)], ids=str)
def test_index_spaces(shape: tuple[int, ...]) -> None:
    x, y = sg.field(sg.f32, shape), sg.field(sg.f32, shape)

    @sg.kernel
    def run():
        for i in sg.grouped(x):
            v = x[i]
            for _ in range(TRIPS):
                v = sg.sin(v) * 0.8 + 0.1
            y[i] = v

    start = numbers(int(np.prod(shape))).reshape(shape)
    x.from_numpy(start)
    run()
    np.testing.assert_allclose(y.to_numpy(), chained(start), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("t", [sg.f32, sg.f64], ids=str)
def test_operations(t: DType) -> None:
    """One function after the other, each many times over."""

    @sg.kernel
    def run(x: sg.types.ndarray(t, 2), trips: sg.i32):
        for i in range(x.shape[1]):
            a, b, c, d, e, f = x[0, i], x[1, i], x[2, i], x[3, i], x[4, i], x[5, i]
            for _ in range(trips):
                a = sg.exp(-a * a)
                b = sg.log(sg.abs(b) + 1.5) - 0.5
                c = sg.sqrt(c * c + 0.1) - 0.7
                d = sg.rsqrt(d * d + 0.7) - sg.floor(d)
                e = sg.min(sg.max(-e, -0.8), 0.6) * 0.9
                f = sg.cast(sg.cast(f * 8, sg.i32), t) / 16 - 0.3
            x[0, i], x[1, i], x[2, i], x[3, i], x[4, i], x[5, i] = a, b, c, d, e, f

    x = np.stack([((np.arange(40) - 20) / 16 + 1 / 64).astype(t.np)] * 6)
    a, b, c, d, e, f = x.astype(np.float64)
    for _ in range(4):
        a, b, c = np.exp(-a * a), np.log(np.abs(b) + 1.5) - 0.5, np.sqrt(c * c + 0.1) - 0.7
        d, e, f = 1 / np.sqrt(d * d + 0.7) - np.floor(d), np.clip(-e, -0.8, 0.6) * 0.9, np.trunc(f * 8) / 16 - 0.3
    run(x, 4)
    np.testing.assert_allclose(x, np.stack([a, b, c, d, e, f]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", SIZES)
def test_gradient(n: int) -> None:
    """Each lane has its own tapes; the slope of a number that all share is summed up."""
    x, y = (sg.field(sg.f32, n, needs_grad=True) for _ in range(2))
    scale = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def run(trips: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(trips):
                w = v
                for _ in range(3):
                    w = sg.sin(w) * scale[None]
                v = v * 0.5 + w
            y[i] = v

    start = numbers(n)
    x.from_numpy(start)
    scale[None] = 0.9
    run(TRIPS // 2)
    y.grad.fill(1.0)
    run.grad(TRIPS // 2)
    v, dv, ds = start.astype(np.float64), np.ones(n), np.zeros(n)
    for _ in range(TRIPS // 2):
        w, dw, es = v, dv, ds
        for _ in range(3):
            w, dw, es = np.sin(w) * 0.9, np.cos(w) * dw * 0.9, np.cos(w) * es * 0.9 + np.sin(w)
        v, dv, ds = v * 0.5 + w, dv * 0.5 + dw, ds * 0.5 + es
    np.testing.assert_allclose(y.to_numpy(), v, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(x.grad.to_numpy(), dv, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(scale.grad[None], ds.sum(), rtol=1e-3, atol=1e-4)


def test_lanes_without_an_iteration() -> None:
    """Behind the last element lie zeros, by which no lane may divide, and numbers that are no indices; nothing there may change."""

    @sg.kernel
    def run(x: ints, by: ints, where: ints, far: vec, y: vec, count: sg.i32):
        for i in range(count):
            v = x[i] * 1.0
            for _ in range(TRIPS):
                v = v * 0.5 + 1.0
            y[i] = v + 1000 // by[i] + far[where[i] - FAR]

    for n in SIZES:
        x, by, where, y = (np.zeros(n + 32, t) for t in (np.int32, np.int32, np.int32, np.float32))
        x[:n], by[:n], where[:n] = np.arange(n), np.arange(n) % 7 + 1, np.arange(n) + FAR
        y[n:] = 5
        want = x[:n].astype(np.float64)
        for _ in range(TRIPS):
            want = want * 0.5 + 1
        run(x, by, where, numbers(n), y, n)
        np.testing.assert_allclose(y[:n], want + 1000 // by[:n] + numbers(n), rtol=1e-5)
        np.testing.assert_array_equal(y[n:], 5)


@pytest.mark.parametrize("t", [sg.i32, sg.u32, sg.f32, sg.f64], ids=str)
def test_sums_of_each_turn(t: DType) -> None:
    """All iterations add to one element in each iteration; and all of them add one and the same number. So much else to do that one thread
    does not do it all without atomics."""

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), total: sg.types.ndarray(t, 1)):
        for i in range(x.shape[0]):
            v = x[i]
            for k in range(TRIPS):
                v = v * 3 + sg.cast(k, t)
                v = v - sg.cast(sg.floor(sg.cast(v, sg.f32) / 7), t) * 7
                w = sg.cast(v, sg.f32)
                for _ in sg.static(range(8)):
                    w = sg.sin(w)
                total[k] += v + sg.cast(sg.floor(w * w), t)
                total[TRIPS] += 1

    for n in SIZES:
        v = (np.arange(n) * 5 % 7).astype(t.np)
        total = np.zeros(TRIPS + 1, t.np)
        total[0] = 3
        run(v, total)
        want = []
        v = v.astype(np.int64)
        for k in range(TRIPS):
            v = (v * 3 + k) % 7
            want.append(v.sum() + 3 * (k == 0))
        np.testing.assert_array_equal(total, [*want, n * TRIPS])


@pytest.mark.parametrize("t", [sg.f32, sg.f64], ids=str)
@pytest.mark.archs("interpreter", "cpu")  # elsewhere drivers may add 0.0
def test_sums_of_each_turn_keep_the_sign_of_zero(t: DType) -> None:
    """Where masked lanes add nothing, too."""

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), total: sg.types.ndarray(t, 1)):
        for i in range(x.shape[0]):
            v = x[i]
            for k in range(TRIPS):
                v = v * 3
                w = sg.cast(v + sg.cast(k, t), sg.f32)
                for _ in sg.static(range(8)):
                    w = sg.sin(w)
                total[k] += v * sg.cast(sg.floor(w * w) + 1, t)

    for n in SIZES:
        total = np.full(TRIPS, -0.0, t.np)
        run(np.full(n, -0.0, t.np), total)
        assert np.signbit(total).all() and (total == 0).all()


def test_sums_of_products() -> None:
    """Each product that is used once may round together with the sum; signs and order stay."""

    @sg.kernel
    def run(x: vec, y: vec, trips: sg.i32):
        for i in range(x.shape[0]):
            a, b = x[i], 0.5 * x[i]
            for _ in range(trips):
                p = a * b
                a, b = a * 0.7 - b * 0.2, 0.3 - a * 0.6
                a, b = p * 0.5 + a * 0.9, p - b * b * 0.4
            y[i] = a - b

    x, y = numbers(50) / 4, np.zeros(50, np.float32)
    a, b = x.astype(np.float64), 0.5 * x.astype(np.float64)
    for _ in range(TRIPS):
        p = a * b
        a, b = a * 0.7 - b * 0.2, 0.3 - a * 0.6
        a, b = p * 0.5 + a * 0.9, p - b * b * 0.4
    run(x, y, TRIPS)
    np.testing.assert_allclose(y, a - b, rtol=1e-4, atol=1e-5)


def test_sums_across_rows() -> None:
    """Sums of what lies apart in memory, while neighbouring iterations read neighbours: columns, matrices, windows, vectors."""
    matrix = sg.types.ndarray(sg.f32, 2)

    @sg.kernel
    def columns(x: matrix, y: vec):
        for i in range(x.shape[1]):
            s = 0.0
            for k in range(x.shape[0]):
                s += x[k, i]
            y[i] = s

    @sg.kernel
    def product(a: matrix, b: matrix, c: matrix):
        for i, j in sg.ndrange(c.shape[0], c.shape[1]):
            s = 0.0
            for k in range(a.shape[1]):
                s += a[i, k] * b[k, j]
            c[i, j] = s

    @sg.kernel
    def window(x: matrix, w: matrix, y: matrix):
        for i, j in sg.ndrange(y.shape[0], y.shape[1]):
            s = 0.0
            for k in range(w.shape[0]):
                for m in range(w.shape[1]):
                    s += x[i + k, j + m] * w[k, m]
            y[i, j] = s

    @sg.kernel
    def pull(p: sg.types.ndarray(sg.math.vec3, 1), f: sg.types.ndarray(sg.math.vec3, 1)):
        for i in range(p.shape[0]):
            s = sg.math.vec3(0.0)
            for j in range(p.shape[0]):
                s += p[j] * 2.0 - p[i]
            f[i] = s

    rng = np.random.default_rng(3)
    for rows, inner, across in ((1, 1, 1), (3, 1, 5), (2, 5, 16), (5, 33, 37), (17, 20, 50)):
        a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((rows, inner), (inner, across)))
        c, sums = np.full((rows, across), 7, np.float32), np.full(across, 7, np.float32)
        product(a, b, c)
        columns(b, sums)
        np.testing.assert_array_equal(c, a @ b)
        np.testing.assert_array_equal(sums, b.sum(0))
        w, x = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((2, 3), (rows + 1, across + 2)))
        y = np.full((rows, across), 7, np.float32)
        window(x, w, y)
        views = [x[k : k + rows, m : m + across] * w[k, m] for k in range(2) for m in range(3)]
        np.testing.assert_array_equal(y, np.sum(views, axis=0))
        p, f = rng.integers(-4, 5, (across, 3)).astype(np.float32), np.zeros((across, 3), np.float32)
        pull(p, f)
        np.testing.assert_array_equal(f, 2 * p.sum(0) - across * p)


def test_functions_with_loops() -> None:
    """Real functions that are called in each iteration, by some iterations only: one with a loop, one without, one with two results."""

    @sg.real_func
    def halved(a: sg.f32, b: sg.f32) -> sg.f32:
        while a > 1.0:
            a *= 0.5
        return a + b

    @sg.real_func
    def bent(a: sg.f32) -> sg.f32:
        return a * a * 0.25 - a

    @sg.real_func
    def both(a: sg.f32) -> sg.types.vector(2, sg.f32):
        return sg.Vector([a * 0.5, a + 0.25])

    @sg.kernel
    def run(x: vec, y: vec):
        for i in range(x.shape[0]):
            v, w = x[i], 0.0
            for _ in range(TRIPS):
                v = halved(v * 3.0, 0.25) if v > 0.5 else bent(v) + 0.5
            for k in range(TRIPS):
                if v > 0.5 or k % 3 == 0:
                    w += both(v + 0.125 * k)[k % 2]
            x[i], y[i] = v, w

    for n in SIZES:
        x, y = (np.arange(n) % 16 / 8).astype(np.float32), np.zeros(n, np.float32)
        want, sums = x.astype(np.float64), np.zeros(n)
        for i in range(n):
            v = want[i]
            for _ in range(TRIPS):
                if v > 0.5:
                    v *= 3
                    while v > 1:
                        v *= 0.5
                    v += 0.25
                else:
                    v = v * v * 0.25 - v + 0.5
            for k in range(TRIPS):
                if v > 0.5 or k % 3 == 0:
                    sums[i] += (v + 0.125 * k) * 0.5 if k % 2 == 0 else v + 0.125 * k + 0.25
            want[i] = v
        run(x, y)
        np.testing.assert_allclose(x, want, rtol=1e-4)
        np.testing.assert_allclose(y, sums, rtol=1e-4)


def test_functions_that_end_for_some() -> None:
    """A function whose loop ends for the arguments that it is called with, and would not for those of other iterations."""

    @sg.real_func
    def doubled(a: sg.f32) -> sg.f32:
        while a < 1.0:
            a *= 2.0
        return a

    @sg.kernel
    def run(x: vec):
        for i in range(x.shape[0]):
            v = x[i]
            for _ in range(TRIPS):
                if v > 0.0:
                    v = doubled(v) * 0.25 - 0.0625
                else:
                    v = v * 0.5 - 0.25
            x[i] = v

    for n in SIZES:
        x = (np.arange(n) % 16 / 8 - 1).astype(np.float32)
        want = x.copy()
        for _ in range(TRIPS):
            grown = np.where(want > 0, want, 1)
            while (grown < 1).any():
                grown = np.where(grown < 1, grown * 2, grown)
            want = np.where(want > 0, grown * 0.25 - 0.0625, want * 0.5 - 0.25)
        run(x)
        np.testing.assert_allclose(x, want, rtol=1e-5)
