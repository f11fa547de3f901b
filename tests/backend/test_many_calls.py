"""Kernels with more calls of elementary functions than are expanded in place: the functions are called instead."""

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.dtypes import DType

pytestmark = pytest.mark.optimized

# Each maps (0, 1) into a part of the domain of all of them.
UNARY = {"sin": np.sin, "cos": np.cos, "tan": np.tan, "exp": np.exp, "log": np.log, "tanh": np.tanh, "asin": np.arcsin, "acos": np.arccos}
MANY = 20
TOLERANCE = {"f16": 2e-2, "f32": 2e-6, "f64": 1e-13}


def values(n: int, dtype: DType) -> np.ndarray:
    rng = np.random.default_rng(n)
    return rng.uniform(0.1, 0.9, n).astype(dtype.np)


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("dtype", [sg.f16, sg.f32, sg.f64], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_each_function(session, name: str, dtype: DType) -> None:
    """In a loop that is vectorised, whose length is no multiple of the lanes."""
    f = getattr(sg, name)

    @sg.kernel
    def run(x: sg.types.ndarray(dtype, 1), y: sg.types.ndarray(dtype, 1)):
        for i in x:
            total = sg.cast(0.0, dtype)
            for k in sg.static(range(MANY)):
                total += f(x[i] * (1.0 - 0.04 * k))
            y[i] = total

    for n in (1, 21):
        x = values(n, dtype)
        y = np.zeros_like(x)
        run(x, y)
        want = sum(UNARY[name](x.astype(float) * (1.0 - 0.04 * k)) for k in range(MANY))
        np.testing.assert_allclose(y.astype(float), want, rtol=TOLERANCE[str(dtype)], atol=MANY * TOLERANCE[str(dtype)])


def test_functions_of_two_values(session) -> None:
    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 1), y: sg.types.ndarray(sg.f32, 2)):
        for i in x:
            powers = angles = 0.0
            for k in sg.static(range(MANY)):
                powers += x[i] ** (0.3 * k)
                angles += sg.atan2(x[i], k - 9.5)
            y[i, 0], y[i, 1] = powers, angles

    x, y = values(37, sg.f32), np.zeros((37, 2), np.float32)
    run(x, y)
    wide = x.astype(float)
    np.testing.assert_allclose(y[:, 0], sum(wide ** (0.3 * k) for k in range(MANY)), rtol=2e-6)
    np.testing.assert_allclose(y[:, 1], sum(np.arctan2(wide, k - 9.5) for k in range(MANY)), rtol=2e-6)


def test_calls_under_conditions_and_in_serial_loops(session) -> None:
    """Under conditions that differ between the lanes; in a loop whose iterations depend on each other; in a loop of unknown length."""

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 1), y: sg.types.ndarray(sg.f32, 2)):
        for i in x:
            chosen, carried, counted = 0.0, x[i], 0.0
            for k in sg.static(range(MANY)):
                if x[i] > 0.05 * k:
                    chosen += sg.exp(-x[i] * k)
            for _ in range(15):
                carried = 0.5 * carried + 0.4 * sg.sin(carried)
            for _ in range(i % 3):
                counted += sg.cos(x[i])
            y[i, 0], y[i, 1], y[i, 2] = chosen, carried, counted

    x, y = values(45, sg.f32), np.zeros((45, 3), np.float32)
    run(x, y)
    wide = x.astype(float)
    np.testing.assert_allclose(y[:, 0], sum(np.where(x > np.float32(0.05 * k), np.exp(-wide * k), 0) for k in range(MANY)), rtol=1e-5)
    carried = wide
    for _ in range(15):
        carried = 0.5 * carried + 0.4 * np.sin(carried)
    np.testing.assert_allclose(y[:, 1], carried, rtol=1e-5, atol=2e-6)  # sines of graphics cards have an absolute error
    np.testing.assert_allclose(y[:, 2], (np.arange(45) % 3) * np.cos(wide), rtol=1e-5)


def test_the_gradient(session) -> None:
    """Also in lockstep: a serial loop whose iterations depend on each other, in a parallel one."""
    x, y = (sg.field(sg.f32, shape=19, needs_grad=True) for _ in range(2))

    @sg.kernel
    def run():
        for i in x:
            a = x[i]
            for _ in range(13):
                for k in sg.static(range(10)):
                    a = 0.9 * a + 0.1 * sg.sin(a + 0.1 * k)
            y[i] = a

    start = values(19, sg.f32)
    x.from_numpy(start)
    y.grad.fill(1.0)
    run()
    run.grad()
    a, slope = start.astype(float), np.ones(19)
    for _ in range(13):
        for k in range(10):
            slope = slope * (0.9 + 0.1 * np.cos(a + 0.1 * k))
            a = 0.9 * a + 0.1 * np.sin(a + 0.1 * k)
    np.testing.assert_allclose(y.to_numpy(), a, rtol=1e-5)
    np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-5)


@pytest.mark.archs("cpu")  # reads LLVM IR
def test_loops_with_many_calls_are_small_and_vectorised(session) -> None:
    x = sg.field(sg.f32, shape=64)

    def instructions(n: int) -> tuple[int, str]:
        @sg.kernel
        def run():
            for i in x:
                a = x[i]
                for k in sg.static(range(n)):
                    a = sg.sin(a + k)
                x[i] = a

        run()
        return run.llvm().count("\n  "), run.llvm(optimized=True)

    few, _ = instructions(100)
    many, optimized = instructions(200)
    assert many - few <= 300  # an addition and a call each, and room for one more
    assert "call <8 x float> @sg.sin_f32.v8" in optimized or "call <4 x float> @sg.sin_f32.v4" in optimized


@pytest.mark.archs("cpu")  # reads LLVM IR
@pytest.mark.parametrize("n", [8, 12, 24, 25])
def test_calls_in_loops(session, n: int) -> None:
    """Calls that wait for one another are inlined less often: they would not run faster."""
    x = sg.field(sg.f32, shape=40)

    @sg.kernel
    def dependent():
        for i in x:
            a = x[i]
            for _ in range(20):
                for k in sg.static(range(n)):
                    a = sg.sin(a + k)
            x[i] = a

    @sg.kernel
    def independent():
        for i in x:
            a = x[i]
            for m in range(20):
                for k in sg.static(range(n)):
                    a += sg.sin(m * 1.5 + k * x[i])
            x[i] = a

    start = values(40, sg.f32)
    for run, inlined in ((dependent, 8), (independent, 24)):
        x.from_numpy(start)
        run()
        a = start.astype(float)
        for m in range(20):
            for k in range(n):
                a = np.sin(a + k) if run is dependent else a + np.sin(m * 1.5 + k * start.astype(float))
        # Sums of up to 480 sines cancel: the error is that of their terms.
        np.testing.assert_allclose(x.to_numpy(), a, rtol=1e-4, atol=5e-6)
        assert ("@sg.sin_f32" in run.llvm()) == (n > inlined)
