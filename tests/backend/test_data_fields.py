"""Fields in kernels: all types and ranks, trees, orders, offsets, components, gradients, loops, atomics."""

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.base import dtypes
from spirograd.base.dtypes import DType

pytestmark = pytest.mark.usefixtures("session")

vec3 = sg.types.vector(3, sg.f32)


def coded(shape: tuple[int, ...], *element: int) -> np.ndarray:
    """A different number for each scalar."""
    return np.arange(math.prod(shape + element)).reshape(shape + element)


@pytest.mark.parametrize("t", dtypes.ALL, ids=str)
def test_every_type(arch: str, t: DType) -> None:
    x = sg.field(t, shape=11)
    y = sg.Vector.field(2, t, shape=(3, 2))
    z = sg.field(t, shape=())

    @sg.kernel
    def work():
        z[None] = 1
        for i in x:
            x[i] = x[10 - i] if i > 100 else i % 2
        for i, j in y:
            y[i, j] = [i % 2, j]

    @sg.kernel
    def again():
        for i in x:
            x[i] = x[i] + z[None]

    work()
    again()
    i = np.arange(11)
    want = (i % 2 + 1).astype(t.np)
    np.testing.assert_array_equal(x.to_numpy(), want)
    assert x.to_numpy().dtype == t.np and x.dtype is t
    np.testing.assert_array_equal(y.to_numpy()[2, 1], [0, 1])
    np.testing.assert_array_equal(y.to_numpy()[1, 0], [1, 0])
    x.from_numpy(np.ones(11, t.np))
    x[3] = 0
    again()
    assert x[3] == 1 and x[4] == (1 if t is sg.u1 else 2)


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4), (2, 1, 3, 2)], ids=lambda s: f"{len(s)}d")
@pytest.mark.parametrize("kind", ["scalar", "vector", "matrix", "soa"])
def test_ranks(arch: str, shape: tuple[int, ...], kind: str) -> None:
    if kind == "scalar":
        x, element = sg.field(sg.i32, shape=shape), ()
    elif kind == "matrix":
        x, element = sg.Matrix.field(2, 3, sg.i32, shape=shape), (2, 3)
    else:
        x, element = sg.Vector.field(3, sg.i32, shape=shape, layout=sg.Layout.SOA if kind == "soa" else sg.Layout.AOS), (3,)
    visits = sg.field(sg.i32, shape=shape)

    @sg.kernel
    def work():
        for I in sg.grouped(x):
            x[I] = 2 * x[I] + 1
            visits[I] += 1

    x.from_numpy(coded(shape, *element))
    work()
    np.testing.assert_array_equal(x.to_numpy(), 2 * coded(shape, *element) + 1)
    np.testing.assert_array_equal(visits.to_numpy(), np.ones(shape))
    assert x.shape == shape


def test_named_loop_indices(arch: str) -> None:
    x = sg.field(sg.i32, shape=(2, 3, 4))
    y = sg.field(sg.i32, shape=7)

    @sg.kernel
    def work():
        for i, j, k in x:
            x[i, j, k] = 100 * i + 10 * j + k
        for i in y:
            y[i] = i * i + y.shape[0] + x.shape[2]

    work()
    np.testing.assert_array_equal(x.to_numpy(), np.add.outer(np.add.outer(np.arange(2) * 100, np.arange(3) * 10), np.arange(4)))
    np.testing.assert_array_equal(y.to_numpy(), np.arange(7) ** 2 + 11)


