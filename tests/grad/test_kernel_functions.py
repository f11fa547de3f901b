"""The core of `torch_function`, `torch_op` and `jax_function`, with NumPy as the framework: its four maps against exact formulas."""

from __future__ import annotations

import numpy as np
import pytest
from grad.impure_kernels import KERNELS

import spirograd as sg
from spirograd.interop.kernel_function import Framework, KernelFunction, PureFunction
from spirograd.interop.linearization import Linearization
from spirograd.lang.data.foreign_buffers import HostBuffer
from spirograd.lang.data.ndarray import Ndarray

pytestmark = pytest.mark.usefixtures("session")
LINE = sg.types.NDArray[sg.f32, 1]
NUMPY = Framework("NumPy", lambda value: isinstance(value, np.ndarray), Ndarray.from_numpy, "numpy_function", "a function of NumPy")


class NumpyFunction(PureFunction):
    framework = NUMPY


@sg.kernel
def wave(x: LINE, w: LINE, n: sg.i32, y: LINE):
    for i in x:
        y[i] += sg.sin(x[i]) * w[i] * n


def of(seed):
    return np.random.default_rng(seed).uniform(0.2, 1.0, 5).astype(np.float32)


def buffer(array, gradient=None):
    view = array.view(HostBuffer)
    view.requires_grad, view.grad = gradient is not None, None if gradient is None else gradient.view(HostBuffer)
    return view


def test_launches_and_gradients():
    f = NumpyFunction(wave, {"y": "x"})
    x, w, y, u = of(1), of(2), np.zeros(5, np.float32), of(3)
    assert f.output_shape("y", {"x": x}) == (5,)
    assert f.launch({"x": x, "w": w, "n": 3, "y": y}) is None
    np.testing.assert_allclose(y, np.sin(x) * w * 3, rtol=1e-5)
    by_x, by_y = np.zeros(5, np.float32), u.copy()
    f.gradient({"x": buffer(x, by_x), "w": w, "n": 3, "y": buffer(y, by_y)}, None)
    np.testing.assert_allclose(by_x, np.cos(x) * w * 3 * u, rtol=1e-4)


def test_tangents_and_second_derivatives():
    """Copies start from zero where outputs do; directions of inputs that have none are zero."""
    f = NumpyFunction(wave, {"y": "x"})
    x, w, u, v = of(1), of(2), of(3), of(4)
    values = {"x": x, "w": w, "n": 2, "y": np.ones(5, np.float32)}
    run = Linearization(f, values, {"x", "w", "y"}, {"x": v}, ["y"])
    run.tangent()
    np.testing.assert_allclose(run.copies["y"].to_numpy(), np.sin(x) * w * 2, rtol=1e-5)
    np.testing.assert_allclose(run.copies["y"].dual.to_numpy(), np.cos(x) * w * 2 * v, rtol=1e-4)
    run = Linearization(f, values, {"x", "w", "y"}, {"x": v}, ["y"])
    run.second({"y": u})
    for name, gradient, product in (
        ("x", np.cos(x) * w * 2 * u, -np.sin(x) * w * 2 * u * v),
        ("w", np.sin(x) * 2 * u, np.cos(x) * 2 * u * v),
    ):
        np.testing.assert_allclose(run.copies[name].grad.to_numpy(), gradient, rtol=1e-4)
        np.testing.assert_allclose(run.copies[name].grad.dual.to_numpy(), product, rtol=1e-4)
    assert (values["y"] == 1).all(), "arrays of the framework do not change"


@sg.kernel
def squares(a: LINE, b: LINE):
    for i in a:
        b[i] = b[i] * b[i] * a[i]


@pytest.mark.archs("cpu")  # messages are the same everywhere
def test_messages(session):
    with pytest.raises(sg.SpirogradTypeError, match="`numpy_function` takes a kernel"):
        NumpyFunction(np.sin, {"b": "a"})
    with pytest.raises(sg.SpirogradTypeError, match="kernel `wave` has no parameter `z`"):
        NumpyFunction(wave, {"z": "x"})
    with pytest.raises(sg.SpirogradTypeError, match="output `n` is no array"):
        NumpyFunction(wave, {"n": "x"})
    with pytest.raises(sg.SpirogradTypeError, match="output `y` has the shape of `n`, which is no array among the arguments"):
        NumpyFunction(wave, {"y": "n"}).output_shape("y", {"n": 3})
    for case in KERNELS.values():
        with pytest.raises(sg.SpirogradRuntimeError, match=case.message):
            NumpyFunction(case.made(), {"b": "a"}).launch({"a": of(1)[:4], "b": of(2)[:4]})
    a, b = of(1), of(2)
    with pytest.raises(sg.SpirogradCompilationError, match="NumPy then keeps the one that it reads"):
        NumpyFunction(squares, {"b": "a"}).gradient({"a": buffer(a, of(3)), "b": buffer(b, of(4))}, None)
    with pytest.raises(sg.SpirogradRuntimeError, match="need `b` as it was before the kernel, which NumPy does not keep"):
        Linearization(NumpyFunction(squares, {"b": "a"}), {"a": a, "b": b}, {"a", "b"}, {"a": a}, ()).second({"b": b})
    with sg.ad.Tape(), pytest.raises(sg.SpirogradRuntimeError, match="a `numpy_function` has its gradient from NumPy: call it outside"):
        NumpyFunction(wave, {"y": "x"}).launch({"x": a, "w": b, "n": 1, "y": a})


def test_numbers_from_memory():
    @sg.kernel
    def scaled(x: LINE, c: sg.f32, y: LINE):
        for i in x:
            y[i] = x[i] * c

    class Function(KernelFunction):
        framework = NUMPY

    f = Function(scaled, {"y": "x"})
    cells = f.with_cells(["c"])
    assert cells is f.with_cells(("c",)) is not f
    x, y, c = of(1), np.zeros(5, np.float32), np.float32([2.5])
    cells.launch({"x": x, "c": c, "y": y})
    np.testing.assert_allclose(y, x * 2.5, rtol=1e-6)
