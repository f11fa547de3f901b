"""Loops over all that the types of their bounds hold: distances, products and counts that need one bit more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.errors import SpirogradRuntimeError

LOW, HIGH = -(2**31), 2**31 - 1
EDGES = [LOW, LOW + 1, LOW + 5, -(2**30), -3, -1, 0, 1, 2, 7, 2**30, HIGH - 4, HIGH - 1, HIGH]
STEPS = [1, 2, 3, 7, 2**29, 2**30 + 1, HIGH - 1, HIGH]


def ranges(steps: list[int], most: int = 40) -> list[tuple[int, int, int]]:
    return [(a, b, s) for a in EDGES for b in EDGES for s in steps if len(range(a, b, s)) <= most]


def summary(numbers: Any) -> tuple[int, int]:
    """The number of iterations, and a sum that tells their indices."""
    return len(numbers), sum(k % 1009 for k in numbers)


def check(kernel: Any, cases: list[tuple[int, int, int]]) -> None:
    """``kernel(begins, ends, steps, counts, sums)`` runs the loops of all cases."""
    begins, ends, steps = (np.array(x, np.int32) for x in zip(*cases))
    counts, sums = (np.zeros(len(cases), np.int32) for _ in range(2))
    kernel(begins, ends, steps, counts, sums)
    wanted = [summary(range(*case)) for case in cases]
    wrong = [(case, got, w) for case, got, w in zip(cases, zip(counts.tolist(), sums.tolist()), wanted) if got != w]
    assert not wrong, wrong[:5]


def test_steps_known_at_run_time(session: Any) -> None:
    @sg.kernel
    def k(a: sg.types.ndarray(), b: sg.types.ndarray(), s: sg.types.ndarray(), n: sg.types.ndarray(), t: sg.types.ndarray()):
        for c in range(a.shape[0]):
            for i in range(a[c], b[c], s[c]):
                n[c] += 1
                t[c] += i % 1009

    check(k, ranges([*STEPS, *[-s for s in STEPS], LOW])[::3])


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("step", [1, -1, 2, -2, 3, 2**30, -(2**30) - 1, HIGH, LOW])
def test_constant_steps(session: Any, step: int) -> None:
    @sg.kernel
    def k(a: sg.types.ndarray(), b: sg.types.ndarray(), s: sg.types.ndarray(), n: sg.types.ndarray(), t: sg.types.ndarray()):
        for c in range(a.shape[0]):
            for i in range(a[c], b[c], sg.static(step)):
                n[c] += 1
                t[c] += i % 1009

    check(k, ranges([step]))


@pytest.mark.parametrize(
    ("begin", "end", "step"), [(LOW, HIGH, 400_000_000), (HIGH, LOW, -400_000_000), (LOW, 5, -1), (3, LOW, 1), (1, LOW, 2)]
)
def test_parallel_loops(session: Any, begin: int, end: int, step: int) -> None:
    """Bounds as arguments, from memory, and constant."""
    n, bounds, seen = sg.field(sg.i32, shape=3), sg.field(sg.i32, shape=2), sg.field(sg.i32, shape=())
    bounds.from_numpy(np.array([begin, end], np.int32))

    @sg.kernel
    def k(a: sg.i32, b: sg.i32):
        for i in range(a, b, step):
            n[0] += 1
            seen[None] += i % 1009
        for i in range(bounds[0], bounds[1], step):
            n[1] += 1
        for i in range(begin, end, step):
            n[2] += 1

    k(begin, end)
    count, total = summary(range(begin, end, step))
    assert n.to_numpy().tolist() == [count] * 3
    assert seen[None] == total


def test_parallel_loops_whose_step_is_an_argument(session: Any) -> None:
    """Where tasks are dispatched, the host computes how many iterations there are."""
    n, seen = sg.field(sg.i32, shape=()), sg.field(sg.i32, shape=())

    @sg.kernel
    def k(a: sg.i32, b: sg.i32, s: sg.i32):
        for i in range(a, b, s):
            n[None] += 1
            seen[None] += i % 1009

    near = [(a, b, s) for a in (-7, 0, 5) for b in (-7, 4, 5, 6, 300) for s in (-300, -3, -1, 1, 2, 7)]
    far = ranges([*STEPS, *[-s for s in STEPS], LOW])[::29]
    for case in (*near, *far):
        n[None] = seen[None] = 0
        k(*case)
        assert (n[None], seen[None]) == summary(range(*case)), case
    n[None] = 0
    k(0, 10, 0)
    assert n[None] == 0
    compiled = k._last.plan.compiled
    if compiled.target.invocations:
        assert all(task.end is not None for task in compiled.tasks)


def test_a_step_of_zero_runs_nothing(session: Any) -> None:
    n = sg.field(sg.i32, shape=())

    @sg.kernel
    def k(step: sg.i32):
        for i in range(0, 10, step):
            n[None] += 1

    k(0)
    assert n[None] == 0
    k(5)
    assert n[None] == 2


@pytest.mark.archs("interpreter", "cpu", "vulkan")  # integers of 64 bits
def test_bounds_of_64_bits(session: Any) -> None:
    n = sg.field(sg.i32, shape=())

    @sg.kernel
    def k(a: sg.i64, b: sg.i64, s: sg.i64):
        for i in range(a, b, s):
            n[None] += 1
        for i in range(a, b, 2**62):
            n[None] += 100

    for a, b, s in ((-(2**63), 2**63 - 1, 2**61), (2**63 - 1, 2**63 - 3, -1), (-5, 4, 3)):
        n[None] = 0
        k(a, b, s)
        assert n[None] == len(range(a, b, s)) + 100 * len(range(a, b, 2**62))


SPACES = [(0, 5), (1, 1), (3, 5), (-5, -7), (-5, 3), (HIGH, 0), (0, HIGH), (50_000, 50_000), (65_536, 65_536), (HIGH, 2), (46_341, 46_341)]


@pytest.mark.parametrize("n,m", SPACES)
def test_index_spaces_are_counted_or_refused(session: Any, n: int, m: int) -> None:
    """A parallel loop, and one that runs in order."""
    seen = sg.field(sg.i32, shape=3)

    @sg.kernel
    def parallel(n: sg.i32, m: sg.i32):
        for i, j in sg.ndrange(n, m):
            seen[0] += 1

    @sg.kernel
    def serial(n: sg.i32, m: sg.i32):
        for _ in range(1):
            for i, j in sg.ndrange(n, m):
                seen[1] += 1

    @sg.kernel
    def grouped(n: sg.i32, m: sg.i32):
        for at in sg.grouped(sg.ndrange((-1, n - 1), 1, m)):
            seen[2] += 1

    size = max(n, 0) * max(m, 0)
    for k, kernel in enumerate((parallel, serial, grouped)):
        if size > HIGH:
            with pytest.raises(SpirogradRuntimeError, match=f"index space of .*{n}.* x {m}, more elements than i32 counts"):
                kernel(n, m)
                sg.sync()
        else:
            kernel(n, m)
            assert seen[k] == size


def test_axes_longer_than_their_type(session: Any) -> None:
    seen = sg.field(sg.i32, shape=())

    @sg.kernel
    def k(low: sg.i32, high: sg.i32):
        for i, j in sg.ndrange((low, high), 1):
            seen[None] += 1

    k(HIGH - 3, HIGH)
    k(LOW, LOW + 2)
    k(HIGH, LOW)
    assert seen[None] == 5
    with pytest.raises(SpirogradRuntimeError, match="4294967295 x 1, more"):
        k(LOW, HIGH)
        sg.sync()


@pytest.mark.optimized
@pytest.mark.archs("cpu")  # which alone runs so many iterations in a moment: it adds them up without running them
def test_known_index_spaces_of_64_bits(session: Any) -> None:
    seen = sg.field(sg.i64, shape=2)

    @sg.kernel
    def k():
        for i, j in sg.ndrange(50_000, 50_000):
            seen[0] += 1
        for i, j in sg.ndrange((LOW, HIGH), 1):
            seen[1] += 1

    k()
    assert seen.to_numpy().tolist() == [2_500_000_000, 2**32 - 1]


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("step", [-1, 2, -3])
def test_gradients_of_strided_loops(session: Any, step: int) -> None:
    x, y = sg.field(sg.f32, shape=3, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def k(a: sg.i32, b: sg.i32, s: sg.i32):
        for i in x:
            v = x[i]
            for j in range(a, b, step):
                v = sg.sin(v) + 0.01 * j
            for j in range(a, b, s):
                v = sg.cos(v) * 0.9 + 0.01 * j
            y[None] += v

    start = np.array([0.1, -0.4, 0.8], np.float32)
    for a, b in ((0, 7), (7, 0), (-5, 6), (6, -5), (3, 3)):
        x.from_numpy(start)
        x.grad.fill(0.0)
        y.grad[None] = 1.0
        k(a, b, step)
        k.grad(a, b, step)
        v, slope = start.astype(np.float64), np.ones(3)
        for j in range(a, b, step):
            slope *= np.cos(v)
            v = np.sin(v) + 0.01 * j
        for j in range(a, b, step):
            slope *= -np.sin(v) * 0.9
            v = np.cos(v) * 0.9 + 0.01 * j
        np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-4, atol=1e-6)


def test_gradients_refuse_what_the_kernel_refuses(session: Any) -> None:
    """Also in loops, where extents come from memory, and in forward mode; and a loop that does not run has no size."""
    x, y = sg.field(sg.f32, shape=2, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)
    extents = sg.field(sg.i32, shape=2)

    @sg.kernel
    def given(n: sg.i32, m: sg.i32):
        for i, j in sg.ndrange(n, m):
            y[None] += x[0] * x[1]

    @sg.kernel
    def inner(n: sg.i32, m: sg.i32, k: sg.i32):
        for i in range(k):
            v = x[0]
            for a, b in sg.ndrange(n, m):
                v = v * x[1]
            y[None] += v

    @sg.kernel
    def read():
        for i, j in sg.ndrange(extents[0], extents[1]):
            y[None] += x[0] * x[1]

    @sg.kernel
    def read_inside():
        for i in range(1):
            for j in x:
                v = x[j]
                for a, b in sg.ndrange(extents[0], extents[1]):
                    v = v * 0.5
                y[None] += v

    x.from_numpy(np.array([2.0, 3.0], np.float32))
    calls = ((given, True, ()), (inner, True, (1,)), (read, False, ()), (read_inside, False, ()))
    slopes = {given: (6 * 3.0, 6 * 2.0), inner: (3.0**6, 2 * 6 * 3.0**5), read: (18.0, 12.0), read_inside: (0.5**6, 0.5**6)}
    for kernel, by_argument, more in calls:
        for n, m in ((3, 2), (65_536, 65_536)):
            extents.from_numpy(np.array([n, m], np.int32))
            args = (n, m, *more) if by_argument else more
            x.grad.fill(0.0)
            y.grad[None] = 1.0
            if n == 3:
                kernel(*args)
                kernel.grad(*args)
                np.testing.assert_allclose(x.grad.to_numpy(), slopes[kernel], rtol=1e-5)
                continue
            for run in (kernel, kernel.grad):
                with pytest.raises(SpirogradRuntimeError, match="index space of 65536 x 65536, more elements than i32 counts"):
                    run(*args)
                    sg.sync()
    inner(65_536, 65_536, 0)
    inner.grad(65_536, 65_536, 0)
    sg.sync()


def test_checks_of_the_host_cost_no_reporting(session: Any) -> None:
    """A kernel whose extents are arguments cannot fault: launches need not be waited for."""
    x = sg.field(sg.i32, shape=4)

    @sg.kernel
    def k(n: sg.i32, a: sg.types.ndarray()):
        for i in x:
            for j, l in sg.ndrange(n, (1, a.shape[0])):
                x[i] += 1

    k(3, np.zeros(5, np.int32))
    assert x.to_numpy().tolist() == [12] * 4
    compiled = k._last.plan.compiled
    assert compiled.space_limits
    assert not [site for site in compiled.faults if site.code == "space"]


@pytest.mark.optimized
@pytest.mark.archs("cpu")  # which alone runs so many iterations in some seconds
def test_gradient_of_a_serial_loop_longer_than_its_type(session: Any) -> None:
    x, y = sg.field(sg.f64, shape=(), needs_grad=True), sg.field(sg.f64, shape=(), needs_grad=True)

    @sg.kernel
    def k(a: sg.i32, b: sg.i32):
        for _ in range(1):
            for i in range(a, b):
                y[None] += x[None]

    y.grad[None] = 1.0
    k.grad(LOW, 10)
    assert x.grad[None] == 2**31 + 10


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("a,b", [(-3, 4), (LOW, LOW + 5), (HIGH - 6, HIGH), (HIGH, LOW), (5, 5)])
def test_gradients_of_ranges_far_from_0(session: Any, a: int, b: int) -> None:
    """With tapes, whose length is the trip count."""
    x, y = sg.field(sg.f32, shape=2, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)
    bounds = sg.field(sg.i32, shape=2)

    @sg.kernel
    def k(a: sg.i32, b: sg.i32):
        for i in x:
            v = x[i]
            for j in range(a, b):
                v = v * v * (1.0 + (j - a))
            for j in range(bounds[0], bounds[1]):
                v = sg.sin(v)
            y[None] += v

    bounds.from_numpy(np.array([a, b], np.int32))
    start = np.array([0.3, 0.5], np.float32)
    x.from_numpy(start)
    y.grad[None] = 1.0
    k.grad(a, b)
    v, slope = start.astype(np.float64), np.ones(2)
    for j in range(max(b - a, 0)):
        slope *= 2 * v * (1.0 + j)
        v = v * v * (1.0 + j)
    for _ in range(max(b - a, 0)):
        slope *= np.cos(v)
        v = np.sin(v)
    np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-4)


@pytest.mark.archs("interpreter", "cpu", "vulkan")  # integers of 64 bits
def test_bounds_of_2_63_and_more(session: Any) -> None:
    """`range` counts in i64 and refuses them; an `ndrange` of u64 counts in u64."""
    n, bounds = sg.field(sg.i32, shape=()), sg.field(sg.u64, shape=2)

    @sg.kernel
    def given(a: sg.u64, b: sg.u64):
        for i in range(a, b):
            n[None] += 1

    @sg.kernel
    def strided(a: sg.u64, b: sg.u64):
        for i in range(0, a, b):
            n[None] += 1

    @sg.kernel
    def read():
        for _ in range(1):
            for i in range(bounds[0], bounds[1]):
                n[None] += 1

    @sg.kernel
    def space(a: sg.u64, b: sg.u64):
        for i, j in sg.ndrange((a, b), 2):
            n[None] += 1

    for a, b in ((2**63 - 5, 2**63 - 1), (2**63 - 2, 2**63 + 3), (2**63 + 1, 2**63 + 4), (2**64 - 1, 5), (4, 2**64 - 1)):
        bounds.from_numpy(np.array([a, b], np.uint64))
        for kernel, args, fits in ((given, (a, b), max(a, b) < 2**63), (strided, (4, b), b < 2**63), (read, (), max(a, b) < 2**63)):
            n[None] = 0
            if fits:
                kernel(*args)
                assert n[None] == (1 if kernel is strided else b - a)
                continue
            with pytest.raises(SpirogradRuntimeError, match="a bound or step of this range is 2\\*\\*63 or more"):
                kernel(*args)
                sg.sync()
        if b - a < 100:
            n[None] = 0
            space(a, b)
            assert n[None] == 2 * max(b - a, 0)

    @sg.kernel
    def constant():
        for i in range(2**63, 2**63 + 3):
            n[None] += 1

    with pytest.raises(sg.SpirogradTypeError, match="ranges count in i64"):
        constant()


@pytest.mark.archs("interpreter", "cpu", "vulkan")  # integers of 64 bits
def test_literal_bounds_beyond_the_default_type(session: Any) -> None:
    n = sg.field(sg.i64, shape=4)

    @sg.kernel
    def k(end: sg.i64):
        for i in range(2**31 + 10, 2**31 + 15):
            n[0] += i
        for i in range(-(2**31) - 2, -(2**31)):
            n[1] += i
        for i in range(2**33, end):
            n[2] += i
        for i, j in sg.ndrange((sg.i64(2**31 + 3), sg.i64(2**31 + 5)), 2):
            n[3] += i

    k(2**33 + 2)
    wanted = [sum(range(2**31 + 10, 2**31 + 15)), sum(range(-(2**31) - 2, -(2**31))), 2**34 + 1, 4 * 2**31 + 14]
    assert n.to_numpy().tolist() == wanted
