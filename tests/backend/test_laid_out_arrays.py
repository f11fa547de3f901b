"""Arrays whose axes lie in memory in another order than the program numbers them: `sg.tensor(..., layout=)`."""

import copy
import itertools
import pickle

import numpy as np
import pytest

import spirograd as sg

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.usefixtures("session")]
NDARRAY = sg.types.NDArray
LAYOUTS = list(itertools.permutations(range(3)))
SHAPE = (3, 4, 5)
ROWS = np.arange(60, dtype=np.float32).reshape(SHAPE)


def laid_out(layout, dtype=sg.f32, shape=SHAPE, **options):
    return sg.tensor(dtype, shape, layout=layout, **options)


def in_memory(x):
    """Return the elements in the order of memory: those of a one-dimensional array over the same memory."""
    other = sg.ndarray(x.dtype, x.view.count)
    data = bytearray(x.nbytes)
    x.allocation.read_into(0, memoryview(data))
    other.from_numpy(np.frombuffer(data, x.dtype.np))
    return other.to_numpy()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_where_elements_lie(arch: str, layout: tuple[int, ...]) -> None:
    x = laid_out(layout)

    @sg.kernel
    def number(x: NDARRAY[sg.f32, 3]):
        for i, j, k in sg.ndrange(x.shape[0], x.shape[1], x.shape[2]):
            x[i, j, k] = 20 * i + 5 * j + k

    number(x)
    np.testing.assert_array_equal(x.to_numpy(), ROWS)
    np.testing.assert_array_equal(in_memory(x), ROWS.transpose(layout).reshape(-1))
    assert x.shape == SHAPE and x[1, 2, 3] == ROWS[1, 2, 3] and x[2, 0, np.int64(4)] == ROWS[2, 0, 4]
    x[2, 3, 4] = -7
    x.from_numpy(x.to_numpy() + 1)
    assert x[2, 3, 4] == -6 and x[0, 0, 0] == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_loops_over_elements(arch: str, layout: tuple[int, ...]) -> None:
    x, y = laid_out(layout), laid_out(None)

    @sg.kernel
    def both(x: NDARRAY[sg.f32, 3], y: NDARRAY[sg.f32, 3]):
        for i, j, k in x:
            x[i, j, k] += 20 * i + 5 * j + k
        for I in sg.grouped(y):
            y[I] = 2 * x[I] + x.shape[0] + 10 * x.shape[1] + 100 * x.shape[2]

    both(x, y)
    both(x, y)
    np.testing.assert_array_equal(x.to_numpy(), 2 * ROWS)
    np.testing.assert_array_equal(y.to_numpy(), 4 * ROWS + 543)


def test_serial_loops_have_the_order_of_memory(arch: str) -> None:
    x, order, count = laid_out((1, 0), sg.i32, (2, 3)), sg.ndarray(sg.i32, 6), sg.ndarray(sg.i32, 1)

    @sg.kernel
    def walk(x: NDARRAY[sg.i32, 2], order: NDARRAY[sg.i32, 1], count: NDARRAY[sg.i32, 1]):
        sg.loop_config(serialize=True)
        for i, j in x:
            order[count[0]] = 10 * i + j
            count[0] += 1

    walk(x, order, count)
    assert order.to_numpy().tolist() == [0, 10, 1, 11, 2, 12]


