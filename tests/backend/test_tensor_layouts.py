"""Layouts of tensors, which are fields or arrays: kernels, Python and exports agree about where elements are, against NumPy. What only
arrays have is in `test_laid_out_arrays`."""

import copy
import math
import pickle

import numpy as np
import pytest

import spirograd as sg

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.usefixtures("session")]
both = pytest.mark.parametrize("backend", [sg.Backend.FIELD, sg.Backend.NDARRAY], ids=["field", "ndarray"])


@pytest.mark.parametrize("layout", [(2, 1, 0), (2, 0, 1), (1, 0, 2)])
@both
@pytest.mark.parametrize("check_out_of_bound", [False, True])
def test_the_memory_follows_the_layout(arch: str, backend: sg.Backend, layout: tuple[int, ...], check_out_of_bound: bool) -> None:
    sg.init(arch=arch, check_out_of_bound=check_out_of_bound)
    x = sg.tensor(sg.f32, shape=(3, 4, 5), backend=backend, layout=layout, needs_grad=True)
    v = sg.Vector.tensor(2, sg.i32, shape=(3, 4, 5), backend=backend, layout=layout)

    @sg.kernel
    def write(x: sg.Tensor, v: sg.Tensor):
        for i, j, k in sg.ndrange(3, 4, 5):
            x[i, j, k] = 100 * i + 10 * j + k
            x.grad[i, j, k] = -x[i, j, k]
            v[i, j, k] = [i + j, k]

    write(x, v)
    i, j, k = np.indices((3, 4, 5))
    want = 100 * i + 10 * j + k
    np.testing.assert_array_equal(x.to_numpy(), want)
    np.testing.assert_array_equal(x.grad.to_numpy(), -want)
    np.testing.assert_array_equal(v.to_numpy(), np.stack([i + j, k], -1))
    assert x[2, 1, 3] == 213 and list(v[2, 3, 4]) == [5, 4]
    x[2, 1, 3] = -1
    assert x.to_numpy()[2, 1, 3] == -1
    copied = copy.deepcopy(x)
    np.testing.assert_array_equal(copied.to_numpy(), x.to_numpy())
    row_major = sg.tensor(sg.f32, shape=(3, 4, 5), backend=backend)
    row_major.copy_from(x)
    np.testing.assert_array_equal(row_major.to_numpy(), x.to_numpy())
    other = sg.tensor(sg.f32, shape=(3, 4, 5), backend=backend, needs_grad=True)
    write(other, v)  # one kernel takes both layouts
    np.testing.assert_array_equal(other.to_numpy(), want)
    if backend == sg.Backend.NDARRAY:
        assert x[np.int32(2), np.int64(1), 3] == -1
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(x)).to_numpy(), x.to_numpy())
    strides = [4 * math.prod([(3, 4, 5)[axis] for axis in layout[layout.index(a) + 1 :]]) for a in range(3)]
    shared = np.from_dlpack(x) if arch in ("cpu", "interpreter") else None
    assert shared is None or list(shared.strides) == strides
    assert shared is None or (shared == x.to_numpy()).all()


@both
def test_derivatives_of_tensors_with_a_layout(arch: str, backend: sg.Backend) -> None:
    a = sg.tensor(sg.f32, shape=(3, 4), backend=backend, layout=(1, 0), needs_grad=True)
    b = sg.tensor(sg.f32, shape=(4, 3), backend=backend, layout=(1, 0), needs_grad=True)
    total = sg.tensor(sg.f32, shape=(), backend=backend, needs_grad=True)

    @sg.kernel
    def trace(a: sg.Tensor, b: sg.Tensor, total: sg.Tensor):
        for i, j in a:
            total[None] += a[i, j] ** 2 * b[j, i]

    rng = np.random.default_rng(3)
    values = rng.random((3, 4), np.float32), rng.random((4, 3), np.float32)
    a.from_numpy(values[0])
    b.from_numpy(values[1])
    total.grad[None] = 1
    trace.grad(a, b, total)
    np.testing.assert_allclose(a.grad.to_numpy(), 2 * values[0] * values[1].T, rtol=1e-5)
    np.testing.assert_allclose(b.grad.to_numpy(), (values[0] ** 2).T, rtol=1e-5)


def test_addresses_of_elements_with_a_layout(arch: str) -> None:
    x = sg.tensor(sg.i32, shape=(3, 5), layout=(1, 0))

    @sg.kernel
    def distance(x: sg.types.ndarray(), i: sg.i32, j: sg.i32) -> sg.i64:
        return sg.cast(sg.get_addr(x, [i, j]) - sg.get_addr(x, [0, 0]), sg.i64)

    assert [distance(x, 1, 0), distance(x, 0, 1)] == [4, 12]
