"""Loops that add to elements around each iteration run over the elements instead, without atomics: against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd.transforms.tasks import gather

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.optimized]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few iterations a loop has."""
    monkeypatch.setattr(gather, "_FEWEST", {False: 0, True: 0})


def check_tasks(session: Any, kernel: Any, gathers: int, atomics: int = 0) -> None:
    """``gathers``: at least so many tasks, of which some may be fused."""
    if session.arch != "interpreter":  # it runs kernels as they are written
        text = kernel.stages()["offload.ir"]
        assert text.count("_gather") >= gathers
        assert text.count('atomic[("add"') == atomics


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(shape).integers(-9, 10, shape).astype(np.float32)


@pytest.mark.parametrize("size", [(3, 3), (4, 3), (7, 33), (40, 17)], ids=str)
def test_gradient_of_a_stencil(session: Any, size: tuple[int, int]) -> None:
    """Twice: the second call adds to what the first one left."""
    rows, columns = size
    now, new, old = (sg.field(sg.f32, size, needs_grad=True) for _ in range(3))

    @sg.kernel
    def step():
        for i, j in sg.ndrange((1, rows - 1), (1, columns - 1)):
            around = now[i - 1, j] + now[i + 1, j] + now[i, j - 1] + now[i, j + 1] - 4.0 * now[i, j]
            new[i, j] = 2.0 * now[i, j] - old[i, j] + 0.5 * around

    wanted, before = numbers(*size), numbers(*size, 1)[..., 0]
    now.grad.from_numpy(before)
    inner = np.zeros(size, np.float32)
    for given in (wanted, 2 * wanted):
        new.grad.from_numpy(given)
        step.grad()
        inner[1:-1, 1:-1] += given[1:-1, 1:-1]
    padded = np.pad(inner, 1)
    around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:] - 4 * inner
    np.testing.assert_array_equal(now.grad.to_numpy(), before + 2 * inner + 0.5 * around)
    np.testing.assert_array_equal(old.grad.to_numpy(), -inner)
    left = 2 * wanted
    left[1:-1, 1:-1] = 0
    np.testing.assert_array_equal(new.grad.to_numpy(), left)
    if min(size) > 3:  # else indices are constants
        check_tasks(session, step.grad, 1)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 33])
def test_periodic_and_limited_indices(session: Any, n: int) -> None:
    x, around, ends = (sg.field(sg.i32, n) for _ in range(3))

    @sg.kernel
    def scatter():
        for i in range(n):
            around[(i + 1) % n] += x[i]
            around[(i - 1 + n) % n] += 2 * x[i]
            around[(i - 2) % n] += 5
            ends[sg.max(i - 2, 0)] += x[i]
            ends[sg.min(i + 1, n - 1)] += 3 * x[i]
            ends[sg.min(sg.max(i - 1, 0), n - 1)] += 7 * x[i]

    values = numbers(n).astype(np.int32)
    x.from_numpy(values)
    scatter()
    i = np.arange(n)
    wanted, limited = np.zeros(n, np.int32), np.zeros(n, np.int32)
    for index, what in (((i + 1) % n, values), ((i - 1) % n, 2 * values), ((i - 2) % n, 5)):
        np.add.at(wanted, index, what)
    for index, factor in ((np.maximum(i - 2, 0), 1), (np.minimum(i + 1, n - 1), 3), (np.maximum(i - 1, 0), 7)):
        np.add.at(limited, index, factor * values)
    np.testing.assert_array_equal(around.to_numpy(), wanted)
    np.testing.assert_array_equal(ends.to_numpy(), limited)
    if n > 3:
        check_tasks(session, scatter, 1)


@pytest.mark.parametrize("n", [0, 1, 2, 50])
def test_bounds_of_the_launch(session: Any, n: int) -> None:
    """Of components of vectors in time t + 1, from a begin that is an argument, under conditions."""
    u = sg.Vector.field(2, sg.i32, (3, 52, 4))

    @sg.kernel
    def scatter(t: sg.i32, begin: sg.i32, end: sg.i32):
        for i, j in sg.ndrange((begin, end), 4):
            u[t + 1, i, j][0] += i
            if j > 0:
                u[t + 1, i + 1, j - 1][0] += 2
            if i % 2 == 0:
                u[t + 1, i + 1, j][1] += 3 * j
            else:
                u[t + 1, i - 1, j][1] += 5

    scatter(1, 1, n + 1)
    wanted = np.zeros((3, 52, 4, 2), np.int32)
    for i in range(1, n + 1):
        for j in range(4):
            wanted[2, i, j, 0] += i
            wanted[2, i + 1, j - 1, 0] += 2 * (j > 0)
            wanted[2, i + (1 if i % 2 == 0 else -1), j, 1] += 3 * j if i % 2 == 0 else 5
    np.testing.assert_array_equal(u.to_numpy(), wanted)
    check_tasks(session, scatter, 1)