@pytest.mark.parametrize("layout", [(1, 0), (0, 1)])
def test_vectors_and_matrices(arch: str, layout: tuple[int, ...]) -> None:
    v, m = sg.Vector.tensor(3, sg.f32, (4, 5), layout=layout), sg.Matrix.tensor(2, 2, sg.f32, (4, 5), layout=layout)

    @sg.kernel
    def write(v: sg.Tensor, m: sg.Tensor):
        for i, j in v:
            v[i, j] = [i, j, 1]
            m[i, j] = [[i, j], [j, i]]
            m[i, j][1, 0] += 100

    write(v, m)
    i, j = np.indices((4, 5))
    np.testing.assert_array_equal(v.to_numpy(), np.stack([i, j, np.ones((4, 5))], -1))
    np.testing.assert_array_equal(m.to_numpy(), np.stack([np.stack([i, j], -1), np.stack([j + 100, i], -1)], -2))
    assert list(v[3, 1]) == [3, 1, 1] and m[3, 1][1, 0] == 101


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views(arch: str, layout: tuple[int, ...]) -> None:
    x = laid_out(layout)
    x.from_numpy(ROWS)

    @sg.kernel
    def add(a: NDARRAY[sg.f32, 2], out: NDARRAY[sg.f32, 1]):
        for i, j in a:
            out[0] += a[i, j] * (1 + i) * (10 + j)
            a[i, j] += 1000

    @sg.kernel
    def inside(x: NDARRAY[sg.f32, 3], out: NDARRAY[sg.f32, 1]):
        part = x[1:, 2, ::2]
        for i, j in sg.ndrange(part.shape[0], part.shape[1]):
            out[0] += part[i, j] * (1 + i) * (10 + j)

    part = x[1:, 2, ::2]
    np.testing.assert_array_equal(part.to_numpy(), ROWS[1:, 2, ::2])
    out = sg.ndarray(sg.f32, 1)
    weights = np.outer(1 + np.arange(2), 10 + np.arange(3))
    wanted = (ROWS[1:, 2, ::2] * weights).sum()
    inside(x, out)
    assert out[0] == pytest.approx(wanted, rel=1e-6)
    add(part, out)
    assert out[0] == pytest.approx(2 * wanted, rel=1e-6)
    changed = ROWS.copy()
    changed[1:, 2, ::2] += 1000
    np.testing.assert_array_equal(x.to_numpy(), changed)
    part[0, 1] = -1
    assert x[1, 2, 2] == -1
    np.testing.assert_array_equal(copy.copy(part).to_numpy(), part.to_numpy())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients(arch: str, layout: tuple[int, ...]) -> None:
    x, y = laid_out(layout, needs_grad=True), laid_out((2, 0, 1), needs_grad=True)
    x.from_numpy(ROWS / 60)

    @sg.kernel
    def run(x: NDARRAY[sg.f32, 3], y: NDARRAY[sg.f32, 3]):
        for i, j, k in x:
            y[i, j, k] = x[i, j, k] ** 2 * (i + 1) + x[(i + 1) % 3, j, k]

    run(x, y)
    weights = np.random.default_rng(0).uniform(-1, 1, SHAPE).astype(np.float32)
    y.grad.from_numpy(weights)
    run.grad(x, y)
    i = np.arange(3).reshape(3, 1, 1)
    np.testing.assert_allclose(x.grad.to_numpy(), weights * 2 * (ROWS / 60) * (i + 1) + np.roll(weights, 1, 0), rtol=1e-5, atol=1e-6)
    assert x.grad.layout == x.layout
    with pytest.raises(ValueError, match=r"must be an ndarray of f32 and shape \(3, 4, 5\)"):
        x.grad = laid_out((1, 0, 2) if layout != (1, 0, 2) else (0, 2, 1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tapes_save_slices(arch: str, layout: tuple[int, ...]) -> None:
    """Each step overwrites one slice along the second axis, which the tape saves before."""
    x, loss = laid_out(layout, needs_grad=True), sg.ndarray(sg.f32, 1, needs_grad=True)
    x.from_numpy(ROWS / 60)

    @sg.kernel
    def step(x: NDARRAY[sg.f32, 3], t: sg.i32):
        for i, k in sg.ndrange(3, 5):
            x[i, t + 1, k] = x[i, t, k] * x[i, t, k] + x[i, t + 1, k]

    @sg.kernel
    def total(x: NDARRAY[sg.f32, 3], loss: NDARRAY[sg.f32, 1]):
        for i, k in sg.ndrange(3, 5):
            loss[0] += x[i, 3, k] * (1 + k)

    with sg.ad.Tape(loss):
        for t in range(3):
            step(x, t)
        total(x, loss)

    values, grad = [column.astype(np.float64) for column in np.moveaxis(ROWS / 60, 1, 0)], None
    for t in range(3):
        values[t + 1] = values[t] ** 2 + values[t + 1]
    grad = np.broadcast_to(1.0 + np.arange(5), (3, 5))
    grads = [np.zeros((3, 5))] * 4
    for t in reversed(range(4)):
        grads[t], grad = grad, grad * 2 * values[t - 1]
    np.testing.assert_allclose(x.grad.to_numpy(), np.stack(grads, 1), rtol=1e-4)
    assert loss[0] == pytest.approx((values[3] * (1 + np.arange(5))).sum(), rel=1e-5)


def test_layouts_are_other_types(arch: str) -> None:
    """One kernel takes arrays of several layouts, in any order of calls; views of laid-out arrays, too."""

    @sg.kernel
    def add(x: NDARRAY[sg.i32, 2], by: sg.i32):
        for i, j in sg.ndrange(x.shape[0], x.shape[1]):
            x[i, j] += by * (10 * i + j)

    arrays = [laid_out(layout, sg.i32, (3, 4)) for layout in (None, (1, 0), (0, 1))]
    for _ in range(3):
        for x in arrays:
            add(x, 1)
            add(x[:2, 1:], 100)
    wanted = 3 * np.add.outer(10 * np.arange(3), np.arange(4))
    wanted[:2, 1:] += 300 * np.add.outer(10 * np.arange(2), np.arange(3))
    for x in arrays:
        np.testing.assert_array_equal(x.to_numpy(), wanted)
    external = np.zeros((3, 4), np.int32)
    add(external, 3)
    np.testing.assert_array_equal(external, 3 * np.add.outer(10 * np.arange(3), np.arange(4)))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (1, 5), (5, 1), (7, 13)])