def check_roundtrip(fields: list) -> None:
    """Kernels and the host agree on every element of every field; nothing overlaps; loops visit each element once."""

    def data(n: int) -> np.ndarray:
        f = fields[n]
        return (coded(f.shape, *f.element_shape) + 50 * n).astype(f.dtype.np)

    @sg.kernel
    def update(x: sg.template(), low: sg.template(), extents: sg.template()):
        for I in sg.grouped(x):
            x[I] += 7
        for flat in range(sg.static(math.prod(extents))):
            rest = flat
            at = sg.Vector([0] * len(extents))
            for a in sg.static(reversed(range(len(extents)))):
                at[a] = rest % extents[a] + low[a]
                rest = rest // extents[a]
            x[at] = x[at] * 2 + flat

    for n, f in enumerate(fields):
        f.from_numpy(data(n))
    for n, f in enumerate(fields):
        np.testing.assert_array_equal(f.to_numpy(), data(n))
        update(f, f.origin or (0,) * len(f.shape), f.shape)
        flat = coded(f.shape).reshape(f.shape + (1,) * len(f.element_shape))
        np.testing.assert_array_equal(f.to_numpy(), (2 * (data(n) + 7) + flat).astype(f.dtype.np))
        f.from_numpy(data(n))
    for n, f in enumerate(fields):
        np.testing.assert_array_equal(f.to_numpy(), data(n))


def test_nested_trees(arch: str) -> None:
    x, y, w = sg.field(sg.i32), sg.field(sg.f32), sg.field(sg.f64)
    v = sg.Vector.field(3, sg.i32)
    m = sg.Matrix.field(2, 2, sg.f32)
    small = sg.field(sg.u16)
    row = sg.root.dense(sg.i, 4)
    block = row.dense(sg.ij, (3, 2))
    block.place(x, small, v)
    block.dense(sg.j, 5).place(y)
    row.place(w)
    sg.root.dense(sg.ijk, (2, 3, 2)).dense(sg.ijk, (2, 2, 3)).place(m)
    assert x.shape == (12, 2) and y.shape == (12, 10) and w.shape == (4,) and m.shape == (4, 6, 6)
    check_roundtrip([x, y, w, v, m, small])


def test_loops_over_nodes(arch: str) -> None:
    x, y = sg.field(sg.i32), sg.field(sg.i32)
    block = sg.root.dense(sg.ij, (2, 3))
    block.place(x)
    inner = block.dense(sg.j, 4)
    inner.place(y)

    @sg.kernel
    def work():
        for i, j in block:
            x[i, j] = i * 10 + j
        for i, j in x.parent():
            x[i, j] += 100
        for I in sg.grouped(inner):
            y[I] += I.sum()

    work()
    assert x.to_numpy().tolist() == [[100, 101, 102], [110, 111, 112]]
    np.testing.assert_array_equal(y.to_numpy(), np.add.outer(np.arange(2), np.arange(12)))


def test_orders(arch: str) -> None:
    fields = [
        sg.field(sg.i32, shape=(3, 5), order="ji"),
        sg.field(sg.i32, shape=(2, 3, 4), order="kij"),
        sg.Vector.field(2, sg.f32, shape=(3, 5), order="ji", layout=sg.Layout.SOA),
        sg.field(sg.u8, shape=(3, 5), order="ij"),
    ]
    check_roundtrip(fields)
    out = sg.field(sg.i32, shape=15)

    @sg.kernel
    def sequence(x: sg.template()):
        sg.loop_config(serialize=True)
        n = 0
        for i, j in x:
            out[n] = 10 * i + j
            n = n + 1

    sequence(fields[0])
    np.testing.assert_array_equal(out.to_numpy(), [10 * i + j for j in range(5) for i in range(3)])


def test_offsets(arch: str) -> None:
    a = sg.field(sg.i32, shape=(4, 6), offset=(-2, 3))
    b = sg.Vector.field(2, sg.f32, shape=5, offset=-5)
    c = sg.field(sg.i32)
    sg.root.dense(sg.ij, (2, 3)).dense(sg.ij, 2).place(c, offset=(-1, 10))
    d = sg.field(sg.i32, shape=(4, 6), offset=(-2, 3), order="ji")
    check_roundtrip([a, b, c, d])
    seen = sg.field(sg.i32, shape=(4, 6))

    @sg.kernel
    def work():
        for i, j in a:
            a[i, j] = 10 * i + j
            seen[i + 2, j - 3] += 1

    work()
    assert a[-2, 3] == -17 and a[1, 8] == 18
    np.testing.assert_array_equal(seen.to_numpy(), np.ones((4, 6)))
    np.testing.assert_array_equal(a.to_numpy()[0], -20 + np.arange(3, 9))


