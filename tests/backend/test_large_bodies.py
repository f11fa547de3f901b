"""Parallel loops whose large bodies the CPU back end cuts into partitions: all iterations of a block pass one before the next."""

import numpy as np
import pytest

import spirograd as sg
from spirograd.analysis.loop_costs import has_masks

# Each case runs on one of Vulkan and wgpu, which cut nothing; the interpreter, which cuts nothing either, takes long.
pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.archs("cpu", "vulkan", "wgpu")]
MANY = 240
SIZES = (0, 1, 63, 64, 65, 200)


@sg.func
def grown(v, n: sg.template()):
    """``v`` after so many steps that no pass can merge."""
    for k in sg.static(range(n)):
        v = v * 0.5 + 0.3 * sg.sqrt(v * v + 0.01 * k)
    return v


def grown_in_numpy(v: np.ndarray, n: int) -> np.ndarray:
    v = v.astype(float)
    for k in range(n):
        v = v * 0.5 + 0.3 * np.sqrt(v * v + 0.01 * k)
    return v


def starts(n: int) -> np.ndarray:
    return np.random.default_rng(n).uniform(-1.0, 1.0, n).astype(np.float32)


def test_values_of_all_types_cross_the_cuts(session) -> None:
    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 1), y: sg.types.ndarray(sg.f32, 1), z: sg.types.ndarray(sg.i32, 2)):
        for i in x:
            positive, count, narrow = x[i] > 0.0, i * 3, sg.cast(i - 2, sg.i8)
            large = sg.Vector([x[i], 2.0, x[i] + 1.0, 4.0, 5.0])
            a = grown(x[i], MANY)
            y[i] = a + large[count % 5]
            z[i, 0] = count if positive else -count
            z[i, 1] = narrow

    for n in SIZES:
        x, y, z = starts(n), np.zeros(n, np.float32), np.zeros((n, 2), np.int32)
        run(x, y, z)
        i = np.arange(n)
        large = np.stack([x, np.full(n, 2), x + 1, np.full(n, 4), np.full(n, 5)], 1) if n else np.zeros((0, 5))
        np.testing.assert_allclose(y, grown_in_numpy(x, MANY) + large[i, i * 3 % 5], rtol=1e-5)
        np.testing.assert_array_equal(z[:, 0], np.where(x > 0, i * 3, i * -3))
        np.testing.assert_array_equal(z[:, 1], (i - 2).astype(np.int8))


def test_reductions_go_through_all_partitions(session) -> None:
    """Some under conditions and in loops; several kinds."""

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 1), total: sg.types.ndarray(sg.f32, 1), most: sg.types.ndarray(sg.i32, 1)):
        for i in x:
            a = x[i]
            for k in sg.static(range(MANY)):
                a = a * 0.5 + sg.sqrt(a * a * 0.1 + 0.01 * k) * 0.1
                if sg.static(k % 50 == 0):
                    total[0] += a
                    if a > 0.5:
                        sg.atomic_max(most[0], i)
                        total[1] += 1.0
                    for j in range(i % 3):
                        total[1] += a

    for n in SIZES:
        x, total, most = starts(n), np.zeros(2, np.float32), np.full(1, -1, np.int32)
        run(x, total, most)
        a, want, last = x.astype(np.float32), np.zeros(2), -1
        for k in range(MANY):
            a = a * np.float32(0.5) + np.sqrt(a * a * np.float32(0.1) + np.float32(0.01 * k)) * np.float32(0.1)
            if k % 50 == 0:
                want += a.sum(dtype=float), (a > 0.5).sum() + (a * (np.arange(n) % 3)).sum(dtype=float)
                last = max(last, *np.nonzero(a > 0.5)[0], -1)
        np.testing.assert_allclose(total, want, rtol=1e-4, atol=1e-5)
        assert most[0] == last