def test_extents(arch: str, shape: tuple[int, int]) -> None:
    x = laid_out((1, 0), sg.f32, shape)

    @sg.kernel
    def number(x: NDARRAY[sg.f32, 2]):
        for i, j in x:
            x[i, j] = 100 * i + j

    number(x)
    np.testing.assert_array_equal(x.to_numpy(), np.add.outer(100 * np.arange(shape[0]), np.arange(shape[1])).astype(np.float32))
    x.fill(3)
    np.testing.assert_array_equal(x.to_numpy(), np.full(shape, 3, np.float32))


def test_copies(arch: str) -> None:
    x, plain = laid_out((2, 0, 1), needs_grad=True), sg.ndarray(sg.f32, SHAPE)
    x.from_numpy(ROWS)
    plain.copy_from(x)
    np.testing.assert_array_equal(plain.to_numpy(), ROWS)
    for other in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert other.layout == (2, 0, 1) and other.grad.layout == (2, 0, 1)
        np.testing.assert_array_equal(other.to_numpy(), ROWS)
        np.testing.assert_array_equal(in_memory(other), in_memory(x))
    plain.fill(5)
    x.copy_from(plain)
    assert (x.to_numpy() == 5).all()
    if x.__dlpack_device__()[0] == 1:  # NumPy takes memory of the host only.
        np.testing.assert_array_equal(np.from_dlpack(x), np.full(SHAPE, 5, np.float32))


def test_the_index_in_messages(arch: str) -> None:
    sg.init(arch=getattr(sg, arch), debug=True)
    x = laid_out((2, 1, 0))

    @sg.kernel
    def beyond(x: NDARRAY[sg.f32, 3], i: sg.i32):
        for _ in range(1):
            x[i, 1, 2] = 1

    with pytest.raises(sg.SpirogradRuntimeError, match=r"index \(3, 1, 2\) out of range of array `x`: \[0, 3\) x \[0, 4\) x \[0, 5\)"):
        beyond(x, 3)
        sg.sync()