def test_elements_to_which_nothing_is_added_stay(session: Any) -> None:
    """Not even the sign of zero changes, nor what lies beyond the first and the last element."""
    u = sg.field(sg.f32, 12)

    @sg.kernel
    def scatter():
        for i in range(4, 8):
            if i != 6:
                u[i - 1] += 1.0
                u[i + 1] += 2.0

    u.fill(-0.0)
    scatter()
    wanted = np.full(12, -0.0, np.float32)
    wanted[[3, 4, 6]] += 1
    wanted[[5, 6, 8]] += 2
    np.testing.assert_array_equal(u.to_numpy(), wanted)
    np.testing.assert_array_equal(np.signbit(u.to_numpy()), np.signbit(wanted))
    check_tasks(session, scatter, 1)


def test_arrays(session: Any) -> None:
    """Launches find out whether they overlap: then atomics add."""
    n = 64

    @sg.kernel
    def scatter(x: sg.types.NDArray[sg.f32, 1], u: sg.types.NDArray[sg.f32, 1], v: sg.types.NDArray[sg.f32, 1]):
        for i in range(1, x.shape[0] - 1):
            u[i - 1] += x[i]
            u[i + 1] += 2.0 * x[i]
            v[i] += 3.0
            v[i + 1] += 5.0

    x, u, v, both = (np.zeros(n, np.float32) for _ in range(4))
    x[:] = numbers(n)
    scatter(x, u, v)
    scatter(x, both, both)
    wanted, other = np.zeros(n, np.float32), np.zeros(n, np.float32)
    wanted[:-2] += x[1:-1]
    wanted[2:] += 2 * x[1:-1]
    other[1:-1] += 3
    other[2:] += 5
    np.testing.assert_array_equal(u, wanted)
    np.testing.assert_array_equal(v, other)
    np.testing.assert_array_equal(both, wanted + other)
    check_tasks(session, scatter, 2)


def test_arrays_shorter_than_the_loop(session: Any) -> None:
    x = np.zeros(30, np.int32)

    @sg.kernel
    def scatter(x: sg.types.NDArray[sg.i32, 1]):
        for i in range(1, 100_000_000):
            if i < x.shape[0] - 1:
                x[i - 1] += 1
                x[i + 1] += 2

    if session.arch != "interpreter":
        scatter(x)
        wanted = np.zeros(30, np.int32)
        wanted[:28] += 1
        wanted[2:] += 2
        np.testing.assert_array_equal(x, wanted)


def used(u: Any, x: Any) -> Callable[[], None]:
    @sg.kernel
    def kernel():
        for i in range(1, 99):
            sg.atomic_add(u[i - 1], x[i])
            x[i] = sg.select(sg.atomic_add(u[i + 1], 1) > 1000, 1, 0)

    return kernel


def read(u: Any, x: Any) -> Callable[[], None]:
    @sg.kernel
    def kernel():
        for i in range(1, 99):
            if i % 4 == 2:
                u[i - 1] += u[i + 1]
                u[i] += 1

    return kernel


def written_before(u: Any, x: Any) -> Callable[[], None]:
    @sg.kernel
    def kernel():
        for i in range(1, 99):
            x[i] = x[i] * 2
            if i % 8 != 9:
                x[i] = x[i] + u.shape[0] - 100
            u[i - 1] += x[i]
            u[i + 1] += x[i]

    return kernel


