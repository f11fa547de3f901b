"""Tensors: one source for fields and ndarrays."""

import numpy as np
import pytest

import spirograd as sg

pytestmark = [
    pytest.mark.vulkan_or_wgpu,
    pytest.mark.usefixtures("session"),
    pytest.mark.parametrize("backend", [sg.Backend.FIELD, sg.Backend.NDARRAY], ids=["field", "ndarray"]),
]


def test_scalars(arch: str, backend: sg.Backend) -> None:
    x = sg.tensor(sg.f32, shape=(3, 4), backend=backend)
    n = sg.tensor(sg.i32, shape=(), backend=backend)

    @sg.kernel
    def work(x: sg.Tensor, n: sg.Tensor, by: sg.f32):
        for i, j in x:
            x[i, j] += by * i + j
            n[None] += x.shape[1]

    work(x, n, 10)
    work(x, n, 10)
    np.testing.assert_array_equal(x.to_numpy(), 2 * np.add.outer(10 * np.arange(3), np.arange(4)))
    assert n[None] == 2 * 12 * 4 and isinstance(x, sg.Tensor) and x.shape == (3, 4) and x.backend is backend
    x[1, 2] = 5
    assert x[1, 2] == 5
    x.fill(3)
    work(x, n, 0)
    np.testing.assert_array_equal(x.to_numpy()[0], 3 + np.arange(4))
    x.from_numpy(np.ones((3, 4)))
    assert x.to_numpy().sum() == 12


def test_vectors_and_matrices(arch: str, backend: sg.Backend) -> None:
    v = sg.Vector.tensor(3, sg.f32, shape=5, backend=backend)
    m = sg.Matrix.tensor(2, 2, sg.i32, shape=(2, 2), backend=backend)
    t = sg.tensor(sg.math.vec2, shape=4, backend=backend)

    @sg.kernel
    def work(v: sg.Tensor, m: sg.Tensor, t: sg.Tensor):
        for i in v:
            v[i] += [i, 1, 2]
            v[i].z *= 2
        for I in sg.grouped(m):
            m[I][I.x, I.y] = 9
        for i in t:
            t[i] = [v[i].x, m[i % 2, 1][1, 1]]

    work(v, m, t)
    np.testing.assert_array_equal(v.to_numpy(), np.stack([np.arange(5), np.ones(5), 4 * np.ones(5)], 1))
    np.testing.assert_array_equal(m.to_numpy()[1, 0], [[0, 0], [9, 0]])
    np.testing.assert_array_equal(t.to_numpy(), [[0, 0], [1, 9], [2, 0], [3, 9]])
    assert isinstance(v, sg.VectorTensor) and isinstance(m, sg.MatrixTensor)


@pytest.mark.parametrize("layout", [(1, 0), (0, 1), None])
def test_layouts(arch: str, backend: sg.Backend, layout: tuple[int, ...] | None) -> None:
    x = sg.tensor(sg.i32, shape=(3, 5), backend=backend, layout=layout)
    v = sg.Vector.tensor(2, sg.f32, shape=(3, 5), backend=backend, layout=layout)

    @sg.kernel
    def work(x: sg.Tensor, v: sg.Tensor):
        for i, j in x:
            x[i, j] = 10 * i + j
            v[i, j] = [i, j]

    work(x, v)
    want = np.add.outer(10 * np.arange(3), np.arange(5))
    np.testing.assert_array_equal(x.to_numpy(), want)
    np.testing.assert_array_equal(v.to_numpy()[..., 0] * 10 + v.to_numpy()[..., 1], want)
    x.from_numpy(-want)
    assert x[2, 4] == -24


def test_captured_and_in_classes(arch: str, backend: sg.Backend) -> None:
    outer = sg.tensor(sg.f32, shape=4, backend=backend)

    @sg.data_oriented
    class Model:
        def __init__(self) -> None:
            self.w = sg.tensor(sg.f32, shape=4, backend=backend, needs_grad=True)

        @sg.func
        def weight(self, i):
            return self.w[i] + 1

        @sg.kernel
        def work(self, x: sg.Tensor):
            for i in x:
                x[i] = self.weight(i) * outer[i]
                self.w.grad[i] = outer[i]

    model = Model()
    model.w.fill(2)
    outer.from_numpy(np.arange(4))
    for kind in sg.Backend:
        x = sg.tensor(sg.f32, shape=4, backend=kind)
        model.work(x)
        np.testing.assert_array_equal(x.to_numpy(), 3 * np.arange(4))
    np.testing.assert_array_equal(model.w.grad.to_numpy(), np.arange(4))


def test_other_annotations(arch: str, backend: sg.Backend) -> None:
    x = sg.tensor(sg.f32, shape=4, backend=backend)

    @sg.kernel
    def by_template(x: sg.template()):
        for i in x:
            x[i] += 1

    @sg.kernel
    def by_tensor(x: sg.Tensor):
        for i in x:
            x[i] += 10

    by_template(x)
    by_tensor(x)
    np.testing.assert_array_equal(x.to_numpy(), 11)
    y = np.zeros(4, np.float32)
    by_tensor(y)
    np.testing.assert_array_equal(y, 10)
