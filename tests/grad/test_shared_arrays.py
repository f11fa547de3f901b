"""One array passed as two arguments."""

from __future__ import annotations

import re

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

Array = sg.types.ndarray(dtype=sg.f32, ndim=1)


@sg.kernel
def squares(x: Array, y: Array):
    for i in x:
        y[i] = x[i] * x[i]


@sg.kernel
def add_products(x: Array, y: Array, z: Array):
    for i in x:
        z[i] += x[i] * y[i]


def _array(values: list[float]) -> sg.Ndarray:
    out = sg.ndarray(sg.f32, len(values), needs_grad=True)
    out.from_numpy(np.array(values, np.float32))
    return out


def test_an_array_that_is_read_twice(session: object) -> None:
    x, z = _array([1, 2, 3]), _array([0, 0, 0])
    add_products(x, x, z)
    z.grad.from_numpy(np.ones(3, np.float32))
    add_products.grad(x, x, z)
    np.testing.assert_allclose(x.grad.to_numpy(), [2, 4, 6])


def test_an_array_that_is_written_too_is_refused(session: object) -> None:
    x = _array([1, 2, 3])
    squares(x, x)
    with pytest.raises(sg.SpirogradRuntimeError, match=re.escape("arguments `y` and `x` share memory, which the kernel writes")) as error:
        squares.grad(x, x)
    assert "y[i] = x[i] * x[i]" in str(error.value)
    loss = sg.field(sg.f32, (), needs_grad=True)
    with pytest.raises(sg.SpirogradRuntimeError, match="share memory"), sg.ad.Tape(loss):
        squares(x, x)
    np.testing.assert_allclose(x.grad.to_numpy(), [0, 0, 0])


@sg.kernel
def squares_of_two(x: Array, unused: Array, y: Array):
    for i in x:
        y[i] = x[i] * x[i]


@pytest.mark.parametrize("of", ["input", "output"])
def test_an_array_that_is_passed_again_and_not_accessed(session: object, of: str) -> None:
    x, y = _array([1, 2, 3]), _array([0, 0, 0])
    unused = x if of == "input" else y
    squares_of_two(x, unused, y)
    y.grad.from_numpy(np.ones(3, np.float32))
    squares_of_two.grad(x, unused, y)
    np.testing.assert_allclose(x.grad.to_numpy(), [2, 4, 6])
    loss = sg.field(sg.f32, (), needs_grad=True)
    with sg.ad.Tape(loss):
        squares_of_two(x, unused, y)
        _sum_of(y, loss)
    np.testing.assert_allclose(x.grad.to_numpy(), [2, 4, 6])


@sg.kernel
def _sum_of(y: Array, loss: sg.template()):
    for i in y:
        loss[None] += y[i]
