"""What went wrong in other implementations of tapes: each a kernel whose gradient shows it. NumPy is the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grad.check import Program, check

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]


def logistic(x: np.ndarray, trips: np.ndarray, r: float) -> tuple[np.ndarray, np.ndarray]:
    """``v = r v (1 - v)``, ``trips`` times from ``x``: the value and its derivative by x, in f64."""
    v, d = x.astype(np.float64), np.ones(x.shape)
    for step in range(int(trips.max(initial=0))):
        on = step < trips
        d = np.where(on, d * r * (1 - 2 * v), d)
        v = np.where(on, r * v * (1 - v), v)
    return v, d


class Iterated:
    """A kernel of ``n`` parallel iterations, each with a loop of ``trips[i]`` trips that needs its carried value."""

    def __init__(self, n: int, r: float = 2.9) -> None:
        self.x = sg.field(sg.f32, shape=n, needs_grad=True)
        self.y = sg.field(sg.f32, shape=n, needs_grad=True)
        self.trips = sg.field(sg.i32, shape=n)
        self.values = np.random.default_rng(n).uniform(0.1, 0.9, n).astype(np.float32)
        self.r = r
        x, y, trips = self.x, self.y, self.trips

        @sg.kernel
        def run():
            for i in x:
                v = x[i]
                for j in range(trips[i]):
                    v = r * v * (1.0 - v)
                y[i] = v

        self.kernel = run

    def check(self, trips: Any) -> None:
        n = len(self.values)
        trips = np.broadcast_to(np.asarray(trips, np.int32), (n,))
        self.x.from_numpy(self.values)
        self.trips.from_numpy(np.ascontiguousarray(trips))
        seeds = np.random.default_rng(5).standard_normal(n).astype(np.float32)
        self.kernel()
        self.x.grad.fill(0.0)
        self.y.grad.from_numpy(seeds)
        self.kernel.grad()
        value, slope = logistic(self.values, trips, self.r)
        np.testing.assert_allclose(self.y.to_numpy(), value, rtol=1e-3, atol=1e-4)
        found, wanted = self.x.grad.to_numpy(), slope * seeds
        np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize(
    "counts", [(1, 20, 50, 512), (512, 50, 20, 1), (0, 7, 0, 512, 0, 1), (3, 3, 300, 3)], ids=lambda c: "-".join(map(str, c))
)
def test_bounds_that_shrink_and_grow_between_launches(counts: tuple[int, ...]) -> None:
    work = Iterated(13, 1.9)
    for count in counts:
        work.check(count)


def test_one_iteration_alone_is_long() -> None:
    work = Iterated(101, 1.9)
    trips = np.zeros(101, np.int32)
    work.check(trips)
    trips[57] = 400
    work.check(trips)
    trips[57], trips[100] = 0, 1
    work.check(trips)


@pytest.mark.archs("cpu", "vulkan", "wgpu")  # minutes on the interpreter
@pytest.mark.parametrize("n", [1, 191, 193, 65_535, 65_537, 65_700])
def test_iterations_that_are_no_multiple_of_a_block(n: int) -> None:
    Iterated(n).check(np.arange(n) % 5)


@pytest.mark.archs("cpu", "vulkan", "wgpu")  # minutes on the interpreter
def test_more_iterations_than_can_run_at_once() -> None:
    """The largest number of trips is past what the first invocations see."""
    n = 131_072 + 4_321
    work = Iterated(n)
    trips = np.arange(n) % 3
    trips[-1], trips[-4_000] = 11, 12
    work.check(trips)


def test_floats_and_integers_on_tapes_do_not_meet() -> None:
    """One carried float and three carried integers per iteration, the bound of one loop read from an array; amplified values."""
    n = 37
    x = sg.field(sg.f32, shape=n, needs_grad=True)
    y = sg.field(sg.f32, shape=n, needs_grad=True)
    bound = sg.ndarray(sg.i32, n)

    @sg.kernel
    def run(bound: sg.types.ndarray(sg.i32, 1)):
        for i in x:
            v, k, m, flag = x[i], i, 1, False
            for j in range(bound[i]):
                if flag:
                    v = v * v * 100.0
                else:
                    v = v * (1.0 + x[k % n]) * 0.1
                k = (k * 5 + j) % 1009
                m = (m * 7) % 11
                flag = (k + m) % 3 == 0
            for j in range(m):
                v = v * 1.5 + x[(k + j) % n] * v
            y[i] = v * 200.0

    for trial in range(3):
        rng = np.random.default_rng(trial)
        values = rng.uniform(0.05, 0.12, n).astype(np.float32)
        bounds = rng.integers(0, 9, n).astype(np.int32)
        x.from_numpy(values)
        bound.from_numpy(bounds)
        run(bound)
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        run.grad(bound)
        wanted = np.zeros(n)
        for i in range(n):
            v, k, m, flag = float(values[i]), i, 1, False
            d = np.zeros(n)
            d[i] = 1.0
            for j in range(bounds[i]):
                if flag:
                    v, d = v * v * 100.0, 200.0 * v * d
                else:
                    d = d * (1.0 + values[k % n]) * 0.1
                    d[k % n] += v * 0.1
                    v = v * (1.0 + values[k % n]) * 0.1
                k, m = (k * 5 + j) % 1009, (m * 7) % 11
                flag = (k + m) % 3 == 0
            for j in range(m):
                at = (k + j) % n
                d = d * (1.5 + values[at])
                d[at] += v
                v = v * 1.5 + values[at] * v
            wanted += d * 200.0
        np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())


def two_arrays(t: Any) -> Program:
    """The trips are the shorter one's; each has its own length."""
    a, b = sg.ndarray(t, 3, needs_grad=True), sg.ndarray(t, 11, needs_grad=True)
    out = sg.field(t, shape=4, needs_grad=True)

    @sg.kernel
    def run(a: sg.types.ndarray(t, 1), b: sg.types.ndarray(t, 1)):
        for i in out:
            v = t(0.5)
            for j in range(sg.min(a.shape[0], b.shape[0])):
                v = sg.sin(v) + a[j] * b[j]
            for j in range(a.shape[0]):
                v = v * a[j] + t(0.2)
            for j in range(b.shape[0]):
                v = v * b[j] + t(0.1) * v
            out[i] = v * t(i + 1)

    return Program(run, [a, b, out], [a, b])


