"""`stop_grad` of fields and arrays: nothing flows through what is read of them in the block where the call stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

N = 4
X = np.arange(1.0, N + 1, dtype=np.float32)


@pytest.fixture
def memory(session: Any) -> tuple[Any, Any, Any]:
    x, y, loss = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    x.from_numpy(X)
    y.fill(2.0)
    return x, y, loss


def gradients(kernel: Any, loss: Any, *of: Any) -> list[list[float]]:
    with sg.ad.Tape(loss):
        kernel()
    return [field.grad.to_numpy().tolist() for field in of]


def test_in_a_loop(memory: Any) -> None:
    x, y, loss = memory

    @sg.kernel
    def work():
        for i in x:
            loss[None] += x[i] * y[i]  # the whole body is meant, as in the family
            sg.stop_grad(y)
            loss[None] += x[i] * y[i]
        for i in x:
            loss[None] += x[i] * y[i]

    assert gradients(work, loss, x, y) == [[6.0] * N, X.tolist()]


def test_in_a_branch_and_an_inner_loop(memory: Any) -> None:
    x, y, loss = memory

    @sg.kernel
    def work():
        for i in x:
            loss[None] += x[i] * y[i]
            if x[i] > 2.5:
                loss[None] += x[i] * y[i]
                sg.stop_grad(y)
            for j in range(2):
                sg.stop_grad(y)
                for _ in range(2):
                    loss[None] += x[i] * y[j]

    assert gradients(work, loss, x, y) == [[10.0, 10.0, 12.0, 12.0], X.tolist()]


def test_in_the_kernel(memory: Any) -> None:
    x, y, loss = memory

    @sg.func
    def stopped(f: sg.template(), i):
        return f[i] * 1.0

    @sg.kernel
    def work():
        for i in x:
            loss[None] += x[i] * stopped(y, i)
        sg.stop_grad(y)

    assert gradients(work, loss, x, y) == [[2.0] * N, [0.0] * N]
    work()
    loss.grad[None] = 1.0
    work.grad()
    assert not y.grad.to_numpy().any()


def test_in_a_function(memory: Any) -> None:
    x, y, loss = memory

    @sg.func
    def stopped(f: sg.template(), i):
        sg.stop_grad(f)
        return f[i]

    @sg.kernel
    def work():
        for i in x:
            loss[None] += x[i] * stopped(y, i)
        for i in x:
            loss[None] += x[i] * y[i]

    assert gradients(work, loss, x, y) == [[4.0] * N, X.tolist()]


def test_writes_are_differentiated(memory: Any) -> None:
    x, y, loss = memory

    @sg.kernel
    def work():
        for i in x:
            sg.stop_grad(y)
            y[i] += x[i] * y[i]
        for i in x:
            loss[None] += y[i]

    assert gradients(work, loss, x, y) == [[2.0] * N, [1.0] * N]


def test_vectors_and_structs(session: Any) -> None:
    v = sg.Vector.field(2, sg.f32, N, needs_grad=True)
    s = sg.Struct.field({"a": sg.f32, "b": sg.types.vector(2, sg.f32)}, shape=N, needs_grad=True)
    loss = sg.field(sg.f32, (), needs_grad=True)
    v.fill(1.0)

    @sg.kernel
    def work():
        for i in v:
            sg.stop_grad(v)
            sg.stop_grad(s)
            loss[None] += v[i].norm_sqr() * (s[i].a + s[i].b[1]) + v[i][i % 2]
        for i in v:
            loss[None] += s[i].a + 3.0 * s[i].b.sum()

    assert gradients(work, loss, v, s.a, s.b) == [[[0.0] * 2] * N, [1.0] * N, [[3.0] * 2] * N]


def test_arrays(session: Any) -> None:
    x, y, loss = (sg.ndarray(sg.f32, shape, needs_grad=True) for shape in (N, N, ()))
    x.from_numpy(X)
    y.fill(2.0)

    @sg.kernel
    def work(x: sg.types.ndarray(), y: sg.types.ndarray(), loss: sg.types.ndarray()):
        for i in x:
            sg.stop_grad(y)
            loss[None] += x[i] * y[i]

    with sg.ad.Tape(loss):
        work(x, y, loss)
    assert x.grad.to_numpy().tolist() == [2.0] * N
    assert not y.grad.to_numpy().any()


def test_tangents(session: Any) -> None:
    x, y, loss = (sg.field(sg.f32, shape, needs_dual=True) for shape in (N, N, ()))
    x.from_numpy(X)

    @sg.kernel
    def work():
        for i in x:
            sg.stop_grad(y)
            loss[None] += x[i] * y[i]

    with sg.ad.FwdMode(loss=loss, param=y, seed=np.ones(N)):
        work()
    assert loss.dual[None] == 0.0


@pytest.mark.archs("interpreter")
def test_what_is_refused(memory: Any) -> None:
    x, y, loss = memory
    with pytest.raises(sg.SpirogradTypeError, match="works in kernels"):
        sg.stop_grad(x)

    @sg.real_func
    def product(i: sg.i32) -> sg.f32:
        s = 0.0
        for j in range(3):
            s += x[i] * y[j]
        return s

    @sg.kernel
    def work():
        for i in x:
            sg.stop_grad(y)
            loss[None] += product(i) + product(i + 1) + product(i * 2)

    try:
        found = gradients(work, loss, y)
    except sg.SpirogradCompilationError as error:
        assert "does not reach" in str(error)
    else:
        assert found == [[0.0] * N]
    v = sg.Vector.field(2, sg.f32, N)

    @sg.kernel
    def component():
        sg.stop_grad(v.get_scalar_field(0))

    with pytest.raises(sg.SpirogradTypeError, match="one component"):
        component()
