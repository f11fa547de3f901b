"""Loops with a constant trip count: short ones are one segment of the gradient, without adstacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg

N = 19


def by_hand(x: Any, y: Any, c: Any) -> tuple[Any, Any, Any]:
    """Gradients of the sum of what the program below gives."""
    kept = []
    v, w = x, y
    for factor in c:
        kept.append((v, w))
        v, w = np.sin(v) * factor + w, w * 0.5 + v * v * 0.1
    dv, dw, dc = np.ones_like(x), np.ones_like(y), np.zeros_like(c)
    for k in reversed(range(len(c))):
        v, w = kept[k]
        dc[k] = (np.sin(v) * dv).sum()
        dv, dw = np.cos(v) * c[k] * dv + 0.2 * v * dw, dv + 0.5 * dw
    return dv, dw, dc


@pytest.mark.parametrize("first", [0, -3])
@pytest.mark.parametrize("trips", [0, 1, 2, 8, 11, 12, 31, 32, 33, 65])
def test_loop_of_two_values(session: Any, trips: int, first: int) -> None:
    x, y, z = (sg.field(sg.f32, N, needs_grad=True) for _ in range(3))
    c = sg.field(sg.f32, max(trips, 1), needs_grad=True)

    @sg.kernel
    def chain():
        for i in x:
            v = x[i]
            w = y[i]
            for k in range(first, first + trips):
                v, w = sg.sin(v) * c[k - first] + w, w * 0.5 + v * v * 0.1
            z[i] = v + w

    for seed in (1, 2):  # once more with other data
        random = np.random.default_rng(seed)
        values = [random.uniform(-1, 1, shape).astype(np.float32) for shape in (N, N, max(trips, 1))]
        values[2] *= 0.5
        for field, value in zip((x, y, c), values):
            field.from_numpy(value)
            field.grad.fill(0)
        z.grad.fill(1)
        chain()
        chain.grad()
        want = by_hand(*[v.astype(np.float64) for v in values[:2]], values[2][:trips].astype(np.float64))
        for field, expected in zip((x, y), want):
            np.testing.assert_allclose(field.grad.to_numpy(), expected, rtol=2e-4, atol=1e-5)
        np.testing.assert_allclose(c.grad.to_numpy()[:trips], want[2], rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("trips", [3, 9, 40])
def test_short_loop_in_a_long_one(session: Any, trips: int) -> None:
    """The loop inside is run again in each iteration of the one around it; its integer is carried, too."""
    x, z = (sg.field(sg.f32, N, needs_grad=True) for _ in range(2))
    rounds = sg.field(sg.i32, ())

    @sg.kernel
    def nest():
        for i in x:
            v = x[i]
            for _ in range(rounds[None]):
                count = 0
                for _ in range(trips):
                    v = v + (0.01 if count % 3 == 0 else -0.005) * v * v
                    count += 1  # noqa: SIM113
                v = v * 0.9
            z[i] = v

    start = np.linspace(-1, 1, N)
    for outer in (0, 1, 5):
        rounds[None] = outer
        x.from_numpy(start.astype(np.float32))
        x.grad.fill(0)
        z.grad.fill(1)
        nest.grad()
        v, slope = start.copy(), np.ones(N)
        for _ in range(outer):
            for count in range(trips):
                factor = 0.01 if count % 3 == 0 else -0.005
                v, slope = v + factor * v * v, slope * (1 + 2 * factor * v)
            v, slope = v * 0.9, slope * 0.9
        np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=2e-5)


@pytest.mark.vulkan_or_wgpu
def test_short_loops_have_no_tapes(session: Any) -> None:
    x, z = (sg.field(sg.f32, N, needs_grad=True) for _ in range(2))

    def gradient(trips: int) -> str:
        @sg.kernel
        def chain():
            for i in x:
                v = x[i]
                for _ in range(trips):
                    v = v * v * 0.5
                z[i] = v

        chain.grad()
        return str(chain.grad.explain())

    assert "loop-carried" not in gradient(8)
    assert "loop-carried" in gradient(100)
