"""What libraries that wrap kernels of the Taichi family ask of them, of classes, and of builders of fields."""

from __future__ import annotations

import numpy as np
import pytest
from spirograd.compat.taichi.lang.field import ScalarField
from spirograd.compat.taichi.lang.kernel_impl import Kernel
from spirograd.compat.taichi.lang.matrix import MatrixField

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


def test_fields_of_scalars_and_of_vectors_are_told_apart() -> None:
    scalars, vectors, matrices = ti.field(ti.i32, 2), ti.Vector.field(2, ti.f32, 3), ti.Matrix.field(2, 2, ti.f32, ())
    records = ti.Struct.field({"a": ti.f32}, shape=2)
    for kind in (ScalarField, ti.ScalarField, ti.lang.impl.ScalarField):
        assert [isinstance(x, kind) for x in (scalars, vectors.get_scalar_field(1), records.a)] == [True] * 3
        assert [isinstance(x, kind) for x in (vectors, matrices, records, ti.ndarray(ti.f32, 2), 1.0)] == [False] * 5
    assert [isinstance(x, MatrixField) for x in (scalars, vectors, matrices)] == [False, True, True]


def test_a_dense_node_without_axes_has_one_cell() -> None:
    x, y, z = ti.field(ti.f32, needs_grad=True), ti.Vector.field(2, ti.f32), ti.field(ti.i32)
    builder = ti.FieldsBuilder()
    single = builder.dense((), ())
    single.place(x, x.grad, z)
    builder.dense([], []).dense(ti.i, 3).place(y)
    tree = builder.finalize()

    @ti.kernel
    def write() -> None:
        for i in y:
            y[i] = [i, 2 * i]
        z[None] += 5
        x[None] = 4.0

    write()
    assert single.shape == x.shape == () and y.shape == (3,)
    assert x[None] == 4.0 and z[None] == 5
    np.testing.assert_array_equal(y.to_numpy(), [[0, 0], [1, 2], [2, 4]])
    tree.destroy()


def test_a_sparse_node_without_axes_is_refused() -> None:
    with pytest.raises(ti.TaichiTypeError, match="the axes of a pointer node are distinct and at least one"):
        ti.FieldsBuilder().pointer((), ())
