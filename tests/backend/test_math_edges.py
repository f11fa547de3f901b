"""Functions of `sg.math` where their definitions are easy to miss: exchanged bounds, signed zeros, infinities, NaN, integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd import math as tm

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.optimized]

INF, NAN = np.inf, np.nan
FLOATS = np.array([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.5, -3.0, 1e9, -1e9, INF, -INF, NAN], np.float32)
INTS = np.array([0, 1, -1, 2, -3, 7, 2**31 - 1, -(2**31)], np.int32)


def bits(x: Any) -> list[int]:
    """Floats by their bits, so that zeros have a sign; all NaN are one."""
    x = np.asarray(x, np.float32)
    return np.where(np.isnan(x), np.float32(NAN), x).view(np.int32).tolist()


def triples(values: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(np.ascontiguousarray(g.reshape(-1)) for g in np.meshgrid(values, values, values))


def numbers_only(f: Any, a: Any, b: Any) -> Any:
    """`min` and `max`, for which a NaN loses to a number."""
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, f(a, b)))


@pytest.mark.parametrize("values", [FLOATS, INTS], ids=["floats", "integers"])
def test_clamp(session: Any, values: np.ndarray) -> None:
    """min(xmax, max(xmin, x)): xmax where the bounds are exchanged, as in the family."""
    x, low, high = triples(values)
    out = np.zeros_like(x)

    @sg.kernel
    def k(x: sg.types.ndarray(), low: sg.types.ndarray(), high: sg.types.ndarray(), out: sg.types.ndarray()):
        for i in x:
            out[i] = tm.clamp(x[i], low[i], high[i])

    k(x, low, high, out)
    wanted = numbers_only(np.minimum, high, numbers_only(np.maximum, low, x)) if values is FLOATS else np.minimum(high, np.maximum(low, x))
    np.testing.assert_array_equal(out, wanted)  # of two zeros either


def test_clamp_of_vectors_and_mixed_arguments(session: Any) -> None:
    @sg.kernel
    def k(v: sg.types.vector(3, sg.f32), low: sg.types.vector(3, sg.f32), s: sg.f32) -> sg.types.matrix(4, 3, sg.f32):
        a, b = tm.clamp(v, 2.0, s), tm.clamp(v, low, s)
        c, d = tm.clamp(s, low, v), tm.clamp(v, low, 2)
        return sg.Matrix([[a[0], a[1], a[2]], [b[0], b[1], b[2]], [c[0], c[1], c[2]], [d[0], d[1], d[2]]])

    v, low, s = np.array([-1, 1.5, 5], np.float32), np.array([3, -2, 1], np.float32), 1.0
    limited = lambda x, lo, hi: np.minimum(hi, np.maximum(lo, x))  # noqa: E731
    wanted = [limited(v, 2.0, s), limited(v, low, s), limited(np.full(3, s), low, v), limited(v, low, 2)]
    np.testing.assert_array_equal(k(sg.Vector(v), sg.Vector(low), s).to_numpy(), wanted)
    assert tm.clamp(5, 1, 0) == tm.clamp(-5.0, 1.0, 0.0) == 0
    assert tm.clamp(sg.Vector([5.0, -5.0]), 1.0, 0.0).to_list() == [0.0, 0.0]


def test_clamp_has_the_gradient_of_what_it_takes(session: Any) -> None:
    x, low, high, y = (sg.field(sg.f32, shape=4, needs_grad=True) for _ in range(4))

    @sg.kernel
    def k():
        for i in x:
            y[i] = tm.clamp(x[i], low[i], high[i])

    for field, numbers in ((x, [-1, 0.5, 3, 0.5]), (low, [0, 0, 0, 1]), (high, [1, 1, 1, 0])):
        field.from_numpy(np.array(numbers, np.float32))
    y.grad.fill(1.0)
    k()
    k.grad()
    assert x.grad.to_numpy().tolist() == [0, 1, 0, 0]
    assert low.grad.to_numpy().tolist() == [1, 0, 0, 0]
    assert high.grad.to_numpy().tolist() == [0, 0, 1, 1]


def test_step(session: Any) -> None:
    """0.0 or 1.0, whatever x is: not a NaN for infinities, not -0.0."""
    edge, x = (np.ascontiguousarray(g.reshape(-1)) for g in np.meshgrid(FLOATS, FLOATS))
    out = np.full_like(x, 9)

    @sg.kernel
    def k(edge: sg.types.ndarray(), x: sg.types.ndarray(), out: sg.types.ndarray()):
        for i in x:
            out[i] = tm.step(edge[i], x[i])

    k(edge, x, out)
    assert bits(out) == bits(np.where(x < edge, 0.0, 1.0))

    @sg.kernel
    def of_integers(edge: sg.i32, x: sg.i32) -> sg.f32:
        return tm.step(edge, x)

    for a in INTS.tolist():
        for b in INTS.tolist():
            assert bits(of_integers(a, b)) == bits(0.0 if b < a else 1.0)


def test_smoothstep(session: Any) -> None:
    """Where nothing is between the edges a NaN comes up, which `clamp` takes for the lower bound."""
    cases = [
        (0, 1, -1),
        (0, 1, 0),
        (0, 1, 0.25),
        (0, 1, 1),
        (0, 1, 7),
        (0, 1, INF),
        (0, 1, -INF),
        (1, 0, 0.25),
        (0.5, 0.5, 0.5),
        (0, 1, NAN),
    ]

    @sg.kernel
    def k(a: sg.f32, b: sg.f32, x: sg.f32) -> sg.f32:
        return tm.smoothstep(a, b, x)

    for a, b, x in cases:
        with np.errstate(invalid="ignore"):
            t = np.float32(x - a) / np.float32(b - a)
        t = 0.0 if np.isnan(t) else min(1.0, max(0.0, float(t)))
        assert k(a, b, x) == pytest.approx(t * t * (3 - 2 * t), abs=1e-6), (a, b, x)


def test_refract_gives_plain_zeros_for_total_reflection(session: Any) -> None:
    @sg.kernel
    def k(x: sg.types.vector(3, sg.f32), n: sg.types.vector(3, sg.f32), eta: sg.f32) -> sg.types.vector(3, sg.f32):
        return tm.refract(x, n, eta)

    x, n = np.array([-0.8, -0.6, 0.0], np.float32), np.array([0.0, 1.0, 0.0], np.float32)
    assert bits(k(sg.Vector(x), sg.Vector(n), 2.0).to_numpy()) == bits([0, 0, 0])
    cosine = float(x @ n)
    inside = 1 - 0.25 * (1 - cosine**2)
    np.testing.assert_allclose(k(sg.Vector(x), sg.Vector(n), 0.5).to_numpy(), 0.5 * x - (0.5 * cosine + inside**0.5) * n, rtol=1e-5)
