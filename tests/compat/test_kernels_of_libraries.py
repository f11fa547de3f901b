"""What libraries that wrap kernels of the Taichi family ask of them, of classes, and of builders of fields."""

from __future__ import annotations

import numpy as np
import pytest
from spirograd.compat.taichi.lang.kernel_impl import Kernel

import spirograd.compat.taichi as ti

pytestmark = [pytest.mark.archs("cpu", "vulkan"), pytest.mark.usefixtures("session")]


@ti.data_oriented
class Squares:
    def __init__(self, x: ti.Field, y: ti.Field) -> None:
        self.x, self.y = x, y

    @ti.kernel
    def square(self) -> None:
        for i in self.x:
            self.y[i] = self.x[i] ** 2


@ti.kernel
def nothing() -> None:
    pass


def test_a_kernel_and_its_gradient_by_the_names_of_the_family() -> None:
    builder = ti.FieldsBuilder()
    x, y = (ti.field(ti.f32, needs_grad=True) for _ in range(2))
    assert not builder.finalized and builder.empty
    builder.dense(ti.i, 4).place(x, y, x.grad, y.grad)
    assert not builder.finalized and not builder.empty
    tree = builder.finalize()
    assert builder.finalized and not ti.root.finalized
    x.from_numpy(np.arange(4, dtype=np.float32))
    y.grad.fill(1.0)

    squares = Squares(x, y)
    assert squares._data_oriented and Squares._data_oriented and not hasattr(tree, "_data_oriented")
    square = squares.square
    for kernel in (square, nothing):
        assert all(isinstance(k, Kernel) for k in (kernel, kernel._primal, kernel._adjoint, kernel.grad))
    assert not any(isinstance(other, Kernel) for other in (Squares, squares, print, len, x, None))
    assert nothing._primal is nothing and nothing._adjoint is nothing.grad
    square()
    square.grad()
    np.testing.assert_allclose(y.to_numpy(), np.arange(4.0) ** 2)
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * np.arange(4.0))
    tree.destroy()
