"""Chains ``v = v + 0.75 + sin(v) / 4``, as many iterations as a bound says: the gradient needs every value on the way and neither
vanishes nor grows however many iterations there are (a diffeomorphism of the circle). So each slot of a tape that holds anything else
shows. The reference is NumPy in f64; results are amplified by 200.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

import spirograd as sg

AMPLIFIED = 200.0


@sg.func
def advance(v):
    """One iteration, in the type of ``v``: the constants are exact in any."""
    return v + 0.75 + 0.25 * sg.sin(v)


def advanced(x: Any, trips: Any) -> tuple[np.ndarray, np.ndarray]:
    """The value after so many iterations from each ``x``, and its derivative by ``x``."""
    v, trips = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(trips))
    values, slopes = _advanced(v.tobytes(), trips.astype(np.int64).tobytes())
    return values.reshape(v.shape).copy(), slopes.reshape(v.shape).copy()


@functools.lru_cache(256)  # the tests of all back ends compare with the same chains
def _advanced(starts: bytes, trips: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The longest chains first, so that those still iterating are a part at the front."""
    v, counts = np.frombuffer(starts, np.float64), np.frombuffer(trips, np.int64)
    order = np.argsort(-counts, kind="stable")
    v, slope = v[order], np.ones(v.size)
    lengths = counts[order]
    for step in range(int(lengths.max(initial=0))):
        on = np.searchsorted(-lengths, -step)  # how many have more iterations than these
        part = v[:on]
        slope[:on] *= 1 + 0.25 * np.cos(part)
        v[:on] = part + 0.75 + 0.25 * np.sin(part)
    values, slopes = np.empty(v.size), np.empty(v.size)
    values[order], slopes[order] = v, slope
    return values, slopes


def starts(n: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(n).uniform(-1, 1, n).astype(dtype)


def chains(n: int, t: Any = sg.f32) -> tuple[Any, Any]:
    """Fields of starts and of results, with gradients."""
    return sg.field(t, shape=n, needs_grad=True), sg.field(t, shape=n, needs_grad=True)


def launch(kernel: Any, args: Sequence[Any], x: Any, y: Any) -> np.ndarray:
    """Set ``x`` and the gradients of ``y``, and queue the kernel and its gradient. Returns the gradients of ``y``."""
    seeds = np.random.default_rng(7).uniform(0.5, 2.0, y.shape[0]).astype(x.to_numpy().dtype)
    x.from_numpy(starts(x.shape[0], seeds.dtype))
    x.grad.fill(0.0)
    y.grad.from_numpy(seeds)
    kernel(*args)
    kernel.grad(*args)
    return seeds


def compare(kernel: Any, args: Sequence[Any], x: Any, y: Any, trips: Any, what: str = "") -> None:
    """Run a kernel ``y[i] = 200 * trips[i] iterations of x[i]`` and its gradient, and check both. ``what`` stands in the message."""
    seeds = launch(kernel, args, x, y)
    sg.sync()
    v, slope = advanced(starts(x.shape[0], seeds.dtype), trips)
    np.testing.assert_allclose(y.to_numpy(), AMPLIFIED * v, rtol=3e-3, atol=1e-3, err_msg=what)
    np.testing.assert_allclose(x.grad.to_numpy(), AMPLIFIED * slope * seeds, rtol=3e-3, atol=1e-3, err_msg=what)


def counted_chains(n: int, t: Any = sg.f32) -> tuple[Any, Any, Any, Any]:
    """A kernel that makes as many iterations for each element as a field says; its input, its output, and that field."""
    x, y = chains(n, t)
    count = sg.field(sg.i32, n)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(count[i]):
                v = advance(v)
            y[i] = v

    return run, x, y, count
