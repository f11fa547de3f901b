"""Random numbers in kernels that activate cells, and that call functions with loops: these are called, not inlined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.usefixtures("session")]
N = 96
SHAPES = {
    "pointer": lambda root: root.pointer(sg.i, 12).dense(sg.i, 8),
    "hash": lambda root: root.hash(sg.i, 12).dense(sg.i, 8),
    "bitmasked": lambda root: root.bitmasked(sg.i, 12).dense(sg.i, 8),
    "dynamic": lambda root: root.dynamic(sg.i, N, chunk_size=8),
    "pointer in pointer": lambda root: root.pointer(sg.i, 3).pointer(sg.i, 4).bitmasked(sg.i, 8),
}


def drawn(shape: str, needs_grad: bool = False) -> Any:
    x = sg.field(sg.f32, needs_grad=needs_grad)
    builder = sg.FieldsBuilder()
    SHAPES[shape](builder).place(x)
    if needs_grad:
        builder.lazy_grad()
    return x


@pytest.mark.parametrize("shape", SHAPES)
def test_every_kind_of_node(shape: str) -> None:
    x, dense = drawn(shape), sg.field(sg.f32, shape=N)

    @sg.kernel
    def draw():
        for i in range(N):
            if sg.random() < 0.75:
                value = sg.randn() + sg.random()
                x[i] = value
                dense[i] = value
                more = sg.random()
                x[i] += more
                dense[i] += more

    draw()
    np.testing.assert_array_equal(x.to_numpy(), dense.to_numpy())
    assert N / 2 < len(np.unique(dense.to_numpy())) < N


def test_append_and_activate() -> None:
    lists, cells = sg.field(sg.f32), sg.field(sg.f32)
    node = sg.root.dynamic(sg.i, 64, chunk_size=16)
    node.place(lists)
    block = sg.root.pointer(sg.i, 64)
    block.place(cells)

    @sg.kernel
    def draw() -> sg.i32:
        for i in range(40):
            if sg.random() < 0.5:
                sg.append(node, [], sg.random())
                sg.activate(block, [i])
        return sg.length(node, [])

    @sg.kernel
    def visited() -> sg.i32:
        n = 0
        for _ in cells:
            n += 1
        return n

    count = draw()
    assert 10 < count < 30
    assert visited() == count
    assert (lists.to_numpy()[:count] > 0).all()


def test_loops_over_active_cells_draw() -> None:
    x = drawn("pointer")

    @sg.kernel
    def place():
        for i in range(0, N, 16):
            x[i] = sg.random() + 1

    @sg.kernel
    def jitter():
        for i in x:
            x[i] += sg.random()
            if i + 8 < N and i % 16 == 0:
                x[i + 8] = sg.random()

    place()
    before = x.to_numpy()
    jitter()
    after = x.to_numpy()
    assert (after[before > 0] > before[before > 0]).all()


def test_gradients() -> None:
    x, y = drawn("pointer", needs_grad=True), sg.field(sg.f32, shape=N, needs_grad=True)
    x.from_numpy(np.ones(N, np.float32))

    @sg.kernel
    def scale():
        for i in range(N):
            y[i] += sg.random() * x[i]

    scale()
    y.grad.fill(1)
    scale.grad()
    assert (x.grad.to_numpy() > 0).all()


def test_functions_with_loops_are_called() -> None:
    """A counter of random numbers is nothing that their loops carry."""

    @sg.real_func
    def powers(a: sg.f32, n: sg.i32) -> sg.f32:
        total = 0.0
        term = 1.0
        for _ in range(n):
            total += term
            term *= a
        while total > 100.0:
            total *= 0.5
        return total

    @sg.real_func
    def noisy(n: sg.i32) -> sg.f32:
        total = 0.0
        for _ in range(n):
            total += sg.random()
        return total

    out, sums = sg.field(sg.f32, shape=N), sg.field(sg.f32, shape=N)

    @sg.kernel
    def work():
        for i in range(N):
            out[i] = powers(sg.random(), 5) + powers(sg.random(), 6)
            sums[i] = noisy(4) + noisy(4)

    work()
    assert (out.to_numpy() >= 2).all()
    assert len(np.unique(sums.to_numpy())) == N
    text = work.ir("kernel")
    assert 'function "powers' in text
    assert 'function "noisy' not in text
