"""`frexp` against NumPy's, and the gradient of the fraction."""

from __future__ import annotations

import math
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

NORMAL = {sg.f16: 12, sg.f32: 120, sg.f64: 1000}


def samples(dtype: Any) -> np.ndarray:
    """Numbers of all magnitudes, the largest, the smallest that is normal, powers of two, and what has no exponent."""
    info, rng, most = np.finfo(dtype.np), np.random.default_rng(4), NORMAL[dtype]
    spread = np.ldexp(rng.uniform(0.5, 1, 200), rng.integers(-most, most, 200)) * rng.choice([-1, 1], 200)
    special = [0.0, -0.0, 1.0, -8.0, 0.9999, np.inf, -np.inf, np.nan, info.max, info.min, info.tiny, -info.tiny]
    return np.concatenate([special, spread]).astype(dtype.np)


@sg.kernel
def parts(x: sg.types.NDArray, fraction: sg.types.NDArray, exponent: sg.types.NDArray):
    for i in x:
        f, e = sg.frexp(x[i])
        fraction[i] = f
        exponent[i] = e


@pytest.mark.parametrize("dtype", [sg.f16, sg.f32, sg.f64], ids=str)
def test_numbers(session: Any, arch: str, dtype: Any) -> None:
    x = samples(dtype)
    if arch in ("cpu", "interpreter"):  # others may take subnormal numbers for 0
        x = np.append(x, np.array([np.finfo(dtype.np).smallest_subnormal, -np.finfo(dtype.np).tiny / 4], dtype.np))
    fraction, exponent = np.zeros_like(x), np.zeros(len(x), np.int32)
    needs.of_type(dtype)
    parts(x, fraction, exponent)
    want, powers = np.frexp(x)
    np.testing.assert_array_equal(fraction, want)
    np.testing.assert_array_equal(np.signbit(fraction), np.signbit(want))
    np.testing.assert_array_equal(exponent, np.where(np.isfinite(x), powers, 0))


def test_vectors_integers_and_python(session: Any) -> None:
    @sg.kernel
    def run(v: sg.math.vec2, n: sg.i32) -> tuple[sg.math.vec2, sg.math.ivec2, sg.f32, sg.i32]:
        fraction, exponent = sg.frexp(v)
        part, power = sg.frexp(n)
        return fraction, exponent, part, power

    fraction, exponent, part, power = run(sg.math.vec2(3.0, -5.0), 12)
    assert (fraction.to_list(), exponent.to_list(), part, power) == ([0.75, -0.625], [2, 3], 0.75, 4)
    assert sg.frexp(-5.0) == math.frexp(-5.0)


def test_gradient(session: Any) -> None:
    """The exponent is locally constant."""
    x, loss = sg.field(sg.f32, shape=6, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)
    data = np.array([3.0, 0.1, -7.0, 100.0, 1.0, 2e-30], np.float32)
    x.from_numpy(data)

    @sg.kernel
    def run():
        for i in x:
            fraction, exponent = sg.frexp(x[i])
            loss[None] += fraction * fraction + 3 * exponent

    with sg.ad.Tape(loss):
        run()
    fraction, exponent = np.frexp(data.astype(np.float64))
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * fraction * 2.0**-exponent, rtol=1e-6)