def test_several_axes_and_memory_between_the_partitions(session) -> None:
    """What an iteration stores it loads again later; rows whose length is not a multiple of a block."""

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 2), y: sg.types.ndarray(sg.i32, 2)):
        for i, j in x:
            for k in sg.static(range(MANY)):
                x[i, j] = x[i, j] * 0.5 + 0.3 * sg.sqrt(x[i, j] * x[i, j] + 0.01 * k)
                y[i, j] += i * k
            y[i, j] += 10000 * j

    x, y = starts(3 * 93).reshape(3, 93), np.zeros((3, 93), np.int32)
    want = grown_in_numpy(x, MANY)
    run(x, y)
    np.testing.assert_allclose(x, want, rtol=1e-5)
    i, j = np.indices(y.shape)
    np.testing.assert_array_equal(y, i * (MANY * (MANY - 1) // 2) + 10000 * j)


def test_atomics_that_dominate(session) -> None:
    """One thread runs a version without atomics, in which iterations touch the same memory one after the other."""
    cells = sg.field(sg.i32, 4)

    @sg.kernel
    def run():
        for i in range(203):
            for k in sg.static(range(MANY)):
                cells[(i + k * k) % 4] += 1

    run()
    run()
    counts = np.bincount(((np.arange(203)[:, None] + np.arange(MANY) ** 2) % 4).ravel(), minlength=4)
    np.testing.assert_array_equal(cells.to_numpy(), 2 * counts)


@pytest.mark.optimized
@pytest.mark.archs("cpu")
def test_what_comes_before_updates_is_vectorised(session) -> None:
    """Without atomics, too: blocks of iterations pass the partitions before the updates, which come one after the other."""

    @sg.kernel
    def scatter(x: sg.types.ndarray(sg.f32, 1), where: sg.types.ndarray(sg.i32, 1), bins: sg.types.ndarray(sg.f32, 1)):
        for i in x:
            a = grown(x[i], MANY)
            for k in sg.static(range(80)):
                bins[(where[i] + k) % 100] += a * (k % 5)

    for n in SIZES:
        x, where, bins = starts(n), np.arange(n, dtype=np.int32) * 7 % 50, np.zeros(100, np.float32)
        scatter(x, where, bins)
        expected = np.zeros(100)
        for k in range(80):
            np.add.at(expected, (where + k) % 100, grown_in_numpy(x, MANY) * (k % 5))
        np.testing.assert_allclose(bins, expected, rtol=1e-4, atol=1e-4)
    functions = scatter.stages()["kernel.opt.ll"].split("\ndefine ")
    partitions = [text for text in functions if ".uncontended.partition" in text.split("(")[0]]
    assert len(partitions) > 1
    assert "x float> @llvm.sqrt" in partitions[0] and "x float>" not in partitions[-1]


def test_large_serial_code(session) -> None:
    """Without a parallel loop: functions that take and return values, loops and branches in them."""

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 1), n: sg.i32) -> sg.f32:
        a, last = x[0], -1
        values = sg.Vector([x[0], 1.0, 2.0, 3.0, 4.0])
        for k in sg.static(range(60)):
            for m in range(n):
                a = a * 0.5 + 0.3 * sg.sqrt(a * a + 0.01 * k)
                last = m + k
            if a > x[0]:
                x[1 + k] = a + values[(n + k) % 5]
            values[(last + 5) % 5] += a
        return a + values[n % 5] + last

    for n in (0, 1, 3):
        x = np.full(64, 0.125, np.float32)
        got = run(x, n)
        want, a, last = np.full(64, 0.125), 0.125, -1
        values = np.array([0.125, 1.0, 2.0, 3.0, 4.0])
        for k in range(60):
            for m in range(n):
                a = a * 0.5 + 0.3 * np.sqrt(a * a + 0.01 * k)
                last = m + k
            if a > want[0]:
                want[1 + k] = a + values[(n + k) % 5]
            values[(last + 5) % 5] += a
        np.testing.assert_allclose(x, want, rtol=1e-5)
        np.testing.assert_allclose(got, a + values[n % 5] + last, rtol=1e-5)


