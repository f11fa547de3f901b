"""Views of arrays: slices in Python scope and in kernels, beside NumPy's."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.lang import context

pytestmark = pytest.mark.vulkan_or_wgpu

Array = Any
_SLICES: list[Any] = [
    np.s_[2:5], np.s_[:], np.s_[3:3], np.s_[9:2], np.s_[-3:], np.s_[1:100:4], np.s_[::-1], np.s_[8:1:-3],
]  # fmt: skip
_PLANES: list[Any] = [
    np.s_[1:3], np.s_[1:3, ::2], np.s_[2, :], np.s_[..., 1], np.s_[::-2, 1:4], np.s_[1:1, :], np.s_[-1, ::-1],
]  # fmt: skip


def made(data: Array, **options: Any) -> Any:
    """An ndarray with these contents."""
    a = sg.ndarray({"float32": sg.f32, "int32": sg.i32, "uint8": sg.u8, "float64": sg.f64}[data.dtype.name], data.shape, **options)
    a.from_numpy(data)
    return a


@sg.kernel
def number(v: sg.types.NDArray):
    for index in sg.grouped(v):
        value = 100
        for k in sg.static(range(index.n)):
            value = 10 * value + index[k]
        v[index] += value


def numbered(v: Array) -> None:
    for index in np.ndindex(*v.shape):
        v[index] += functools.reduce(lambda value, k: 10 * value + k, index, 100)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_from_python(session: Any, dtype: Any) -> None:
    for shape, keys in ((12,), _SLICES), ((5, 6), _PLANES):
        data = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
        for key in keys:
            a, expected = made(data), data.copy()
            view = a[key]
            assert isinstance(view, sg.BufferView) and view.shape == expected[key].shape
            assert (view.to_numpy() == expected[key]).all() and (np.asarray(view) == expected[key]).all()
            view.from_numpy(expected[key] + dtype(3))
            expected[key] += dtype(3)
            assert (a.to_numpy() == expected).all(), key
            a[key] = 7
            expected[key] = 7
            assert (a.to_numpy() == expected).all(), key
            for index in np.ndindex(*view.shape):
                view[index] = expected[key][index] = sum(index)
                assert view[index] == sum(index)
            assert (a.to_numpy() == expected).all(), key


def test_as_arguments(session: Any) -> None:
    for shape, keys in ((12,), _SLICES), ((5, 6), _PLANES):
        for key in keys:
            data = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
            a = made(data)
            number(a[key])
            numbered(data[key])
            assert (a.to_numpy() == data).all(), key


def test_slices_of_slices(session: Any) -> None:
    data = np.arange(60, dtype=np.int32)
    a = made(data)
    for first in _SLICES:
        for second in (np.s_[1:], np.s_[::-2], np.s_[:2]):
            assert (a[first][second].to_numpy() == data[first][second]).all()
    plane = made(data.reshape(6, 10))
    view = plane[1:5, ::-3][:, 1:]
    number(view)
    data = data.reshape(6, 10)
    numbered(data[1:5, ::-3][:, 1:])
    assert (plane.to_numpy() == data).all() and view.arr is plane


def test_copies_of_overlapping_views(session: Any) -> None:
    data = np.arange(40, dtype=np.float32)
    for to, by in (np.s_[1:], np.s_[:-1]), (np.s_[:-1], np.s_[1:]), (np.s_[::-1], np.s_[:]), (np.s_[0:20:2], np.s_[5:15]):
        a = made(data)
        a[to].copy_from(a[by])
        expected = data.copy()
        expected[to] = data[by].copy()
        assert (a.to_numpy() == expected).all(), (to, by)
    a, b = made(data), sg.field(sg.f32, shape=20)
    b.copy_from(a[::2])
    a[10:30] = b
    data[10:30] = data[::2].copy()
    assert (a.to_numpy() == data).all()


def test_in_kernels(session: Any) -> None:
    data = np.arange(48, dtype=np.int32).reshape(6, 8)
    a, x = made(data), sg.field(sg.i32, shape=(6, 8))
    x.from_numpy(data)

    @sg.func
    def double(v, of: sg.i32):
        for k in range(v.shape[0]):
            v[k] *= of

    @sg.real_func
    def first(v) -> sg.i32:
        return v[0] + v.shape[0]

    @sg.kernel
    def run(m: sg.Tensor, lo: sg.i32, hi: sg.i32) -> sg.i32:
        for i in range(m.shape[0]):
            double(m[i, lo:hi], 2)
            double(m[i, ::-3], 3)
        inner = m[1:-1, 1:-2]
        for i, j in inner:
            inner[i, j] += inner[i, j] % 2
        inner[0:2, :].fill(5)
        return first(m[2, lo:]) + inner.shape[1] * 100 + inner[:, 1][0]

    expected = data.copy()
    for row in expected:
        row[2:6] *= 2
        row[::-3] *= 3
    inner = expected[1:-1, 1:-2]
    inner += inner % 2
    inner[:2] = 5
    result = expected[2, 2] + 6 + inner.shape[1] * 100 + inner[0, 1]
    for memory in (a, x):
        assert run(memory, 2, 6) == result
        assert (memory.to_numpy() == expected).all()
    plain = data.copy()
    assert run(plain, 2, 6) == result and (plain == expected).all()


def test_two_views_of_one_array_in_one_launch(session: Any) -> None:
    """Neighbouring loops fuse only where arrays do not overlap, and views of one array do."""

    @sg.kernel
    def shift(a: sg.types.NDArray, b: sg.types.NDArray, c: sg.types.NDArray):
        for i in range(20):
            a[i] = 10 * i
        for i in range(20):
            c[i] = b[i]
        for i in range(20):
            a[i] += b[i]

    memory, c = made(np.arange(60, dtype=np.int32)), made(np.zeros(20, np.int32))
    shift(memory[3:23], memory[2:40], c)
    expected = np.arange(60)
    expected[3:23] = 10 * np.arange(20)
    kept = expected[2:22].copy()
    assert (c.to_numpy() == kept).all()
    shift(memory[5:25], memory[30:50], c)
    expected[3:23] = memory.to_numpy()[3:23]
    expected[5:25] = 10 * np.arange(20) + expected[30:50]
    assert (memory.to_numpy()[5:] == expected[5:]).all()


def test_launches_with_other_bounds_share_code(session: Any) -> None:
    a = made(np.zeros(64, np.int32))
    number(a[1:4])
    compiled = context.session().prepared
    for k in range(20):
        number(a[k : k + 3])
    data = np.zeros(64, np.int32)
    numbered(data[1:4])
    for k in range(20):
        numbered(data[k : k + 3])
    assert (a.to_numpy() == data).all()
    assert context.session().prepared == compiled


def test_vectors_and_structs(session: Any) -> None:
    v = sg.Vector.ndarray(3, sg.f32, 8)

    @sg.kernel
    def run(v: sg.BufferView):
        for i in v:
            v[i] = [i, 2 * i, v.offset]

    run(v[2:6])
    run(v[7:])
    expected = np.zeros((8, 3), np.float32)
    expected[2:6] = [[i, 2 * i, 2] for i in range(4)]
    expected[7] = [0, 0, 7]
    assert (v.to_numpy() == expected).all()
    v[::3].fill([1.0, 2.0, 3.0])
    expected[::3] = [1, 2, 3]
    assert (v.to_numpy() == expected).all() and v[::3][1].y == 2

    P = sg.types.struct(a=sg.i32, b=sg.f32)
    x = P.field(shape=6)

    @sg.kernel
    def members():
        part = x[1:5]
        for i in part:
            part[i].a += i
            part[i] = P(part[i].a, 2.5)

    members()
    assert x.a.to_numpy().tolist() == [0, 0, 1, 2, 3, 0] and x.b.to_numpy().tolist() == [0, 2.5, 2.5, 2.5, 2.5, 0]


def test_buffer_views(session: Any) -> None:
    """As the Taichi family has them."""
    a = made(np.arange(20, dtype=np.float32))
    view = sg.BufferView(a, offset=4, size=8)
    assert (view.offset, view.size, view.shape) == (4, 8, (8,)) and view.subview(2, 3).offset == 6

    @sg.func
    def bump(v: sg.BufferView[sg.f32]):
        for k in range(v.size):
            v[k] += 100.0

    @sg.kernel
    def run(v: sg.BufferView[sg.f32], lo: sg.i32) -> sg.i32:
        bump(v.subview(lo, 2))
        bump(sg.BufferView(v, 5, 1))
        return v[lo:].offset

    @sg.kernel
    def of_arrays(x: sg.types.NDArray, whole: sg.BufferView):
        for i in range(4):
            sg.BufferView(x, offset=16, size=4)[i] = whole.size + whole.offset
        rest, pair = sg.BufferView(x, 19), x.subview(14, 2)
        for i in range(rest.size):
            rest[i] -= 1
        for i in range(pair.size):
            pair[i] = x.size

    assert run(view, 1) == 5
    expected = np.arange(20, dtype=np.float32)
    expected[[5, 6, 9]] += 100
    assert (a.to_numpy() == expected).all()
    of_arrays(a, a)
    expected[14:] = [20, 20, 20, 20, 20, 19]
    assert (a.to_numpy() == expected).all()
    with pytest.raises(sg.SpirogradBoundsError, match="a view of 3 elements from index 18 on exceeds"):
        sg.BufferView(a, 18, 3)
    with pytest.raises(sg.SpirogradTypeError, match="a view needs an ndarray, got a NumPy array"):
        sg.BufferView(a.to_numpy(), 1, 2)
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="expected an array of f32, got i32"):
        run(made(np.arange(4, dtype=np.int32))[1:], 1)


@sg.data_oriented
class Holder:
    """Views as attributes, whose bounds may change between launches."""

    def __init__(self, a: Any) -> None:
        self.part = a[0:3]

    @sg.kernel
    def add(self, n: sg.i32):
        for i in self.part:
            self.part[i] += n


def test_views_that_kernels_name(session: Any) -> None:
    a = made(np.zeros(12, np.int32))
    last = a[9:]

    @sg.kernel
    def run():
        for i in last:
            last[i] += 1

    run()
    holder = Holder(a)
    holder.add(5)
    holder.part = a[4:7]
    holder.add(6)
    holder.part = a[::-6]
    holder.add(1)
    assert a.to_numpy().tolist() == [5, 5, 5, 0, 6, 7, 6, 0, 0, 1, 1, 2]


def test_other_objects(session: Any) -> None:
    a = made(np.arange(10, dtype=np.float32), needs_grad=True)
    view = a[2:8:2]
    assert (view.has_grad(), view.grad.shape, type(view.grad)) == (True, (3,), sg.BufferView)
    view.grad.fill(2.0)
    assert a.grad.to_numpy().tolist() == [0, 0, 2, 0, 2, 0, 2, 0, 0, 0]
    for other in (copy.copy(view), pickle.loads(pickle.dumps(view))):
        assert type(other) is sg.ScalarNdarray and other.to_numpy().tolist() == [2, 4, 6] and other.grad.to_numpy().tolist() == [2, 2, 2]
        other.fill(0.0)
    assert a.to_numpy()[2] == 2
    with pytest.raises(sg.SpirogradTypeError, match=r"set `view\.arr\.grad`"):
        view.grad = None
    with pytest.raises(sg.SpirogradTypeError, match="not a view"):
        made(np.zeros(3, np.float32)).grad = view
    with pytest.raises(sg.SpirogradBoundsError, match="index 3 is out of range"):
        view[3]
    with pytest.raises(sg.SpirogradTypeError, match="cannot be sliced by"):
        a["b":]


def test_exports(arch: Any) -> None:
    sg.init(arch=arch)
    a = made(np.arange(12, dtype=np.float32).reshape(3, 4))
    view = a[1:, ::2]
    assert view.to_numpy().tolist() == [[4, 6], [8, 10]]
    if not str(arch).startswith("cuda"):  # NumPy takes no memory of a GPU
        assert np.from_dlpack(view).tolist() == [[4, 6], [8, 10]]
    if arch in ("cpu", "interpreter"):
        over = view.to_numpy(copy=False)
        a[2, 2] = 50.0
        assert over[1, 1] == 50 and not over.flags.owndata
        over[0, 0] = 9
        assert a[1, 0] == 9


@pytest.mark.needs("torch")
def test_exports_to_torch(arch: Any) -> None:
    sg.init(arch=arch)
    a = made(np.arange(12, dtype=np.float32).reshape(3, 4))
    tensor = a[:, 1].to_torch()
    assert tensor.tolist() == [1, 5, 9]
    a[:, 1].from_torch(tensor + 1)
    assert a.to_numpy()[:, 1].tolist() == [2, 6, 10]


@pytest.mark.parametrize("where", ["argument", "slice", "of a field"])
def test_bounds_in_debug_mode(arch: Any, where: str) -> None:
    """An access outside of the view is an error though the array has the element, and is not done."""
    sg.init(arch=arch, debug=True)
    a, x = made(np.arange(10, dtype=np.int32)), sg.field(sg.i32, shape=10)

    @sg.kernel
    def argument(v: sg.BufferView, i: sg.i32):
        v[i] = -1

    @sg.kernel
    def part(a: sg.types.NDArray, lo: sg.i32, i: sg.i32):
        v = a[lo:5]
        v[i] = -1

    @sg.kernel
    def of_field(i: sg.i32):
        v = x[2:5]
        v[i] = -1

    call = {"argument": lambda i: argument(a[2:5], i), "slice": lambda i: part(a, 2, i), "of a field": of_field}[where]
    call(2)
    for index in (3, -1):
        with pytest.raises(sg.SpirogradAssertionError, match=rf"index \({index}\) out of range of .*\[0, 3\)(.|\n)*v\[i\] = -1"):
            call(index)
            sg.sync()
    memory = (x if where == "of a field" else a).to_numpy()
    assert memory[4] == -1 and -1 not in memory[[0, 1, 2, 3, 5, 6]]


def test_slices_in_debug_mode(arch: Any) -> None:
    sg.init(arch=arch, debug=True)
    a = made(np.arange(10, dtype=np.int32))

    @sg.kernel
    def run(a: sg.types.NDArray, lo: sg.i32, hi: sg.i32) -> sg.i32:
        return a[lo:hi].shape[0]

    assert run(a, 2, 10) == 8 and run(a, 4, 2) == 0 and run(a, 10, 10) == 0
    for lo, hi in (2, 11), (-1, 3):
        with pytest.raises(sg.SpirogradAssertionError, match=rf"a slice of `a` from {lo} to {hi} is out of range: there are 10 indices"):
            run(a, lo, hi)
            sg.sync()