def test_components_placed_apart(arch: str) -> None:
    v = sg.Vector.field(3, sg.f32)
    m = sg.Matrix.field(2, 2, sg.i32)
    for n in range(3):
        sg.root.dense(sg.i, 6).place(v.get_scalar_field(n))
    node = sg.root.dense(sg.ij, (2, 3))
    for n in (3, 1, 0, 2):
        node.place(m.get_scalar_field(n // 2, n % 2))
    check_roundtrip([v, m])

    @sg.kernel
    def work(k: sg.i32):
        y = v.get_scalar_field(1)
        for i in y:
            y[i] = i
            v[i][k] = 5

    work(2)
    np.testing.assert_array_equal(v.to_numpy()[:, 1], np.arange(6))
    np.testing.assert_array_equal(v.to_numpy()[:, 2], 5)


def test_run_time_components(arch: str) -> None:
    m = sg.Matrix.field(3, 4, sg.i32, shape=6)
    s = sg.Vector.field(5, sg.f32, shape=(2, 3), layout=sg.Layout.SOA)

    @sg.kernel
    def work(k: sg.i32):
        for i in m:
            for r in range(3):
                m[i][r, (i + r) % 4] = 10 * i + r
                m[i][r, k] += 100
            m[i][k, 0] -= m[i][0, k]
        for i, j in s:
            for c in range(5):
                s[i, j][c] = c * j
            s[i, j][i + j] *= -1

    work(1)
    want = np.zeros((6, 3, 4), int)
    for i in range(6):
        for r in range(3):
            want[i, r, (i + r) % 4] = 10 * i + r
            want[i, r, 1] += 100
        want[i, 1, 0] -= want[i, 0, 1]
    np.testing.assert_array_equal(m.to_numpy(), want)
    for i, j in np.ndindex(2, 3):
        np.testing.assert_array_equal(s.to_numpy()[i, j], [c * j * (-1 if c == i + j else 1) for c in range(5)])


def test_updates_are_atomic(arch: str) -> None:
    v = sg.Vector.field(3, sg.f32, shape=2)
    m = sg.Matrix.field(2, 2, sg.i32, shape=())
    x = sg.field(sg.i32, shape=4)
    hi = sg.field(sg.i32, shape=())

    @sg.kernel
    def work():
        for i in range(1000):
            v[i % 2] += [1, i % 3, 0.5]
            v[0].z -= 1
            m[None] += sg.Matrix([[1, i], [0, -1]])
            m[None][1, 0] += 2
            x[i % 4] += i
            sg.atomic_max(hi[None], (i * 37) % 1001)

    work()
    i = np.arange(1000)
    np.testing.assert_array_equal(v.to_numpy()[0], [500, (i[::2] % 3).sum(), 250 - 1000])
    np.testing.assert_array_equal(m.to_numpy(), [[1000, i.sum()], [2000, -1000]])
    np.testing.assert_array_equal(x.to_numpy(), [i[k::4].sum() for k in range(4)])
    assert hi[None] == ((i * 37) % 1001).max()


def test_sums_of_many_vectors(arch: str) -> None:
    n = 3000 if arch == "interpreter" else 100_000
    v = sg.Vector.field(3, sg.f32, shape=n)
    total = sg.Vector.field(3, sg.f32, shape=())
    most = sg.field(sg.f32, shape=())
    data = np.random.default_rng(1).random((n, 3)).astype(np.float32)
    v.from_numpy(data)

    @sg.kernel
    def work():
        for i in v:
            total[None] += v[i]
            sg.atomic_max(most[None], v[i].max())

    work()
    np.testing.assert_allclose(total.to_numpy(), data.astype(np.float64).sum(0), rtol=1e-5)
    assert most[None] == data.max()


def test_truth_values_are_updated(arch: str) -> None:
    flags = sg.field(sg.u1, shape=4)
    pairs = sg.Vector.field(2, sg.u1, shape=3)

    @sg.kernel
    def work() -> sg.i32:
        found, every = False, True
        for i in range(100):
            flags[i % 4] |= i == 42
            pairs[i % 3] |= [i == 7, True]
            found |= i == 99
            every &= i < 100
        for i in pairs:
            pairs[i].y &= i != 1
        return found * 10 + every

    assert work() == 11
    assert flags.to_numpy().tolist() == [0, 0, 1, 0]
    assert pairs.to_numpy().tolist() == [[0, 1], [1, 0], [0, 1]]


def test_lists_are_assigned(arch: str) -> None:
    v = sg.Vector.field(3, sg.f32, shape=4)
    m = sg.Matrix.field(2, 2, sg.f32, shape=4)

    @sg.kernel
    def work(s: sg.f32):
        for i in v:
            v[i] = [s, i, 1]
            m[i] = [[i, s], [0, 1]]
            if i == 2:
                v[i] = 4
                m[i] = 5
            v[i].xy = v[i].yx

    work(0.5)
    np.testing.assert_array_equal(v.to_numpy(), [[0, 0.5, 1], [1, 0.5, 1], [4, 4, 4], [3, 0.5, 1]])
    np.testing.assert_array_equal(m.to_numpy()[1], [[1, 0.5], [0, 1]])
    np.testing.assert_array_equal(m.to_numpy()[2], 5)


def test_fields_added_after_a_launch(arch: str) -> None:
    x = sg.field(sg.i32, shape=4)

    @sg.kernel
    def fill(f: sg.template(), value: sg.i32):
        for I in sg.grouped(f):
            f[I] = value

    fill(x, 3)
    y = sg.field(sg.i32, shape=(2, 2))
    fill(y, 4)
    builder = sg.FieldsBuilder()
    z = sg.field(sg.i32)
    builder.dense(sg.i, 5).place(z)
    tree = builder.finalize()
    fill(z, 5)
    np.testing.assert_array_equal(x.to_numpy(), 3)
    np.testing.assert_array_equal(y.to_numpy(), 4)
    np.testing.assert_array_equal(z.to_numpy(), 5)
    tree.destroy()
    with pytest.raises(sg.SpirogradRuntimeError, match="destroyed"):
        z.to_numpy()
    with pytest.raises(sg.SpirogradRuntimeError):
        fill(z, 6)
    fill(x, 7)
    assert x[0] == 7


def test_gradients_are_fields(arch: str) -> None:
    x = sg.field(sg.f32, shape=3, needs_grad=True, needs_dual=True)
    v = sg.Vector.field(2, sg.f64, shape=(2, 2), needs_grad=True)
    lazy = sg.field(sg.f32)
    other = sg.Vector.field(2, sg.f32)
    sg.root.dense(sg.i, 4).place(lazy, other)
    sg.root.lazy_grad()
    sg.root.lazy_dual()

    @sg.kernel
    def work():
        for i in x:
            x.grad[i] = 10 * i
            x.dual[i] = x[i] + 1
        for i, j in v.grad:
            v.grad[i, j] += [i, j]
        for i in lazy:
            lazy.grad[i] = 3 + lazy[i]
            other.grad[i][1] -= 2
            other.dual[i] = i

    x.from_numpy(np.array([1, 2, 3]))
    work()
    assert lazy.has_grad() and x.has_dual() and v.has_dual()
    np.testing.assert_array_equal(x.grad.to_numpy(), [0, 10, 20])
    np.testing.assert_array_equal(x.dual.to_numpy(), [2, 3, 4])
    np.testing.assert_array_equal(x.to_numpy(), [1, 2, 3])
    np.testing.assert_array_equal(v.grad.to_numpy()[1, 0], [1, 0])
    np.testing.assert_array_equal(lazy.grad.to_numpy(), [3] * 4)
    np.testing.assert_array_equal(other.grad.to_numpy(), [[0, -2]] * 4)
    np.testing.assert_array_equal(other.dual.to_numpy()[:, 0], np.arange(4))


def test_host_and_kernel_take_turns(arch: str) -> None:
    x = sg.field(sg.f32, shape=(2, 3))
    v = sg.Vector.field(2, sg.i64, shape=3)
    copy = sg.field(sg.f32, shape=(2, 3), order="ji")

    @sg.kernel
    def double():
        for I in sg.grouped(x):
            x[I] *= 2
        for i in v:
            v[i] = v[i] * 3

    for launch in range(3):
        x.fill(launch + 0.5)
        x[1, 2] = 9
        v.fill([launch, 2**40])
        v[1].x = -1
        double()
        want = np.full((2, 3), 2 * launch + 1.0)
        want[1, 2] = 18
        np.testing.assert_array_equal(x.to_numpy(), want)
        assert v[0].to_list() == [3 * launch, 3 * 2**40] and v[1][0] == -3 and x[1, 2] == 18
        copy.copy_from(x)
        np.testing.assert_array_equal(copy.to_numpy(), want)


def test_exchange_by_dlpack(arch: str) -> None:
    x = sg.field(sg.f32, shape=(2, 3), order="ji")
    x.from_numpy(np.arange(6).reshape(2, 3))
    if x.__dlpack_device__()[0] == 1:  # NumPy takes no memory of GPUs
        np.testing.assert_array_equal(np.from_dlpack(x), np.arange(6).reshape(2, 3))


PAIR = sg.types.struct(n=sg.i32, v=sg.types.vector(2, sg.f32))


@pytest.mark.parametrize("dtype", [sg.f64, sg.u8, sg.types.matrix(2, 3, sg.f32), PAIR], ids=["f64", "u8", "matrix", "struct"])
@pytest.mark.parametrize("twin_of", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_copies_and_pickles(arch: str, dtype: Any, twin_of: Any) -> None:
    """Another field with the same elements, wherever the first lies in its tree."""
    x = sg.field(dtype)
    sg.root.dense(sg.ij, (2, 1)).dense(sg.j, 3).place(x, offset=(-1, 2))
    arrays = x.to_numpy()
    rng = np.random.default_rng(0)
    contents = {k: (rng.random(a.shape) * 9).astype(a.dtype) for k, a in (arrays if dtype is PAIR else {"": arrays}).items()}
    x.from_numpy(contents if dtype is PAIR else contents[""])
    twin = twin_of([x, x])
    assert twin[0] is twin[1]
    assert (type(twin[0]), twin[0].shape, twin[0].dtype) == (type(x), x.shape, x.dtype)
    x.fill(0)
    for name, want in contents.items():
        np.testing.assert_array_equal(twin[0].to_numpy()[name] if name else twin[0].to_numpy(), want)
    assert twin[0].snode.tree is not x.snode.tree and twin[0].origin == (-1, 2)
    assert copy.copy(x) is x


def test_copies_of_gradients(arch: str) -> None:
    x = sg.field(sg.f32, shape=3, needs_grad=True)
    x.fill(2.0)
    x.grad.fill(5.0)
    twin, gradient = copy.deepcopy(x), copy.deepcopy(x.grad)
    x.grad.fill(0.0)
    assert twin.grad.to_numpy().tolist() == gradient.to_numpy().tolist() == [5.0] * 3
    assert not twin.has_dual() and not gradient.has_grad()


def test_parts_of_fields_are_not_copied(arch: str) -> None:
    v = sg.Vector.field(2, sg.f32, shape=3)
    with pytest.raises(sg.SpirogradTypeError, match="part of another field: it can be neither pickled nor copied"):
        copy.deepcopy(v.get_scalar_field(0))
    with pytest.raises(sg.SpirogradRuntimeError, match="has no place yet"):
        pickle.dumps(sg.field(sg.f32))


def test_copies_only_where_memory_cannot_be_shared(arch: str) -> None:
    for x in (sg.field(sg.f32, shape=3), sg.ndarray(sg.f32, shape=3), sg.Vector.field(2, sg.f32, shape=3)):
        x.fill(1.0)
        shared = x.to_numpy(copy=None)
        assert (shared == 1.0).all()
        if arch == "cpu":
            shared[0] = 7.0
            assert x.to_numpy()[0].max() == 7.0
        assert x.to_numpy(copy=None, dtype=np.float64).dtype == np.float64
        with pytest.raises(ValueError, match="`copy=False` needs"):
            x.to_numpy(copy=False, dtype=np.float64)


@pytest.mark.needs("torch")
def test_torch(arch: str) -> None:
    import torch

    x = sg.field(sg.f32, shape=(2, 3), order="ji")
    v = sg.Vector.field(2, sg.i32, shape=3, layout=sg.Layout.SOA)
    x.from_torch(torch.arange(6, dtype=torch.float32).reshape(2, 3))
    v.from_torch(torch.tensor([[1, 2], [3, 4], [5, 6]]))

    @sg.kernel
    def work():
        for i, j in x:
            x[i, j] += v[j].x * 100

    work()
    assert x.to_torch().tolist() == [[100, 301, 502], [103, 304, 505]]
    assert v.to_torch().tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize("size", [40 << 20], ids=["160MiB"])
@pytest.mark.archs("cpu", "vulkan")  # the interpreter would take minutes
def test_large_fields(arch: str, size: int) -> None:
    x = sg.field(sg.f32, shape=size)
    pair = sg.Vector.field(2, sg.u8, shape=(size // 4, 2), layout=sg.Layout.SOA)

    @sg.kernel
    def work() -> sg.i64:
        for i in range(64):
            at = (size // 64) * i + 5
            x[at] = i
            pair[at // 8, 1] = [i, 2]
        total = sg.i64(0)
        for i in range(64):
            total += sg.cast(x[(size // 64) * i + 5], sg.i64)
        return total

    assert work() == 63 * 32
    assert x[(size // 64) * 63 + 5] == 63 and pair[((size // 64) * 63 + 5) // 8, 1].to_list() == [63, 2]


@pytest.mark.archs("cpu")
def test_more_than_two_gigabytes(arch: str) -> None:
    """Elements beyond 2^31 bytes and beyond index 2^31; pages that are not accessed cost nothing."""
    x = sg.field(sg.f32, shape=(3, 1 << 28))
    y = sg.field(sg.u8, shape=(5, 1 << 29))

    @sg.kernel
    def work():
        for i in range(3):
            x[i, 5] = i + 1
            x[i, (1 << 28) - 1] = x[i, 5] * 10
        for i in range(5):
            y[i, (1 << 29) - 2] = i + 1

    work()
    assert [x[i, 5] for i in range(3)] == [1, 2, 3] and x[2, (1 << 28) - 1] == 30
    assert [y[i, (1 << 29) - 2] for i in range(5)] == [1, 2, 3, 4, 5] and y[4, 0] == 0


def test_an_argument_does_not_name_the_field(arch: str) -> None:
    x = sg.tensor(sg.f32, shape=4, backend=sg.Backend.FIELD)

    @sg.func
    def one_more(inner: sg.template(), i):
        inner[i] += 1

    @sg.kernel
    def by_tensor(outer: sg.Tensor):
        for i in outer:
            one_more(outer, i)

    @sg.kernel
    def by_name():
        for i in x:
            x[i] += 1

    by_tensor(x)
    assert x.name == "x"  # that of the line which made it
    assert "outer" not in by_tensor.ir() and "inner" not in by_tensor.ir()
    np.testing.assert_array_equal(x.to_numpy(), 1)
    y = sg.tensor(sg.f32, shape=4, backend=sg.Backend.FIELD)
    x = y
    by_name()  # a variable of the program does
    assert y.name == "x"
    by_tensor(y)
    assert '"x"' in by_tensor.ir()


@pytest.mark.parametrize("dtype", [sg.f32, sg.i8, sg.u16, sg.i32, sg.u32], ids=str)
def test_fill_with_each_kind_of_number(arch: str, dtype: DType) -> None:
    """Also with numbers that are equal but have other bytes, one after the other."""
    sg.init(arch=arch)
    f = sg.field(dtype, shape=3)
    numbers: list[float] = [0, 0.0, -0.0, 1, 1.0, -1, 2.5, 0, float("inf"), 1 << 40, np.float32(3.0), 0.0]
    for value in [*numbers, *([float("nan")] if dtype is sg.f32 else [])]:
        f.fill(value)
        assert f.to_numpy().tobytes() == np.full(3, dtype.array(value)).tobytes(), value
