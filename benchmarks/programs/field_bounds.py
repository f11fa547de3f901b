"""Bounds that are read from a field inside 1,000,000 iterations: gradients are compared with those of NumPy, so a wrong one has failed."""

import numpy as np

import spirograd as sg

N, MOST = 1_000_000, 12
x, y = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, N, needs_grad=True)
trips, lengths = sg.field(sg.i32, ()), sg.field(sg.i32, N)


@sg.kernel
def alike():
    for i in x:
        v = x[i]
        for _ in range(trips[None]):
            v = sg.sin(v) * 1.1 + 0.1
        y[i] = v


@sg.kernel
def ragged():
    for i in x:
        v = x[i]
        for _ in range(lengths[i]):
            v = sg.sin(v) * 1.1 + 0.1
        y[i] = v


def derivatives(start, counts):
    """dy/dx for each iteration, in f64."""
    v, slope = start.astype(np.float64), np.ones(N)
    for k in range(counts.max(initial=0)):
        runs = k < counts
        slope = np.where(runs, slope * 1.1 * np.cos(v), slope)
        v = np.where(runs, np.sin(v) * 1.1 + 0.1, v)
    return slope


def checked(kernel, expected):
    """Run the gradient. Raises AssertionError if it is not as NumPy says."""

    def run():
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        kernel.grad()
        np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=2e-4, atol=1e-5)

    return run


start = np.linspace(0, 1, N, dtype=np.float32)
counts = np.random.default_rng(0).integers(0, MOST + 1, N).astype(np.int32)
x.from_numpy(start)
trips[None] = MOST
lengths.from_numpy(counts)
CASES = {
    "1M, one bound, checked": (checked(alike, derivatives(start, np.full(N, MOST))), 1),
    "1M, bound each, checked": (checked(ragged, derivatives(start, counts)), 1),
}
