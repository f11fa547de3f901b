"""Loops that do little but add to memory, on one thread and on several: what NumPy gets, whatever way the back end chooses."""

import numpy as np
import pytest

import spirograd as sg


@pytest.mark.parametrize("n", [1, 40, 3000])
def test_particles_to_grid(arch: str, n: int) -> None:
    """Vectors and scalars with weights, nine neighbours each; a second kernel updates with minima, maxima and integers."""
    for threads in (1, 2, 0) if arch == "cpu" else (0,):
        particles_to_grid(arch, n, threads)


def particles_to_grid(arch: str, n: int, threads: int) -> None:
    sg.init(arch=arch, cpu_max_num_threads=threads)
    size = 12
    x, v = sg.Vector.field(2, sg.f32, n), sg.Vector.field(2, sg.f32, n)
    momentum, mass = sg.Vector.field(2, sg.f32, (size, size)), sg.field(sg.f32, (size, size))
    lowest, count = sg.field(sg.f32, size), sg.field(sg.i32, size)

    @sg.kernel
    def scatter():
        for p in range(n):
            base = sg.cast(x[p], sg.i32)
            for i, j in sg.static(sg.ndrange(3, 3)):
                weight = 0.25 * (i + 1) + 0.5 * j
                momentum[base + sg.Vector([i, j])] += weight * v[p]
                mass[base + sg.Vector([i, j])] += weight

    @sg.kernel
    def summarise():
        for p in range(n):
            row = sg.cast(x[p].x, sg.i32)
            sg.atomic_min(lowest[row], v[p].y)
            count[row] += 1

    rng = np.random.default_rng(n)
    where = rng.random((n, 2), np.float32) * (size - 3)
    speed = rng.integers(-8, 8, (n, 2)).astype(np.float32)  # sums are exact in any order
    x.from_numpy(where)
    v.from_numpy(speed)
    scatter()
    summarise()
    want, weights = np.zeros((size, size, 2)), np.zeros((size, size))
    least, counts = np.zeros(size), np.zeros(size)
    base = where.astype(np.int32)
    for i in range(3):
        for j in range(3):
            at = (base[:, 0] + i, base[:, 1] + j)
            np.add.at(want, at, (0.25 * (i + 1) + 0.5 * j) * speed)
            np.add.at(weights, at, 0.25 * (i + 1) + 0.5 * j)
    np.minimum.at(least, base[:, 0], speed[:, 1])
    np.add.at(counts, base[:, 0], 1)
    np.testing.assert_array_equal(momentum.to_numpy(), want)
    np.testing.assert_array_equal(mass.to_numpy(), weights)
    np.testing.assert_array_equal(lowest.to_numpy(), least)
    np.testing.assert_array_equal(count.to_numpy(), counts)
