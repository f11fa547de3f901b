"""Ndarrays in kernels: types, ranks, shapes that change, captures, gradients, huge ones."""

import copy
import gc
import pickle

import numpy as np
import pytest

import spirograd as sg
from spirograd.base import dtypes
from spirograd.base.dtypes import DType
from spirograd.lang.frontend import array_proxy

pytestmark = pytest.mark.usefixtures("session")

vec2 = sg.types.vector(2, sg.f32)


@pytest.mark.parametrize("t", dtypes.ALL, ids=str)
def test_every_type(arch: str, t: DType) -> None:
    x = sg.ndarray(t, 9)
    y = sg.Vector.ndarray(3, t, (2, 2))

    @sg.kernel
    def work(x: sg.types.ndarray(t, 1), y: sg.types.ndarray(sg.types.vector(3, t), 2)):
        for i in x:
            x[i] = i % 2
        for i, j in y:
            y[i, j] = [i, j, x[1]]

    work(x, y)
    np.testing.assert_array_equal(x.to_numpy(), (np.arange(9) % 2).astype(t.np))
    np.testing.assert_array_equal(y.to_numpy()[1, 0], [1, 0, 1])
    assert x.to_numpy().dtype == t.np and x[1] == 1 and y[0, 1].to_list() == [0, 1, 1]


@pytest.mark.parametrize("element", [(), (3,), (2, 2)], ids=["scalar", "vector", "matrix"])
@pytest.mark.parametrize("shape", [(), (4,), (3, 2), (2, 3, 2), (2, 1, 2, 3)], ids=lambda s: f"{len(s)}d")
def test_ranks(arch: str, shape: tuple[int, ...], element: tuple[int, ...]) -> None:
    if not element:
        x = sg.ndarray(sg.i32, shape)
    else:
        x = sg.Vector.ndarray(3, sg.i32, shape) if element == (3,) else sg.Matrix.ndarray(2, 2, sg.i32, shape)
    data = np.arange(x.to_numpy().size).reshape(shape + element)
    x.from_numpy(data)

    @sg.kernel
    def work(x: sg.types.ndarray()):
        for I in sg.grouped(x):
            x[I] = 2 * x[I] + 1

    work(x)
    np.testing.assert_array_equal(x.to_numpy(), 2 * data + 1)


def test_named_indices_and_shapes(arch: str) -> None:
    x = sg.ndarray(sg.i32, (2, 3, 4))

    @sg.kernel
    def work(x: sg.types.ndarray(ndim=3)) -> sg.i32:
        for i, j, k in x:
            x[i, j, k] = 100 * i + 10 * j + k
        for i in range(x.shape[0]):
            for j, k in sg.ndrange(x.shape[1], (1, x.shape[2])):
                x[i, j, k] += 1000
        return x.shape[0] * 100 + x.shape[1] * 10 + x.shape[2] + len(x.shape)

    assert work(x) == 237
    want = np.add.outer(np.add.outer(np.arange(2) * 100, np.arange(3) * 10), np.arange(4))
    want[:, :, 1:] += 1000
    np.testing.assert_array_equal(x.to_numpy(), want)


def test_shapes_change_without_compiling_again(arch: str, session) -> None:
    @sg.kernel
    def fill(x: sg.types.ndarray(sg.i32, 2), v: sg.i32):
        for i, j in x:
            x[i, j] += v + i * 100 + j

    arrays = [sg.ndarray(sg.i32, shape) for shape in [(2, 3), (5, 1), (0, 4), (7, 0), (1, 1), (33, 17)]]
    fill(arrays[0], 1)
    compiled = session.compiled
    for x in arrays[1:]:
        fill(x, 1)
    assert session.compiled == compiled
    for x in arrays:
        n, m = x.shape
        np.testing.assert_array_equal(x.to_numpy(), 1 + np.add.outer(np.arange(n) * 100, np.arange(m)))


