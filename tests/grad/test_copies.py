"""The derivative of `copy_from` on a tape: the gradients of the copy are added to those of what it was made of, on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd.lang import context
from spirograd.session import Session

pytestmark = pytest.mark.vulkan_or_wgpu

torch = needs.package("torch")
SHAPES = [(), (1,), (1000,), (3, 5, 7)]


@pytest.fixture(autouse=True)
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GPUs: by kernels, on all back ends."""
    monkeypatch.setattr(Session, "transfers_by_kernel", lambda session, allocation: True)


def field(t: Any, shape: tuple[int, ...]) -> Any:
    return sg.field(t, shape, needs_grad=True)


def ndarray(t: Any, shape: tuple[int, ...]) -> Any:
    return sg.ndarray(t, shape, needs_grad=True)


def matrix_field(t: Any, shape: tuple[int, ...]) -> Any:
    return sg.Matrix.field(2, 3, t, shape, needs_grad=True)


def matrix_ndarray(t: Any, shape: tuple[int, ...]) -> Any:
    return sg.Matrix.ndarray(2, 3, t, shape, needs_grad=True)


def interleaved(t: Any, shape: tuple[int, ...]) -> Any:
    """A matrix field whose elements have others between them."""
    x, small, other = sg.Matrix.field(2, 3, t, needs_grad=True), sg.field(sg.i8), sg.field(t)
    axes = [sg.i, sg.j, sg.k][: len(shape)]
    block = sg.root.dense(sg.axes(*range(len(axes))), shape) if axes else sg.root
    block.place(small, other, x, x.grad)
    return x


def separate(t: Any, shape: tuple[int, ...]) -> Any:
    """A matrix field whose components lie anywhere: there is no stride from one to the next."""
    x = sg.Matrix.field(2, 3, t, needs_grad=True)
    for k, j in ((0, 0), (1, 2), (0, 1), (1, 0), (0, 2), (1, 1)):
        block = sg.root.dense(sg.axes(*range(len(shape))), shape) if shape else sg.root
        block.place(x.get_scalar_field(k, j), x.grad.get_scalar_field(k, j))
        sg.root.dense(sg.i, 3 + j).place(sg.field(sg.i32))
    return x


def transposed(t: Any, shape: tuple[int, ...]) -> Any:
    """A field whose first axis is the fastest one."""
    x = sg.field(t, needs_grad=True)
    block = sg.root
    for axis, extent in reversed([*enumerate(shape)]):
        block = block.dense(sg.axes(axis), extent)
    block.place(x)
    block.place(x.grad)
    return x