def bounds_of_two_arrays(t: Any) -> Program:
    """Two arrays of bounds, of different length, in one kernel: neither is read past its end."""
    x = sg.field(t, shape=9, needs_grad=True)
    y = sg.field(t, shape=9, needs_grad=True)
    few, many = sg.ndarray(sg.i32, 4), sg.ndarray(sg.i32, 9)

    @sg.kernel
    def run(few: sg.types.ndarray(sg.i32, 1), many: sg.types.ndarray(sg.i32, 1)):
        for i in range(few.shape[0]):
            v = x[i]
            for j in range(few[i]):
                v = v * v + x[j] * t(0.1)
            y[i] = v
        for i in range(many.shape[0]):
            v = x[i]
            for j in range(many[i]):
                v = sg.sin(v) + x[j] * v
            y[i] += v

    def prepare(trial: int) -> None:
        few.from_numpy(np.array([3, 0, 1, 2 + trial], np.int32))
        many.from_numpy(np.array([0, 1, 5, 2, 0, 8, 3, 1, 7 - trial], np.int32))

    return Program(run, [x, y], [few, many], prepare)


@pytest.mark.parametrize("case", [two_arrays, bounds_of_two_arrays], ids=lambda case: case.__name__)
def test_two_arrays_of_different_length(case: Any) -> None:
    check(case, sg.f32)


def test_arrays_of_another_length_in_each_launch() -> None:
    @sg.kernel
    def chain(a: sg.types.ndarray(sg.f32, 1), out: sg.types.ndarray(sg.f32, 1)):
        for i in out:
            v = 1.0
            for j in range(a.shape[0]):
                v = v * a[j]
            out[i] = v

    for n, m in ((3, 2), (17, 1), (1, 5), (9, 70)):
        values = np.random.default_rng(n).uniform(0.8, 1.2, n).astype(np.float32)
        a, out = sg.ndarray(sg.f32, n, needs_grad=True), sg.ndarray(sg.f32, m, needs_grad=True)
        a.from_numpy(values)
        chain(a, out)
        out.grad.fill(1.0)
        chain.grad(a, out)
        np.testing.assert_allclose(a.grad.to_numpy(), m * values.astype(np.float64).prod() / values, rtol=1e-4)


def test_a_guard_that_nothing_passes() -> None:
    """Iterations claim what they need of tapes only behind a condition: with none, few, all of them passing."""
    n = 1003
    x = sg.field(sg.f32, shape=n, needs_grad=True)
    y = sg.field(sg.f32, shape=n, needs_grad=True)
    switch = sg.field(sg.f32, shape=n)

    @sg.kernel
    def run(least: sg.f32):
        for i in x:
            if switch[i] > least:
                v = x[i]
                for j in range(6 + i % 3):
                    v = 1.9 * v * (1.0 - v)
                y[i] += v

    rng = np.random.default_rng(3)
    switches, values = rng.uniform(0, 1, n).astype(np.float32), rng.uniform(0.1, 0.9, n).astype(np.float32)
    switch.from_numpy(switches)
    for least in (2.0, 0.99, 0.5, -1.0, 2.0):
        x.from_numpy(values)
        run(least)
        x.grad.fill(0.0)
        y.grad.fill(2.0)
        run.grad(least)
        slope = logistic(values, 6 + np.arange(n) % 3, 1.9)[1]
        np.testing.assert_allclose(x.grad.to_numpy(), np.where(switches > least, 2 * slope, 0), rtol=2e-3, atol=1e-4)


@pytest.mark.archs("cpu", "vulkan", "wgpu")  # minutes on the interpreter
def test_kernels_share_the_memory_of_tapes() -> None:
    """A small kernel, a large one, the small one again, all under one tape: each finds its own values."""
    small, large = Iterated(5, 1.9), Iterated(3001, 1.9)
    for work, trips in ((small, 3), (large, 60), (small, 200), (large, 2), (small, 1)):
        work.check(trips)


def test_many_launches_under_one_tape_with_other_bounds() -> None:
    n = 11
    x = sg.field(sg.f32, shape=n, needs_grad=True)
    loss = sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def run(trips: sg.i32):
        for i in x:
            v = x[i]
            for j in range(trips):
                v = 1.9 * v * (1.0 - v)
            loss[None] += v

    values = np.linspace(0.1, 0.9, n).astype(np.float32)
    x.from_numpy(values)
    counts = (1, 20, 50, 0, 7)
    with sg.ad.Tape(loss=loss):
        for count in counts:
            run(count)
    wanted = sum(logistic(values, np.full(n, count), 1.9)[1] for count in counts)
    np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=1e-3, atol=1e-4)