def divided(u: Any, x: Any) -> Callable[[], None]:
    @sg.kernel
    def kernel():
        for i in range(1, 99):
            u[i // 2] += x[i]
            u[i + 1] += x[i]

    return kernel


def summed(u: Any, x: Any) -> Callable[[], None]:
    """Over an axis that the indices do not follow."""

    @sg.kernel
    def kernel():
        for i, j in sg.ndrange((1, 99), 3):
            u[i - 1] += x[i] * j
            u[i + 1] += x[i]

    return kernel


def maximum(u: Any, x: Any) -> Callable[[], None]:
    @sg.kernel
    def kernel():
        for i in range(1, 99):
            u[i - 1] += x[i]
            sg.atomic_max(u[i + 1], -100)

    return kernel


def nested(u: Any, x: Any) -> Callable[[], None]:
    @sg.kernel
    def kernel():
        for i in range(1, 98):
            for k in range(x[i] & 3):
                u[i - 1 + k] += x[i]

    return kernel


@pytest.mark.parametrize("make", [used, read, written_before, divided, summed, maximum, nested])
def test_loops_that_stay_as_they_are(session: Any, make: Callable[..., Any]) -> None:
    u, x = sg.field(sg.i32, 100), sg.field(sg.i32, 100)
    values = numbers(100).astype(np.int32)
    x.from_numpy(values)
    kernel = make(u, x)
    kernel()
    wanted, i = np.zeros(100, np.int32), np.arange(1, 99)
    inner = values[1:99]
    for where, what in {
        used: [(i - 1, inner), (i + 1, 1)],
        read: [(i[i % 4 == 2], 1)],
        written_before: [(i - 1, 2 * inner), (i + 1, 2 * inner)],
        divided: [(i // 2, inner), (i + 1, inner)],
        summed: [(i - 1, (0 + 1 + 2) * inner), (i + 1, 3 * inner)],
        maximum: [(i - 1, inner)],
        nested: [(k - 1 + n, values[k]) for k in range(1, 98) for n in range(values[k] & 3)],
    }[make]:
        np.add.at(wanted, where, what)
    np.testing.assert_array_equal(u.to_numpy(), wanted)
    if session.arch != "interpreter":
        assert "_gather" not in kernel.stages()["offload.ir"]


def test_loops_without_iterations_at_the_ends_of_i32(session: Any) -> None:
    """What lies around such loops must not wrap around."""
    line, plane = sg.field(sg.i32, 20), sg.field(sg.i32, (20, 20))

    @sg.kernel
    def back(a: sg.i32, b: sg.i32):
        for i in range(a, b):
            line[i - 1] += 1
            line[i - 2] += 2

    @sg.kernel
    def forth(a: sg.i32, b: sg.i32):
        for i in range(a, b):
            line[i + 1] += 1
            line[i + 2] += 2

    @sg.kernel
    def diagonal(a: sg.i32, b: sg.i32, c: sg.i32, d: sg.i32):
        for i, j in sg.ndrange((a, b), (c, d)):
            plane[i + 1, j + 1] += 1
            plane[i + 2, j + 1] += 1

    lowest, highest = -(2**31), 2**31 - 1
    for kernel in (back, forth):
        for bounds in ((0, lowest), (highest, 10), (highest, lowest), (5, 5)):
            kernel(*bounds)
    diagonal(0, 5, highest, lowest)
    diagonal(highest, lowest, 0, 5)
    assert line.to_numpy().sum() == plane.to_numpy().sum() == 0
    back(2, 5)
    forth(2, 5)
    diagonal(0, 5, 2, 4)
    assert line.to_numpy().sum() == 18 and plane.to_numpy().sum() == 20
    check_tasks(session, diagonal, 1)


def test_places_in_vectors(session: Any) -> None:
    """Components have no axis of the field."""
    v = sg.Vector.field(8, sg.i32, 16)

    @sg.kernel
    def scatter(a: sg.i32, b: sg.i32):
        for i in range(a, b):
            v[3][i - 1] += 1
            v[3][i + 1] += 2

    scatter(1, 7)
    wanted = np.zeros((16, 8), np.int32)
    wanted[3, 0:6] += 1
    wanted[3, 2:8] += 2
    np.testing.assert_array_equal(v.to_numpy(), wanted)


def test_indices_by_a_flat_index_of_negative_extents(session: Any) -> None:
    """Only index spaces promise that extents are not negative, and that their product fits."""
    u = sg.field(sg.i32, (200, 200), offset=(-100, 0))

    @sg.kernel
    def scatter(n: sg.i32, m: sg.i32):
        for p in range(n * m):
            u[sg.raw_div(p, m), sg.raw_mod(p, m)] += 1
            u[sg.raw_div(p, m), sg.raw_mod(p, m) + 1] += 1

    scatter(-3, -4)
    assert u.to_numpy().sum() == 24


@pytest.mark.parametrize("t", [sg.f16, sg.f32], ids=str)
def test_sums_begin_with_the_element(session: Any, t: Any) -> None:
    """As atomics do: large numbers that cancel do not become infinite."""
    needs.of_type(t)
    large = 40000.0 if t is sg.f16 else 2e38
    u = sg.field(t, 50)
    u.fill(-1.5 * large)

    @sg.kernel
    def scatter():
        for i in range(1, 49):
            u[i - 1] += sg.cast(large, t)
            u[i + 1] += sg.cast(large, t)

    scatter()
    np.testing.assert_allclose(u.to_numpy()[2:48].astype(np.float64), 0.5 * large, rtol=1e-3)
    check_tasks(session, scatter, 1)


def test_other_indices_out_of_range(session: Any) -> None:
    """Of a loop that accesses nothing: nor does the loop over the elements."""
    u = sg.field(sg.i32, (4, 50))

    @sg.kernel
    def scatter(t: sg.i32, n: sg.i32):
        for i in range(1, 49):
            if i < n:
                u[t, i - 1] += 1
                u[t, i + 1] += 2

    for t in (10**8, -(10**8)):
        scatter(t, 0)
    scatter(2, 5)
    wanted = np.zeros((4, 50), np.int32)
    wanted[2, 0:4] += 1
    wanted[2, 2:6] += 2
    np.testing.assert_array_equal(u.to_numpy(), wanted)
    check_tasks(session, scatter, 1)


def test_far_limits(session: Any) -> None:
    """Many iterations that are limited to one element: atomics add."""
    u = sg.field(sg.i32, 100)

    @sg.kernel
    def scatter():
        for i in range(100):
            u[sg.max(i - 1_000_000_000, 0)] += 1
            u[i] += 1

    scatter()
    assert u[0] == 101 and u.to_numpy().sum() == 200
