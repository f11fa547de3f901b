"""Adstacks of tasks with very many iterations, of which only the last needs a long one: all are looked at, in time and memory that stay
small.

Nearly all iterations leave at a condition, so that forward runs and gradients cost little.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from grad.chains import AMPLIFIED, advance, advanced, chains, compare, starts
from grad.resident import Peak

import spirograd as sg

pytestmark = pytest.mark.usefixtures("session")

SIZES = [2**24 + 1, 2**25 + 12_345]
# Drivers that run on a CPU take many seconds for the whole of a large space, which `test_the_last_iteration_is_the_longest` has on wgpu.
SMALL = 2**17 + 1
MEBI = 2**20


def mostly_idle(t: Any) -> tuple[Any, Any, Any, Any]:
    """A task of ``last + 1`` iterations in the type ``t``: the last one's chain has count[1] iterations, those of all others count[0]."""
    x, y = chains(4)
    count = sg.field(sg.i32, 4)

    @sg.kernel
    def run(last: t):
        for i in range(last + t(1)):
            k = sg.cast(i == last, sg.i32)
            if count[k] > 0:
                v = x[k]
                for _ in range(count[k]):
                    v = advance(v)
                y[k] = AMPLIFIED * v

    return run, x, y, count


def only_the_last(run: Any, x: Any, y: Any, count: Any, last: int, trips: int) -> None:
    """The gradient where the last iteration alone has a chain."""
    count.from_numpy(np.array([0, trips, 2**31 - 1, 2**31 - 1], np.int32))
    x.grad.fill(0.0)
    y.grad.fill(1.0)
    run.grad(last)
    wanted = AMPLIFIED * advanced(starts(4)[1], trips)[1] if trips else 0
    np.testing.assert_allclose(x.grad.to_numpy(), [0, wanted, 0, 0], rtol=3e-3)
    assert y.grad[1] == (0.0 if trips else 1.0)


LARGE = [("cpu", SIZES[0]), ("vulkan", SMALL), ("wgpu", SIZES[0])]
AT_NIGHT = [pytest.param(*case, marks=pytest.mark.long) for case in [("cpu", SIZES[1]), *[("vulkan", n) for n in SIZES]]]


# Hours on the interpreter, and seconds on drivers that run on a CPU.
@pytest.mark.parametrize("arch,n", [*LARGE, *AT_NIGHT], indirect=["arch"])
def test_the_last_iteration_is_the_longest(session: Any, n: int) -> None:
    run, x, y, count = mostly_idle(sg.i32)
    x.from_numpy(starts(4))
    only_the_last(run, x, y, count, 15, 3)
    with Peak().watched() as peak:
        only_the_last(run, x, y, count, n - 1, 300)
    assert peak.grown < 300 * MEBI


@pytest.mark.archs("cpu")  # the host knows it everywhere; the gradient itself takes long elsewhere
def test_a_bound_that_follows_from_the_index() -> None:
    """No memory, so that the host may know it without a count: at the end of the range, in its middle, and next to its begin."""
    n = SIZES[0]
    x, y = chains(3)

    @sg.kernel
    def run(n: sg.i32, middle: sg.i32):
        for i in range(n):
            at = -1
            if i == n - 1:
                at = 0
            elif i == middle:
                at = 1
            elif i == 1:
                at = 2
            if at >= 0:
                v = x[at]
                for _ in range(i // 40_000 + 3):
                    v = advance(v)
                y[at] = AMPLIFIED * v

    middle = n // 3
    compare(run, (n, middle), x, y, np.array([n - 1, middle, 1]) // 40_000 + 3)
    compare(run, (1000, 10), x, y, 3)


# Hours on the interpreter; wgpu has had its large space.
@pytest.mark.parametrize(
    "arch,n", [("cpu", SIZES[0]), ("vulkan", SMALL), pytest.param("vulkan", SIZES[0], marks=pytest.mark.long)], indirect=["arch"]
)
def test_a_while_in_the_last_iteration(session: Any, n: int) -> None:
    x, y = chains(1)

    @sg.kernel
    def run(last: sg.i32):
        for i in range(last + 1):
            if i == last:
                v, k = x[0], i
                while k > 1:
                    v = advance(v)
                    k = k // 2 if k % 2 == 0 else (k * 5 + 1) // 7
                y[0] = AMPLIFIED * v

    trips, k = 0, n - 1
    while k > 1:
        trips, k = trips + 1, k // 2 if k % 2 == 0 else (k * 5 + 1) // 7
    compare(run, (n - 1,), x, y, trips)


# Hours on the interpreter; wgpu has had its large space.
@pytest.mark.parametrize(
    "arch,rows,columns",
    [("cpu", 4_099, 4_097), ("vulkan", 371, 353), pytest.param("vulkan", 4_099, 4_097, marks=pytest.mark.long)],
    indirect=["arch"],
)
def test_two_dimensions(session: Any, rows: int, columns: int) -> None:
    """The long chain is in the corner."""
    corner = rows - 1
    x, y = chains(1)
    count = sg.field(sg.i32, 2)

    @sg.kernel
    def run(rows: sg.i32, columns: sg.i32):
        for i, j in sg.ndrange(rows, columns):
            if i == rows - 1 and j == columns - 1:
                v = x[0]
                for _ in range(count[i // corner]):
                    v = advance(v)
                y[0] = AMPLIFIED * v

    count.from_numpy(np.array([2**31 - 1, 90], np.int32))
    compare(run, (rows, columns), x, y, 90)


@pytest.mark.optimized
@pytest.mark.archs("cpu")  # what the others run is one thread for an iteration, on a driver of two cores
@pytest.mark.parametrize(
    "t,n",
    [
        (sg.i64, 2**27 + 9),
        pytest.param(sg.i32, 2**31 - 1, marks=pytest.mark.long),
        pytest.param(sg.u32, 2**32 - 1, marks=pytest.mark.long),
        pytest.param(sg.i64, 2**30 + 9, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_as_many_iterations_as_integers_count(t: Any, n: int) -> None:
    """Sizes are found at the speed of native code, with memory that does not depend on the number of iterations."""
    run, x, y, count = mostly_idle(t)
    x.from_numpy(starts(4))
    only_the_last(run, x, y, count, 15, 3)
    begin = time.process_time()
    with Peak().watched() as peak:
        only_the_last(run, x, y, count, n - 1, 40)
    assert peak.grown < 100 * MEBI
    assert time.process_time() - begin < 60
