"""Gradients of loops whose bounds come from anywhere: constants, arguments, memory, arithmetic; nested, ragged, empty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grad.check import Program, check, on_back_ends_with_types

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

N = 7
COUNTS = np.array([0, 1, 3, 2, 5, 0, 4], np.int32)


def xy(t: Any, n: int = N) -> tuple[Any, Any]:
    return sg.field(t, shape=n, needs_grad=True), sg.field(t, shape=n, needs_grad=True)


def constant(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(5):
                v = sg.sin(v) * t(1.3) + v * x[i]
            y[i] = v

    return Program(run, [x, y])


def argument(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run(n: sg.i32):
        for i in x:
            v = x[i]
            for j in range(n):
                v = sg.sin(v) * t(1.3) + v * x[i]
            y[i] += v

    return Program(run, [x, y], [6])


def argument_of_outer_loop(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run(n: sg.i32, m: sg.i32):
        for i in range(n):
            v = x[i]
            for j in range(1, m):
                v *= x[(i + j) % N] + t(0.5)
            y[i] = v * v

    return Program(run, [x, y], [5, 4])


def of_field(t: Any) -> Program:
    x, y = xy(t)
    n = sg.field(sg.i32, shape=())

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(n[None]):
                v = sg.cos(v) * x[(i + j) % N]
            y[i] = v

    return Program(run, [x, y], prepare=lambda trial: n.fill(3 + 2 * trial))


def of_array(t: Any) -> Program:
    x, y = xy(t)
    bounds = sg.ndarray(sg.i32, N)

    @sg.kernel
    def run(count: sg.types.ndarray(sg.i32, 1)):
        for i in x:
            v = x[i]
            for j in range(count[i]):
                v = sg.sin(v) * t(1.7) + t(0.1)
            y[i] = v

    return Program(run, [x, y], [bounds], lambda trial: bounds.from_numpy(np.roll(COUNTS, trial)))


def computed(t: Any) -> Program:
    x, y = xy(t)
    n = sg.field(sg.i32, shape=())

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(int(sg.sqrt(sg.f32(n[None]) + t(0.25)))):
                v = sg.exp(-v) + v * v * t(0.3)
            y[i] = v

    return Program(run, [x, y], prepare=lambda trial: n.fill(17 + 20 * trial))


def of_values(t: Any) -> Program:
    """The number of trips depends on a float that has a gradient."""
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(int(x[i] * t(4.0))):
                v = v * v + t(0.2)
            y[i] = v

    return Program(run, [x, y], data={0: lambda rng, shape: rng.integers(0, 5, shape) / 4 + 0.1})


def ragged_by_index(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = t(1.0)
            for j in range(i):
                v *= x[j] + t(0.3)
            for j in range(i, N, 2):
                v += sg.sin(v * x[j])
            y[i] = v

    return Program(run, [x, y])


def ragged_nest(t: Any) -> Program:
    x, y = xy(t)
    count = sg.field(sg.i32, shape=N)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(count[i]):
                w = v
                for k in range(count[(i + j) % N]):
                    w = sg.sin(w) + v * x[k]
                v = v * t(0.5) + w
            y[i] = v

    return Program(run, [x, y], prepare=lambda trial: count.from_numpy(np.roll(COUNTS, 2 * trial)))


def depth_four(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run(n: sg.i32):
        for i in x:
            v = x[i]
            for a in range(2):
                v = sg.sin(v) + x[a]
                for b in range(n):
                    v = v * t(0.7) + x[b] * v
                    for c in range(b + 1):
                        v = sg.cos(v * x[c])
                        for d in range(c, 3):
                            v += v * x[d] * t(0.2)
                    v *= t(1.1)
                v += t(0.1) * v * v
            y[i] = v

    return Program(run, [x, y], [3])


def empty_and_single(t: Any) -> Program:
    x, y = xy(t)
    n = sg.field(sg.i32, shape=2)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            w = x[i] * v
            for j in range(n[0]):
                v = sg.sin(v * w)
            for j in range(n[1]):
                w = sg.exp(-w) * v
            for j in range(0):
                w = v
            y[i] = v + w

    return Program(run, [x, y], prepare=lambda trial: n.from_numpy(np.array([[0, 1], [1, 0], [0, 0], [2, 3]][trial], np.int32)))


def downwards(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run(a: sg.i32, b: sg.i32, step: sg.i32):
        for i in x:
            v = x[i]
            for j in range(a, b, step):
                v = v * x[j] + sg.sin(v)
            for j in range(N - 1, -1, -3):
                v = v * x[j] + sg.sin(v)
            y[i] = v

    return Program(run, [x, y], [6, -1, -2])


def over_a_field_inside(t: Any) -> Program:
    x, y = xy(t)
    z = sg.field(t, shape=(2, 3), needs_grad=True)

    @sg.kernel
    def run():
        for i in range(N):
            v = x[i]
            for j, k in z:
                v = v * z[j, k] + sg.sin(v)
            for j in sg.grouped(z):
                v += z[j] * v * t(0.2)
            y[i] = v

    return Program(run, [x, y, z])


def over_ndrange(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run(n: sg.i32):
        for i, j in sg.ndrange(N, (1, n)):
            v = x[i]
            for k, l in sg.ndrange(2, j + 1):
                v = sg.sin(v) + x[(k + l) % N] * v
            y[(i + j) % N] += v * v

    return Program(run, [x, y], [4])


def parallel_bound_of_field(t: Any) -> Program:
    x, y = xy(t)
    n = sg.field(sg.i32, shape=())

    @sg.kernel
    def run():
        for i in range(n[None]):
            v = x[i]
            for j in range(i + 1):
                v = v * v + x[j]
            y[i] = v

    return Program(run, [x, y], prepare=lambda trial: n.fill([4, 0, 6][trial]))


def bound_is_carried(t: Any) -> Program:
    """The inner bound is an integer that the outer loop carries."""
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            m = 1 + i % 2
            for j in range(4):
                for k in range(m):
                    v = sg.sin(v) + x[k % N] * v * t(0.5)
                m = (m * 3 + j) % 5
            y[i] = v

    return Program(run, [x, y])


def index_of_struct_for_as_bound(t: Any) -> Program:
    z = sg.field(t, shape=(3, 5), needs_grad=True)
    y = sg.field(t, shape=(3, 5), needs_grad=True)

    @sg.kernel
    def run():
        for i, j in z:
            v = z[i, j]
            for k in range(i, j):
                v = sg.sin(v) * z[i, k] + v
            y[i, j] = v

    return Program(run, [z, y])


CASES = [
    constant,
    argument,
    argument_of_outer_loop,
    of_field,
    of_array,
    computed,
    of_values,
    ragged_by_index,
    ragged_nest,
    depth_four,
    empty_and_single,
    downwards,
    over_a_field_inside,
    over_ndrange,
    parallel_bound_of_field,
    bound_is_carried,
    index_of_struct_for_as_bound,
]
TRIALS = {"empty_and_single": 4, "parallel_bound_of_field": 3}


@on_back_ends_with_types(CASES)
def test_bounds(session: Any, case: Any, t: Any) -> None:
    check(case, t, TRIALS.get(case.__name__, 2))


def test_an_index_that_leaves_its_range_after_the_last_iteration(arch: str) -> None:
    """Where a segment is run again, nothing is read past the end of the loop."""
    sg.init(arch=arch, debug=True, offline_cache=False)
    n = 19  # odd, for segments of two
    x, y = xy(sg.f32, n)
    following = sg.field(sg.i32, shape=n)
    following.from_numpy(np.array([*range(1, n), 10**6], np.int32))

    @sg.kernel
    def run():
        for i in range(n):
            v, j = x[i], 0
            for _ in range(i + 1):
                v = sg.sin(v) + x[j]
                j = following[j]
            y[i] = v

    x.fill(0.5)
    run()
    y.grad.fill(1.0)
    run.grad()
    sg.sync()
    v, last = 0.5, n - 1
    for _ in range(n):
        v = np.sin(v) + 0.5
    assert y[last] == pytest.approx(v, rel=1e-5)
    assert x.grad[last] == pytest.approx(1.0 + _slope_of_the_start(n), rel=1e-4)


def _slope_of_the_start(steps: int) -> float:
    """Of v = sin(v) + 0.5, done so often from 0.5."""
    v, slope = 0.5, 1.0
    for _ in range(steps):
        v, slope = np.sin(v) + 0.5, slope * np.cos(v)
    return float(slope)


def test_iterations_that_depend_on_the_last_digit_are_counted_as_they_run(session: Any) -> None:
    """The kernel that counts and the gradient round alike, though the gradient uses the product twice: neither fuses it into the sum."""
    n, steps = 8, 40
    scale, offset = np.float32(1.03), np.float32(0.0107)
    rng = np.random.default_rng(1)
    starts, ends = [], []
    while len(starts) < n:
        start = fused = rounded = np.float32(rng.uniform(0.5, 1.0))
        for _ in range(steps):
            rounded = np.float32(np.float32(rounded * scale) + offset)
            fused = np.float32(np.float64(fused) * np.float64(scale) + np.float64(offset))
        if rounded < fused:  # fused, the loop stops here; else it runs once more
            starts.append(start)
            ends.append(fused)
    x, y = xy(sg.f32, n)
    end = sg.field(sg.f32, shape=n)

    @sg.kernel
    def run():
        for i in x:
            v, total = x[i], 0.0
            while v < end[i]:
                p = v * 1.03
                v = p + 0.0107
                total += sg.sin(p) * total + sg.cos(p) * p
            y[i] = v + total

    x.from_numpy(np.array(starts))
    end.from_numpy(np.array(ends))
    run()
    y.grad.fill(1.0)
    run.grad()
    capacities = run.grad._last.plan.capacities
    assert session.device.caps.target_name != "cpu" or capacities == (steps + 1,)
    assert np.isfinite(x.grad.to_numpy()).all()