def test_annotations(arch: str) -> None:
    @sg.kernel
    def bare(x: sg.types.ndarray):
        for I in sg.grouped(x):
            x[I] += 1

    @sg.kernel
    def subscripted(x: sg.types.NDArray[sg.f32, 1]):
        for i in x:
            x[i] += 1

    @sg.kernel
    def vectors(x: sg.types.ndarray(dtype=vec2, ndim=1), y: sg.types.NDArray[sg.types.matrix(2, 2, sg.f32), 1]):
        for i in x:
            x[i] = y[i] @ x[i]

    @sg.kernel
    def gradient(x: sg.types.ndarray(dtype=sg.f32, ndim=1, needs_grad=True)):
        for i in x:
            x.grad[i] = i

    @sg.kernel
    def subscripted_vectors(x: sg.types.Vector[3, sg.f32], m: sg.types.Matrix[2, 3, sg.f32]) -> sg.types.Vector[2, sg.f32]:
        return m @ x

    @sg.kernel
    def tensor_gradient(x: sg.Tensor):
        for i in x:
            x.grad[i] = i

    assert subscripted_vectors([1, 2, 3], [[1, 0, 0], [1, 1, 1]]).to_list() == [1, 6]
    x, i2 = sg.ndarray(sg.f32, 3), sg.ndarray(sg.i32, (2, 2))
    bare(x), bare(i2), subscripted(x)
    np.testing.assert_array_equal(x.to_numpy(), [2, 2, 2])
    np.testing.assert_array_equal(i2.to_numpy(), 1)
    v, m = sg.Vector.ndarray(2, sg.f32, 2), sg.Matrix.ndarray(2, 2, sg.f32, 2)
    v.fill([1, 2])
    m.fill([[0, 1], [2, 3]])
    vectors(v, m)
    np.testing.assert_array_equal(v.to_numpy(), [[2, 8]] * 2)
    g = sg.ndarray(sg.f32, 3, needs_grad=True)
    gradient(g)
    np.testing.assert_array_equal(g.grad.to_numpy(), [0, 1, 2])
    g.grad.fill(0)
    tensor_gradient(g)
    np.testing.assert_array_equal(g.grad.to_numpy(), [0, 1, 2])
    for kernel, array in ((subscripted, i2), (subscripted, sg.ndarray(sg.f64, 3)), (subscripted, v), (vectors, x), (bare, 3), (bare, None)):
        with pytest.raises(sg.SpirogradRuntimeTypeError):
            kernel(array, m) if kernel is vectors else kernel(array)


def test_run_time_components_and_updates(arch: str) -> None:
    m = sg.Matrix.ndarray(2, 3, sg.i32, 4)
    v = sg.Vector.ndarray(4, sg.f32, (2,))

    @sg.kernel
    def work(m: sg.types.ndarray(), v: sg.types.ndarray(), k: sg.i32):
        for i in range(400):
            m[i % 4][k, i % 3] += 1
            m[0][0, :] -= [1, 0, k]
            v[i % 2].xw += [0.5, 1]
        for i in m:
            m[i] *= 2

    work(m, v, 1)
    want = np.zeros((4, 2, 3), int)
    for i in range(400):
        want[i % 4, 1, i % 3] += 1
        want[0, 0] -= [1, 0, 1]
    np.testing.assert_array_equal(m.to_numpy(), 2 * want)
    np.testing.assert_array_equal(v.to_numpy(), [[100, 0, 0, 200]] * 2)


