"""NumPy arrays and torch tensors as arguments of kernels: used in place, or copied there and back."""

import numpy as np
import pytest

import spirograd as sg
from spirograd.base import dtypes
from spirograd.base.dtypes import DType

pytestmark = pytest.mark.usefixtures("session")


def make_double():
    @sg.kernel
    def double(x: sg.types.ndarray()):
        for I in sg.grouped(x):
            x[I] = x[I] + x[I]

    return double


@pytest.mark.parametrize("t", dtypes.ALL, ids=str)
def test_every_type(arch: str, t: DType) -> None:
    x = np.array([0, 1, 1, 0, 1]).astype(t.np)

    @sg.kernel
    def flip(x: sg.types.ndarray(t, 1)):
        for i in x:
            x[i] = 1 - x[i]

    flip(x)
    np.testing.assert_array_equal(x, np.array([1, 0, 0, 1, 0]).astype(t.np))


def test_ways_to_lie_in_memory(arch: str) -> None:
    double = make_double()
    base = np.arange(24.0, dtype=np.float32).reshape(4, 6)
    views = {
        "contiguous": lambda a: a,
        "fortran": lambda a: np.asfortranarray(a),
        "transposed": lambda a: a.T,
        "strided": lambda a: a[::2, 1::2],
        "reversed": lambda a: a[::-1, ::-1],
        "column": lambda a: a[:, 2],
        "flat": lambda a: a.reshape(-1),
        "no axes": lambda a: a.reshape(-1)[3:4].reshape(()),
        "empty": lambda a: a[:0],
        "empty row": lambda a: a[:, :0],
        "unaligned": lambda a: np.frombuffer(bytearray(b"x" + a.tobytes()), np.uint8)[1:].view(np.float32),
    }
    for name, view in views.items():
        x = view(base.copy())
        want = 2 * x
        double(x)
        np.testing.assert_array_equal(x, want, err_msg=name)


def test_only_the_view_is_written(arch: str) -> None:
    double = make_double()
    base = np.ones((6, 8), np.int32)
    double(base[1:5:2, 2:6])
    want = np.ones((6, 8), int)
    want[1:5:2, 2:6] = 2
    np.testing.assert_array_equal(base, want)


def test_read_only_arrays(arch: str) -> None:
    x = np.arange(5, dtype=np.float32)
    x.flags.writeable = False
    out = np.zeros(5, np.float32)

    @sg.kernel
    def copy(a: sg.types.ndarray(), b: sg.types.ndarray()):
        for i in a:
            b[i] = a[i] + 1

    copy(x, out)
    np.testing.assert_array_equal(out, x + 1)
    copy(np.broadcast_to(np.float32(3), 5), out)
    np.testing.assert_array_equal(out, 4)
    with pytest.raises((ValueError, sg.SpirogradRuntimeError), match="read-only"):
        copy(out, x)
    np.testing.assert_array_equal(x, np.arange(5))


def test_arrays_that_overlap_themselves_are_only_read(arch: str) -> None:
    """Of elements that are one place in memory, all updates but one would be lost."""

    @sg.kernel
    def work(x: sg.types.ndarray(sg.f32, 2), out: sg.types.ndarray(sg.f32, 2), n: sg.f32):
        for i, j in x:
            out[i, j] = x[i, j] + n

    strided = np.lib.stride_tricks.as_strided
    memory, out = np.arange(4, dtype=np.float32), np.zeros((3, 2), np.float32)
    for strides in ((4, 4), (0, 4), (4, 0), (8, 4)):
        overlapping = strided(memory, (3, 2) if strides != (8, 4) else (2, 2), strides)
        result = out[: len(overlapping)]
        work(overlapping, result, 1.0)
        np.testing.assert_array_equal(result, overlapping + 1)
        if strides == (8, 4):  # this one has all its elements at places of their own
            continue
        for _ in range(3):
            with pytest.raises(sg.SpirogradRuntimeTypeError, match=r"argument `out`: .* several elements of which are one place in memory"):
                work(result, overlapping, 1.0)
        np.testing.assert_array_equal(memory, np.arange(4))
    turned = np.zeros((2, 3), np.float32).T
    work(np.ones((3, 2), np.float32), turned[::-1], 1.0)
    assert (turned == 2).all()


