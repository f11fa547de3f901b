"""`sg.ad.gradcheck`: right gradients pass, wrong ones are found, and named."""

from __future__ import annotations

import re

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

Array = sg.types.ndarray(dtype=sg.f32, ndim=1)
N = 5


def _fields() -> tuple[sg.Field, sg.Field]:
    x = sg.field(sg.f32, N, needs_grad=True)
    y = sg.Vector.field(2, sg.f32, N, needs_grad=True)
    x.from_numpy(np.linspace(0.5, 1.5, N, dtype=np.float32))
    return x, y


def test_right_gradients_pass(session: object) -> None:
    x, y = _fields()
    w = sg.ndarray(sg.f32, 3, needs_grad=True)
    w.from_numpy(np.array([0.5, 1.0, 1.5], np.float32))

    @sg.kernel
    def steps(w: Array, a: sg.f32, n: sg.i32):
        for i in x:
            v = x[i]
            for j in range(n):
                v = sg.sin(v * w[j % 3]) * a + v
            y[i] = sg.Vector([v, v * v])

    before, gradient = x.to_numpy(), x.grad.to_numpy()
    result = sg.ad.gradcheck(steps, (w, 1.1, 4))
    assert result and {row.name for row in result.rows} == {"x", "y", "w"}
    assert [row.compared for row in result.rows if row.name == "x"] == [N]
    np.testing.assert_array_equal(x.to_numpy(), before)
    np.testing.assert_array_equal(x.grad.to_numpy(), gradient)
    np.testing.assert_array_equal(y.to_numpy(), np.zeros((N, 2)))


def test_a_wrong_gradient_is_named(session: object) -> None:
    x, y = _fields()

    @sg.kernel
    def half():
        for i in x:
            if i < 2:
                y[i][0] += x[i] * x[i]
            else:
                y[i][0] += sg.stop_grad(x[i]) * x[i]

    with pytest.raises(sg.SpirogradAssertionError, match=re.escape("the gradient of kernel `half` by `x`")) as error:
        sg.ad.gradcheck(half)
    assert "first at element [2]" in str(error.value)
    assert "WRONG, first at [2]" in str(error.value)
    assert not sg.ad.gradcheck(half, raise_exception=False)


def test_in_place_and_large(session: object) -> None:
    x, _ = _fields()
    z = sg.field(sg.f32, 500, needs_grad=True)
    z.from_numpy(np.linspace(0.5, 1.5, 500, dtype=np.float32))

    @sg.kernel
    def square():
        for i in x:
            x[i] = x[i] * x[i]
        for i in z:
            z[i] = z[i] * z[i]

    result = sg.ad.gradcheck(square, entries=20)
    assert [(row.name, row.compared, row.elements) for row in result.rows] == [("x", 5, 5), ("z", 20, 500)]


def test_returned_values(session: object) -> None:
    x, _ = _fields()

    @sg.kernel
    def energy() -> sg.f32:
        total = 0.0
        for i in x:
            total += x[i] ** 3
        return total

    assert sg.ad.gradcheck(energy)


def test_what_cannot_be_checked(session: object) -> None:
    x, y = _fields()
    plain = sg.field(sg.f32, N)

    @sg.kernel
    def noise():
        for i in x:
            y[i][0] = x[i] * sg.random()

    @sg.kernel
    def copy():
        for i in plain:
            plain[i] = 2.0

    with pytest.raises(sg.SpirogradRuntimeError, match="draws random numbers"):
        sg.ad.gradcheck(noise)
    with pytest.raises(sg.SpirogradRuntimeError, match="nothing that has a gradient"):
        sg.ad.gradcheck(copy)
    with pytest.raises(sg.SpirogradTypeError, match="takes a kernel"):
        sg.ad.gradcheck(lambda: None)


def test_single_elements(session: object) -> None:
    """Fields without dimensions, as inputs and as results."""
    a, b = sg.field(sg.f32, (), needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    a[None] = 0.7

    @sg.kernel
    def square():
        b[None] = a[None] * a[None]

    assert sg.ad.gradcheck(square)
    assert a[None] == np.float32(0.7)