def test_components_do_not_disturb_each_other(arch: str) -> None:
    """Threads that write different components of one element."""
    v = sg.Vector.ndarray(4, sg.i32, 500)
    b = sg.Vector.ndarray(4, sg.u8, 500)

    @sg.kernel
    def work(v: sg.types.ndarray(), b: sg.types.ndarray()):
        for i in range(2000):
            c = i % 4
            if c == 0:
                v[i // 4].x = i
                b[i // 4].x = 1
            elif c == 1:
                v[i // 4][1] = i
                b[i // 4][1] = 2
            else:
                v[i // 4][c] = i
                b[i // 4][c] = c + 1

    work(v, b)
    np.testing.assert_array_equal(v.to_numpy().reshape(-1), np.arange(2000))
    np.testing.assert_array_equal(b.to_numpy(), [[1, 2, 3, 4]] * 500)


def test_captured_from_outside(arch: str, session) -> None:
    table = sg.ndarray(sg.f32, 5)
    table.from_numpy(np.arange(5) ** 2)
    lookup = {"rows": sg.Vector.ndarray(2, sg.f32, 3)}
    out = sg.field(sg.f32, shape=5)

    @sg.func
    def look(i):
        return table[i] + lookup["rows"][1].y

    @sg.kernel
    def work():
        for i in out:
            out[i] = look(i) + table.shape[0]
            table[i] = 0

    lookup["rows"][1] = [3, 4]
    work()
    np.testing.assert_array_equal(out.to_numpy(), np.arange(5) ** 2 + 9)
    work()
    np.testing.assert_array_equal(out.to_numpy(), 9)


def test_attributes_may_be_bound_to_other_arrays(arch: str, session) -> None:
    @sg.data_oriented
    class Solver:
        def __init__(self) -> None:
            self.now = sg.ndarray(sg.f32, 4)
            self.next = sg.ndarray(sg.f32, 4)

        @sg.kernel
        def step(self):
            for i in self.now:
                self.next[i] = self.now[i] * 2 + self.now.shape[0]

    s = Solver()
    s.now.fill(1)
    s.step()
    compiled = session.compiled
    for _ in range(3):
        s.now, s.next = s.next, s.now
        s.step()
    assert session.compiled == compiled
    np.testing.assert_array_equal(s.next.to_numpy(), np.full(4, 16 + 4 * 15.0))
    s.now, s.next = sg.ndarray(sg.f32, 7), sg.ndarray(sg.f32, 7)
    s.step()
    assert session.compiled == compiled
    np.testing.assert_array_equal(s.next.to_numpy(), 7)
    s.now = sg.ndarray(sg.i32, 7)
    s.step()
    np.testing.assert_array_equal(s.next.to_numpy(), 7)
    s.now = sg.field(sg.i32, shape=2)
    s.now.fill(50)
    s.step()
    np.testing.assert_array_equal(s.next.to_numpy(), [102, 102, 7, 7, 7, 7, 7])


def test_gradients(arch: str) -> None:
    x = sg.ndarray(sg.f32, 3, needs_grad=True)
    v = sg.Vector.ndarray(2, sg.f64, 2, needs_grad=True)

    @sg.kernel
    def work(x: sg.types.ndarray(), v: sg.types.ndarray()):
        for i in x:
            x.grad[i] += 2 * x[i]
        for i in v:
            v.grad[i][1] = v[i].x

    x.fill(3)
    v.fill([5, 6])
    work(x, v)
    work(x, v)
    np.testing.assert_array_equal(x.grad.to_numpy(), 12)
    np.testing.assert_array_equal(v.grad.to_numpy(), [[0, 5]] * 2)
    plain = sg.ndarray(sg.f32, 3)
    with pytest.raises(sg.SpirogradCompilationError, match="gradient"):
        work(plain, v)


def test_one_array_twice(arch: str) -> None:
    x = sg.ndarray(sg.i32, 6)

    @sg.kernel
    def work(a: sg.types.ndarray(), b: sg.types.ndarray(), n: sg.i32):
        for i in range(n):
            a[i] = i + 1
        for i in range(n):
            b[n + i] = a[i] * 10
        for i in range(n):
            a[i] += b[n + i]

    work(x, x, 3)
    np.testing.assert_array_equal(x.to_numpy(), [11, 22, 33, 10, 20, 30])


def test_copies_and_pickles(arch: str) -> None:
    v = sg.Vector.ndarray(2, sg.f32, 3, needs_grad=True)

    @sg.kernel
    def work(x: sg.types.ndarray(), by: sg.f32):
        for i in x:
            x[i] += by * i
            x.grad[i] = x[i]

    work(v, 1)
    for twin in (copy.copy(v), copy.deepcopy(v), pickle.loads(pickle.dumps(v))):
        work(v, 0)
        work(twin, 10)
        np.testing.assert_array_equal(v.to_numpy(), [[0, 0], [1, 1], [2, 2]])
        np.testing.assert_array_equal(twin.grad.to_numpy(), [[0, 0], [11, 11], [22, 22]])
    v[1] = [8, 9]
    v[2].y = 7
    f = sg.Vector.field(2, sg.f32, shape=3, layout=sg.Layout.SOA)
    f.copy_from(v)
    assert f[1].to_list() == [8, 9] and f[2].to_list() == [2, 7]


def test_exchange_with_numpy(arch: str) -> None:
    x = sg.ndarray(sg.f32, (2, 3))

    @sg.kernel
    def double(x: sg.types.ndarray()):
        for I in sg.grouped(x):
            x[I] *= 2

    x.from_numpy(np.arange(6).reshape(2, 3))
    double(x)
    if x.__dlpack_device__()[0] != 1:
        with pytest.raises((BufferError, RuntimeError), match="device"):  # NumPy takes no memory of GPUs
            np.from_dlpack(x)
        return
    out = np.from_dlpack(x)
    np.testing.assert_array_equal(out, 2 * np.arange(6).reshape(2, 3))
    if arch == "cpu":  # the very memory
        double(x)
        sg.sync()
        np.testing.assert_array_equal(out, 4 * np.arange(6).reshape(2, 3))
        shared = x.to_numpy(copy=False)
        shared[0, 0] = 50
        assert x[0, 0] == 50
        del x
        gc.collect()
        assert shared[0, 0] == 50


def test_elements_beyond_32_bits(arch: str, monkeypatch) -> None:
    """Kernels for arrays of more than 2^31 elements use 64-bit indices; here the limit is lowered."""
    monkeypatch.setattr(array_proxy, "NARROW", 10)

    @sg.kernel
    def work(x: sg.types.ndarray(), y: sg.types.ndarray()):
        for i, j in x:
            x[i, j] = i * 10 + j
        for i in y:
            y[i] += i
        for i in range(y.shape[0]):
            y[i] += x[i % 3, 1]

    x, y = sg.ndarray(sg.i32, (3, 6)), np.zeros(12, np.int64)
    work(x, y)
    np.testing.assert_array_equal(x.to_numpy(), np.add.outer(10 * np.arange(3), np.arange(6)))
    np.testing.assert_array_equal(y, np.arange(12) + np.arange(12) % 3 * 10 + 1)
    assert "i64" in work.ir()


@pytest.mark.archs("cpu")
def test_more_than_two_gigabytes(arch: str) -> None:
    x = sg.ndarray(sg.u8, (3, 1 << 30))

    @sg.kernel
    def work(x: sg.types.ndarray()):
        for i in range(10):
            x[2, (1 << 30) - 1 - i] = i + 1
            x[i % 3, 7] = 5

    work(x)
    assert x[2, (1 << 30) - 10] == 10 and x[2, (1 << 30) - 1] == 1 and x[1, 7] == 5 and x[0, 0] == 0

    @sg.kernel
    def long(x: sg.types.ndarray()):
        x[0] = 1

    with pytest.raises(sg.SpirogradRuntimeTypeError, match="another axis"):
        long(sg.ndarray(sg.u8, (1 << 31) + 10))


@pytest.mark.archs("interpreter")
def test_arguments_that_need_a_gradient(session):
    @sg.kernel
    def double(x: sg.types.ndarray(needs_grad=True)):
        for i in x:
            x[i] = 2.0 * x[i]

    double(sg.ndarray(sg.f32, 3, needs_grad=True))
    with pytest.raises(ValueError, match=r"`x` takes arrays with a gradient(.|\n)*needs_grad=True"):
        double(sg.ndarray(sg.f32, 3))
