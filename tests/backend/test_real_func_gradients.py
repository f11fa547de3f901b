"""Derivatives of kernels that call functions of `@real_func`."""

import numpy as np
import pytest
from backend.real_functions import functions

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu


@pytest.mark.parametrize("several", [False, True])
def test_gradients(session, several: bool) -> None:
    @sg.real_func
    def f(a: sg.f32, n: sg.i32) -> sg.f32:
        for k in range(n):
            a = a * sg.sin(a + k)
            if a > 0.9:
                return a * a
        return a + 0.5

    @sg.real_func
    def pair(a: sg.f32, n: sg.i32):
        return f(a, n), a * a

    x, y = (sg.field(sg.f32, shape=11, needs_grad=True) for _ in range(2))

    @sg.kernel
    def run():
        for i in x:
            if sg.static(several):
                u, v = pair(x[i], i % 3)
                y[i] = u * v
            else:
                y[i] = f(x[i], i % 3) * x[i]

    def exact(a: np.ndarray) -> np.ndarray:
        out = np.empty_like(a)
        for i, v in enumerate(a):
            w, early = v, None
            for k in range(i % 3):
                w = w * np.sin(w + k)
                if w > 0.9:
                    early = w * w
                    break
            out[i] = (w + 0.5 if early is None else early) * (v * v if several else v)
        return out

    a = np.linspace(0.2, 1.7, 11).astype(np.float32)
    for _ in range(2):
        x.from_numpy(a)
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        run()
        run.grad()
        w, h = a.astype(float), 1e-6
        np.testing.assert_allclose(y.to_numpy(), exact(w), rtol=1e-5)
        np.testing.assert_allclose(x.grad.to_numpy(), (exact(w + h) - exact(w - h)) / (2 * h), rtol=1e-4, atol=1e-5)
        a = a[::-1].copy()
    assert "f.1" in functions(run)
    sg.ad.gradcheck(run)


def test_forward_mode_and_tapes(session) -> None:
    @sg.real_func
    def cube(a: sg.f32) -> sg.f32:
        return a * a * a

    x, loss = sg.field(sg.f32, shape=6, needs_grad=True, needs_dual=True), sg.field(sg.f32, shape=(), needs_grad=True, needs_dual=True)

    @sg.kernel
    def run():
        for i in x:
            loss[None] += cube(x[i])

    a = np.arange(6, dtype=np.float32)
    x.from_numpy(a)
    with sg.ad.Tape(loss):
        run()
    np.testing.assert_allclose(x.grad.to_numpy(), 3 * a**2)
    loss[None] = 0
    with sg.ad.FwdMode(loss=loss, param=x, seed=[1.0] * 6):
        run()
    assert loss.dual[None] == (3 * a**2).sum()


def test_extrema_and_their_gradients(session) -> None:
    """The maximum is found again by its value."""

    @sg.real_func
    def f(a: sg.f32, b: sg.f32) -> sg.f32:
        return a * b + a * 0.1 + b

    x, m = sg.field(sg.f32, shape=50, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def run():
        for i in x:
            sg.atomic_max(m[None], f(x[i], 0.3))

    a = np.random.default_rng(4).random(50, dtype=np.float32)
    x.from_numpy(a)
    m[None] = -1.0
    m.grad[None] = 1.0
    run()
    run.grad()
    want = np.zeros(50)
    want[a.argmax()] = 0.4
    np.testing.assert_allclose(x.grad.to_numpy(), want, rtol=1e-6)