def test_elements_are_trailing_axes(arch: str) -> None:
    points = np.arange(12, dtype=np.float32).reshape(4, 3)
    matrices = np.arange(8, dtype=np.float64).reshape(2, 2, 2)

    @sg.kernel
    def work(p: sg.types.ndarray(sg.math.vec3, 1), m: sg.types.ndarray(sg.types.matrix(2, 2, sg.f64), 1)):
        for i in p:
            p[i] = p[i].zyx
        for i in m:
            m[i] = m[i] @ m[i]

    p, m = points.copy(), matrices.copy()
    work(p, m)
    np.testing.assert_array_equal(p, points[:, ::-1])
    np.testing.assert_array_equal(m, matrices @ matrices)
    for bad in (np.zeros((4, 2), np.float32), np.zeros(3, np.float32), np.zeros((4, 3), np.float64), np.zeros((1, 4, 3), np.float32)):
        with pytest.raises(sg.SpirogradRuntimeTypeError):
            work(bad, m)


def test_one_array_twice(arch: str) -> None:
    @sg.kernel
    def work(a: sg.types.ndarray(), b: sg.types.ndarray(), n: sg.i32):
        for i in range(n):
            a[i] = i + 1
        for i in range(n):
            b[n + i] = a[i] * 10
        for i in range(n):
            a[i] += b[n + i]

    x = np.zeros(6, np.int32)
    work(x, x, 3)
    np.testing.assert_array_equal(x, [11, 22, 33, 10, 20, 30])


def test_overlapping_views(arch: str) -> None:
    """Only what a kernel writes is copied back, so a view that is read does not undo what was written through another."""

    @sg.kernel
    def shift(a: sg.types.ndarray(), b: sg.types.ndarray()):
        for i in b:
            b[i] = a[i] + 100

    x = np.arange(8, dtype=np.int32)
    shift(x[:4], x[4:])
    np.testing.assert_array_equal(x, [0, 1, 2, 3, 100, 101, 102, 103])


def test_views_with_common_elements(arch: str) -> None:
    """They are one memory where the kernel works in place, and refused where it works on copies and writes to one of them."""

    @sg.kernel
    def chain(a: sg.types.ndarray(), b: sg.types.ndarray()):
        for _ in range(1):
            for i in range(b.shape[0]):
                b[i] = a[i] + 1

    @sg.kernel
    def added(a: sg.types.ndarray(), b: sg.types.ndarray(), out: sg.types.ndarray()):
        for i in out:
            out[i] = a[i] + 10 * b[i]

    def refused(*views: np.ndarray) -> None:
        with pytest.raises(sg.SpirogradRuntimeTypeError, match=r"kernel `chain`: argument `a` and argument `b` overlap in memory"):
            chain(*views)

    x = np.zeros(5, np.int32)
    if arch == "cpu":
        chain(x[:4], x[1:])
        np.testing.assert_array_equal(x, np.arange(5))
    else:
        refused(x[:4], x[1:])
    y = np.arange(5, dtype=np.int32)
    refused(y, y[::2])  # which is a copy on the CPU, too
    np.testing.assert_array_equal(y, np.arange(5))
    chain(y[::2], y[1::2])
    np.testing.assert_array_equal(y, [0, 1, 2, 3, 4])
    out = np.zeros(4, np.int32)
    added(y[:4], y[1:], out)  # only read
    np.testing.assert_array_equal(out, y[:4] + 10 * y[1:])


@pytest.mark.archs("interpreter", "cpu", "vulkan")  # others have no arrays over their memory
def test_arrays_over_memory_of_fields(arch: str) -> None:
    """Kernels use them in place, beside the field itself; and as copies where they are not contiguous, or begin anywhere."""
    x, y = sg.field(sg.f32, shape=16), sg.ndarray(sg.f32, 16)

    @sg.kernel
    def alternate(a: sg.types.ndarray(), b: sg.types.ndarray(), n: sg.i32):
        for _ in range(1):
            for i in range(n):
                a[3] = x[3] + 1.0
                x[4] = a[3] * 2.0 + a[4]
                b[5] = x[4] + y[5]

    @sg.kernel
    def double(a: sg.types.ndarray()):
        for i in a:
            a[i] *= 2.0

    try:
        views = x.to_numpy(copy=False), y.to_numpy(copy=False)
    except ValueError:
        pytest.skip("missing memory that the host can address: not on this device")
    for k, view in enumerate(views):
        view[:] = np.arange(16) + k
    alternate(*views, 2)
    a, b = [np.arange(16) + np.float32(k) for k in range(2)]
    for _ in range(2):
        a[3] += 1
        a[4] += 2 * a[3]
        b[5] += a[4]
    np.testing.assert_array_equal(x.to_numpy(), a)
    np.testing.assert_array_equal(y.to_numpy(), b)
    for part in (slice(4, 8), slice(1, 6), slice(None, None, 3)):
        double(views[0][part])
        a[part] *= 2
    np.testing.assert_array_equal(x.to_numpy(), a)