def test_prints_come_iteration_by_iteration(session, capfd) -> None:
    """Of what one thread runs; lines of different iterations may come in any order elsewhere."""
    x = sg.field(sg.f32, 3)

    @sg.kernel
    def run():
        for i in range(3):
            print("first", i)
            x[i] = grown(x[i], MANY)
            print("last", i)

    run()
    sg.sync()
    lines = capfd.readouterr().out.split("\n")[:-1]
    assert sorted(lines) == sorted(f"{word} {i}" for i in range(3) for word in ("first", "last"))
    if session.device.caps.target_name == "cpu":
        assert lines == [f"{word} {i}" for i in range(3) for word in ("first", "last")]


@pytest.mark.archs("cpu")  # by llvmgen
def test_large_bodies_are_cut(session) -> None:
    """... and small ones are not."""
    x = sg.field(sg.f32, 100)

    @sg.kernel
    def run(n: sg.template()):
        for i in x:
            x[i] = grown(x[i], n)

    for n, partitions in ((20, False), (MANY, True)):
        run(n)
        assert (".partition" in run.llvm()) is partitions


def test_the_gradient(session) -> None:
    """With tapes, which have a row for each thread: iterations come one after the other."""
    x, y = (sg.field(sg.f32, 70, needs_grad=True) for _ in range(2))
    trips = sg.field(sg.i32, ())
    trips[None] = 3

    @sg.kernel
    def run():
        for i in x:
            a = x[i]
            for k in sg.static(range(20)):
                for _ in range(trips[None]):
                    a = a * 0.9 + 0.1 * a * a
                    for m in sg.static(range(4)):
                        a = a * 0.5 + 0.3 * sg.sqrt(a * a + 1.0 + m)
            y[i] = a

    start = starts(70)
    x.from_numpy(start)
    y.grad.fill(1.0)
    run()
    run.grad()
    v, d = start.astype(float), np.ones(70)
    for _ in range(60):
        v, d = v * 0.9 + 0.1 * v * v, d * (0.9 + 0.2 * v)
        for m in range(4):
            root = np.sqrt(v * v + 1.0 + m)
            v, d = v * 0.5 + 0.3 * root, d * (0.5 + 0.3 * v / root)
    np.testing.assert_allclose(y.to_numpy(), v, rtol=1e-4)
    np.testing.assert_allclose(x.grad.to_numpy(), d, rtol=1e-3, atol=1e-12)


def test_products_with_large_matrices_run_in_lanes(session) -> None:
    """Where a condition keeps LLVM from vectorising. Iterations read vectors, whose elements are gathered."""
    n, size = 100, 19
    rng = np.random.default_rng(5)
    numbers = rng.uniform(-1, 1, (n, size)).astype(np.float32)
    matrices = rng.uniform(-1, 1, (2, size, size)).astype(np.float32)
    solid = (rng.random(n) < 0.2).astype(np.int8)
    m, wall = sg.Matrix.field(size, size, sg.f32, shape=2), sg.field(sg.i8, n)
    f = sg.Vector.field(size, sg.f32, shape=n)
    m.from_numpy(matrices)
    wall.from_numpy(solid)
    f.from_numpy(numbers)

    @sg.kernel
    def run():
        for i in f:
            if wall[i] == 0:
                f[i] = m[1] @ (0.5 * (m[0] @ f[i]))

    run()
    expected = np.where(solid[:, None] == 0, 0.5 * numbers @ (matrices[1] @ matrices[0]).T, numbers)
    np.testing.assert_allclose(f.to_numpy(), expected, rtol=1e-4, atol=1e-5)
    if session.arch == "cpu" and has_masks(session.device.caps):
        assert "lanes" in run.ir("vectors")