def blocked(t: Any, shape: tuple[int, ...]) -> Any:
    """A field in blocks of 4."""
    x = sg.field(t, needs_grad=True)
    sg.root.dense(sg.i, -(-shape[0] // 4)).dense(sg.i, 4).place(x, x.grad)
    return x


SCALARS, MATRICES = [field, ndarray, transposed], [matrix_field, matrix_ndarray, interleaved, separate]
KINDS = [(a, b) for kinds in (SCALARS, MATRICES) for a in kinds for b in kinds]
Kind = Callable[[Any, tuple[int, ...]], Any]


class Gradients:
    """Random gradients of a source and of a copy, in their types, and what they are after the reverse of the copy."""

    def __init__(self, source: Any, target: Any, seed: int) -> None:
        self.source, self.target = source, target
        rng = np.random.default_rng(seed)
        for memory in (source, target):
            memory.grad.from_numpy(rng.uniform(1, 2, memory.grad.to_numpy().shape))
        self.old, new = source.grad.to_numpy(), target.grad.to_numpy()
        self.wanted = (self.old.astype(np.result_type(self.old, new)) + new).astype(self.old.dtype)

    def check(self) -> None:
        np.testing.assert_array_equal(self.source.grad.to_numpy(), self.wanted)
        assert not self.target.grad.to_numpy().any()


def copied(source: Any, target: Any) -> None:
    """Copy on a tape, and compare the gradients of both. On devices that run while Python goes on, the reverse does not wait."""
    source.from_numpy(np.random.default_rng(2).uniform(1, 2, source.to_numpy().shape))
    gradients = Gradients(source, target, 3)
    with sg.ad.Tape(clear_gradients=False) as tape:
        target.copy_from(source)
    device = context.session().device
    waits = device.waits
    tape.grad()
    assert device.waits == waits or not device.caps.target.asynchronous
    gradients.check()
    np.testing.assert_array_equal(target.to_numpy(), source.to_numpy().astype(target.dtype.np))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("source", "target"), KINDS, ids=lambda kind: kind.__name__)
def test_layouts(session: Any, source: Kind, target: Kind, shape: tuple[int, ...]) -> None:
    copied(source(sg.f32, shape), target(sg.f32, shape))


def test_empty(session: Any) -> None:
    copied(ndarray(sg.f32, (0,)), ndarray(sg.f32, (0,)))
    copied(matrix_ndarray(sg.f32, (3, 0)), matrix_ndarray(sg.f32, (3, 0)))


def test_blocks(session: Any) -> None:
    for n in (4, 1000):
        copied(blocked(sg.f32, (n,)), field(sg.f32, (n,)))
        copied(ndarray(sg.f32, (n,)), blocked(sg.f32, (n,)))


@pytest.mark.parametrize(("source", "target"), [(sg.f64, sg.f32), (sg.f32, sg.f64), (sg.f16, sg.f32), (sg.f16, sg.f16), (sg.f64, sg.f64)])
def test_types(session: Any, source: Any, target: Any) -> None:
    needs.of_type(source)
    needs.of_type(target)
    copied(field(source, (100,)), ndarray(target, (100,)))
    copied(interleaved(source, (100,)), matrix_ndarray(target, (100,)))
    copied(matrix_ndarray(source, (100,)), interleaved(target, (100,)))


def doubled(x: Any, y: Any) -> Any:
    @sg.kernel
    def double():
        for I in sg.grouped(x):
            y[I] = 2.0 * x[I]

    return double


@pytest.mark.parametrize("kind", [field, transposed, interleaved, separate], ids=lambda kind: kind.__name__)
def test_graphs(session: Any, kind: Kind) -> None:
    """A graph repeats copies and their reverse, which changes what is there then."""
    x, y, z = kind(sg.f32, (5, 9)), field(sg.f32, (5, 9)) if kind in SCALARS else matrix_field(sg.f32, (5, 9)), kind(sg.f32, (5, 9))
    double = doubled(y, z)
    with sg.Graph() as graph:
        with sg.ad.Tape(clear_gradients=False) as tape:
            y.copy_from(x)
            double()
        tape.grad()
        y.grad.fill(0.25)
        z.grad.fill(0.0)
    for k in range(3):
        values = np.random.default_rng(k).uniform(1, 2, x.to_numpy().shape).astype(np.float32)
        x.from_numpy(values)
        x.grad.fill(0.5)
        z.grad.from_numpy(values)
        graph.launch()
        np.testing.assert_array_equal(z.to_numpy(), 2 * values)
        np.testing.assert_array_equal(x.grad.to_numpy(), 2 * values + np.float32(0.75))


def test_torch(session: Any) -> None:
    """From a tensor through a kernel, a copy and another kernel."""
    x, y = field(sg.f32, (7,)), ndarray(sg.f32, (7,))
    loss = field(sg.f32, ())

    @sg.kernel
    def square(t: sg.types.ndarray(sg.f32, 1)):
        for i in x:
            x[i] = t[i] * t[i]

    @sg.kernel
    def total(y: sg.types.ndarray(sg.f32, 1)):
        for i in y:
            loss[None] += 3.0 * y[i]

    t = torch.arange(7, dtype=torch.float32, requires_grad=True)
    with sg.ad.Tape(loss):
        square(t)
        y.copy_from(x)
        total(y)
    np.testing.assert_array_equal(t.grad.numpy(), 6.0 * np.arange(7))


@pytest.mark.parametrize("t", [sg.i8, sg.u16, sg.i32, sg.i64, sg.f16, sg.f32, sg.f64, sg.u1], ids=str)
def test_values(session: Any, t: Any) -> None:
    """Copies and fills of memory with strides leave what is between it as it is, and keep bits, those of NaN and -0.0, too."""
    if not context.session().device.caps.stores(t):
        pytest.skip(f"{needs.PREFIX}memory of {t}: kernels of this device have none")
    x, between, y = sg.Matrix.field(3, 2, t), sg.field(sg.u8), sg.Matrix.ndarray(3, 2, t, (4, 5))
    sg.root.dense(sg.ij, (4, 5)).place(between, x)
    between.fill(77)
    values = np.random.default_rng(5).integers(0, 2 if t is sg.u1 else 100, (4, 5, 3, 2)).astype(t.np)
    if t.is_float:
        values[1, 2, 0, 1], values[2, 2, 1, 0] = np.nan, -0.0
    y.from_numpy(values)
    with sg.Graph():
        x.copy_from(y)
    np.testing.assert_array_equal(x.to_numpy().view(np.uint8), values.view(np.uint8))
    with sg.Graph() as graph:
        x.fill(1)
    x.fill(0)
    graph.launch()
    assert (x.to_numpy() == 1).all() and (between.to_numpy() == 77).all()
    x.fill(sg.Matrix([[1, 0], [0, 1], [1, 1]]))
    y.fill(0)
    y.copy_from(x)
    assert (y.to_numpy() == np.array([[1, 0], [0, 1], [1, 1]])).all() and (between.to_numpy() == 77).all()


def test_conversions(session: Any) -> None:
    """Copies to memory of another type convert as kernels do."""
    x, y, z = sg.field(sg.f32), sg.ndarray(sg.i32, 6), sg.field(sg.i32)
    sg.root.dense(sg.i, 6).place(x, z)
    x.from_numpy(np.array([1.5, -1.5, 2.0, 3.99, -0.25, 1e6], np.float32))
    with sg.Graph():
        y.copy_from(x)
        z.copy_from(x)
    np.testing.assert_array_equal(y.to_numpy(), [1, -1, 2, 3, 0, 1000000])
    np.testing.assert_array_equal(z.to_numpy(), y.to_numpy())