def test_shapes_change_without_compiling_again(arch: str, session) -> None:
    double = make_double()
    double(np.zeros((1, 1), np.float32))
    compiled = session.compiled
    for shape in [(3, 4), (0, 5), (100, 1)]:
        x = np.ones(shape, np.float32)
        double(x)
        assert (x == 2).all()
    double(np.asfortranarray(np.ones((3, 3), np.float32)))
    assert session.compiled == compiled


def test_mixed_with_ndarrays_and_fields(arch: str) -> None:
    f = sg.field(sg.f32, shape=4)
    a = sg.ndarray(sg.f32, 4)
    x = np.arange(4, dtype=np.float32)

    @sg.kernel
    def work(f: sg.template(), a: sg.types.ndarray(sg.f32), x: sg.types.ndarray(sg.f32, 1), s: sg.f32) -> sg.f32:
        total = 0.0
        for i in x:
            f[i] = x[i]
            a[i] = f[i] * s
            total += a[i]
        for i in x:
            x[i] = -a[i]
        return total

    assert work(f, a, x, 2) == 12
    np.testing.assert_array_equal(x, -2 * np.arange(4))
    np.testing.assert_array_equal(a.to_numpy(), 2 * f.to_numpy())


def test_types_without_counterpart(arch: str) -> None:
    double = make_double()
    for bad in (np.zeros(3, complex), np.array(["a"]), np.array([object()]), np.zeros(3, "M8[s]"), np.zeros(3, ">f4"), [1.0, 2.0], 3.0):
        with pytest.raises(sg.SpirogradRuntimeTypeError):
            double(bad)


@pytest.mark.needs("torch")
def test_torch_tensors(arch: str) -> None:
    import torch

    double = make_double()
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    double(x)
    assert x.tolist() == [[0, 2, 4], [6, 8, 10]]
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float64):
        y = torch.ones(4, dtype=dtype)
        double(y)
        assert y.tolist() == [2] * 4 and y.dtype == dtype
    t = torch.arange(6, dtype=torch.int32).reshape(2, 3).t()
    double(t)
    assert t.tolist() == [[0, 6], [2, 8], [4, 10]]
    part = torch.ones(4, 4)
    double(part[::2, 1:3])
    assert part.sum() == 16 + 4
    double(torch.zeros(0, 3))
    with pytest.raises(sg.SpirogradRuntimeTypeError):
        double(torch.zeros(3, dtype=torch.complex64))
    flags = torch.tensor([True, False, True])

    @sg.kernel
    def flip(x: sg.types.ndarray(sg.u1, 1)):
        for i in x:
            x[i] = not x[i]

    flip(flags)
    assert flags.tolist() == [False, True, False]


@pytest.mark.needs("torch")
def test_subclasses_of_torch_tensors(arch: str) -> None:
    """Libraries derive classes of their own, as for colors: they are arrays of kernels, sources of fields and vectors, like their base."""
    import torch

    class Color(torch.Tensor):
        pass

    class Grey(Color):
        pass

    double = make_double()
    f = sg.field(sg.f32, shape=3)
    for kind in (Color, Grey):
        x = torch.arange(3, dtype=torch.float32).as_subclass(kind)
        double(x)
        assert type(x) is kind and x.tolist() == [0, 2, 4]
        f.from_torch(x)
        assert f.to_numpy().tolist() == [0, 2, 4]
        assert sg.math.vec3(x)[2] == 4

    tracked = torch.tensor([3.0, 4.0]).as_subclass(Color).requires_grad_()

    @sg.kernel
    def squares(x: sg.types.ndarray(sg.f32, 1), out: sg.types.ndarray(sg.f32, 1)):
        for i in x:
            out[i] = x[i] ** 2

    out = torch.zeros(2)
    squares(tracked, out)
    assert out.tolist() == [9, 16] and not tracked.grad.any()


@pytest.mark.needs("torch")
def test_torch_vectors_and_tracked_tensors(arch: str) -> None:
    import torch

    @sg.kernel
    def norms(p: sg.types.ndarray(sg.math.vec2, 1), out: sg.types.ndarray(sg.f32, 1)):
        for i in p:
            out[i] = p[i].norm()

    p = torch.tensor([[3.0, 4.0], [6.0, 8.0]], requires_grad=True)
    out = torch.zeros(2)
    norms(p, out)
    assert out.tolist() == [5, 10] and not p.grad.any()
    norms(torch.nn.Parameter(torch.tensor([[0.0, 2.0], [5.0, 12.0]])), out)
    assert out.tolist() == [2, 13]
