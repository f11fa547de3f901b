"""Constant indices that are out of range behind run-time guards: warnings, and errors only where the access is made and checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu


def test_neighbours_on_an_axis_of_one(session: Any) -> None:
    x, y = sg.field(sg.f32, shape=(1, 3)), sg.field(sg.f32, shape=(1, 3))
    x.fill(1)

    @sg.kernel
    def add(n: sg.i32, m: sg.i32):
        for i, j in x:
            if i + 1 < n:
                y[i, j] += x[i + 1, j]
            if i - 1 >= 0 and j < m and x[i - 1, j] > 0:
                y[i, j] += x[i - 1, j]
            y[i, j] += x[i + 1, j] if i + 1 < n else 2.0
            for k in range(1, n):
                y[i, j] += x[i + 1, j] * k
            if j >= n:
                continue
            y[i, j] += 1

    add(1, 3)
    np.testing.assert_array_equal(y.to_numpy(), [[3, 2, 2]])


@pytest.mark.parametrize("dims", [1, 2])
def test_gradients_of_neighbours(dims: int, session: Any) -> None:
    shape = (1, 4)[:dims]
    x, y = (sg.field(sg.f32, shape=shape, needs_grad=True) for _ in range(2))
    x.fill(2)
    y.grad.fill(1)

    @sg.kernel
    def work(n: sg.i32):
        for I in sg.grouped(x):
            y[I] += x[I] * x[I]
            if I[0] + 1 < n:
                after = I + sg.Vector.unit(dims, 0)
                y[I] += x[after]
                x[after] += 1.0

    work(1)
    work.grad(1)
    assert (x.grad.to_numpy() == 4).all()


def test_sparse_shared_and_vectors(session: Any) -> None:
    x, out = sg.field(sg.i32), sg.field(sg.i32, shape=4)
    sg.root.pointer(sg.i, 1).dense(sg.i, 4).place(x)
    vectors = sg.Vector.field(2, sg.i32, shape=4)

    @sg.kernel
    def work(n: sg.i32):
        for i in range(4):
            sg.loop_config(block_dim=4)
            x[i] = i + 1
            vectors[i] = [i, 2 * i]
            v = sg.Vector([i, i])
            if n > 4:
                x[4] = 9
                vectors[i][2] = 9
                v[2] = 9
            out[i] = v.sum()

    @sg.kernel
    def shared(n: sg.i32):
        sg.loop_config(block_dim=4)
        for i in range(4):
            pad = sg.simt.block.SharedArray((4,), sg.i32)
            pad[i % 4] = i
            if n > 4:
                pad[4] = 9
            sg.simt.block.sync()
            out[i] += pad[3 - i % 4]

    work(4)
    shared(4)
    assert x.to_numpy().tolist() == [1, 2, 3, 4]
    assert vectors.to_numpy().tolist() == [[0, 0], [1, 2], [2, 4], [3, 6]]
    assert out.to_numpy().tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("what", ["field", "vector", "component"])
def test_checks_report_an_access_that_is_made(what: str, arch: str) -> None:
    sg.init(arch=arch, debug=True)
    x, vectors = sg.field(sg.i32, shape=2), sg.Vector.field(2, sg.i32, shape=2)

    @sg.kernel
    def work(n: sg.i32) -> sg.i32:
        v = sg.Vector([n, n])
        if n > 3:
            if sg.static(what == "field"):
                x[2] = 9
            elif sg.static(what == "vector"):
                v[2] = 9
            else:
                vectors[1][2] = 9
        return v[0] + x[0]

    assert work(3) == 3
    with pytest.raises(sg.SpirogradAssertionError, match="out of range"):
        work(4)
        sg.sync()
    assert not x.to_numpy().any()


def test_it_is_a_warning(session: Any, caplog: pytest.LogCaptureFixture) -> None:
    x = sg.field(sg.i32, shape=2)

    @sg.kernel
    def work(n: sg.i32):
        if n > 3:
            x[2] = 9

    with caplog.at_level("WARNING", "spirograd"):
        work(1)
        work(2)
    (text,) = [record.getMessage() for record in caplog.records if "out of range" in record.getMessage()]
    assert "index 2 is out of range on axis 0 of `x`" in text and "x[2] = 9" in text


@pytest.mark.parametrize("form", ["straight", "parallel", "serial", "static", "else"])
def test_what_surely_runs_is_an_error(form: str, session: Any) -> None:
    x = sg.field(sg.i32, shape=2)

    @sg.func
    def wrong():
        x[2] = 9

    @sg.kernel
    def work(n: sg.i32):
        if sg.static(form == "straight"):
            x[2] = 9
        elif sg.static(form == "parallel"):
            for i in range(n):
                x[2] = i
        elif sg.static(form == "serial"):
            for i in x:
                for j in range(3):
                    x[i] = x[2] + j
        elif sg.static(form == "static"):
            for i in sg.static(range(3)):
                x[i] = 9
        elif n < 3:
            x[0] = 1
        if sg.static(form == "else"):
            wrong()

    with pytest.raises(sg.SpirogradIndexError, match="index 2 is out of range on axis 0 of `x`"):
        work(1)
