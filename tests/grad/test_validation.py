"""`Tape(validation=True)` and `Tape(grad_check=[...])`, as programs of the family use them."""

from __future__ import annotations

import logging
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

N = 5
X = np.linspace(0.5, 2.5, N)


def memory(t: Any = sg.f32) -> tuple[Any, Any, Any]:
    x, y, loss = sg.field(t, N, needs_grad=True), sg.field(t, N, needs_grad=True), sg.field(t, (), needs_grad=True)
    x.from_numpy(X.astype(t.np))
    return x, y, loss


def kernels(x: Any, y: Any, loss: Any) -> list[Any]:
    @sg.kernel
    def square():
        for i in x:
            y[i] = x[i] ** 2

    @sg.kernel
    def total():
        for i in y:
            loss[None] += y[i] * y[i]

    @sg.kernel
    def again():
        for i in y:
            y[i] += x[i]

    @sg.kernel
    def in_place():
        for i in x:
            loss[None] += x[i] ** 2
            x[i] = x[i] * 2.0

    return [square, total, again, in_place]


def test_programs_that_keep_the_rule(arch: str) -> None:
    sg.init(arch=arch, debug=True)
    x, y, loss = memory()
    square, total, again, _ = kernels(x, y, loss)
    for _ in range(2):  # marks are of one tape
        y.fill(0.0)
        with sg.ad.Tape(loss, validation=True):
            square()
            again()
            total()
        values = X**2 + X
        np.testing.assert_allclose(loss[None], (values**2).sum(), rtol=1e-5)  # the try changed nothing
        np.testing.assert_allclose(x.grad.to_numpy(), 2 * values * (2 * X + 1), rtol=1e-5)


@pytest.mark.parametrize("broken", ["later", "atomic", "in place"])
def test_programs_that_break_it(arch: str, broken: str) -> None:
    sg.init(arch=arch, debug=True)
    x, y, loss = memory()
    square, total, again, in_place = kernels(x, y, loss)
    first, second = {"later": (total, square), "atomic": (total, again), "in place": (square, in_place)}[broken]
    name = "x" if second is in_place else "y"
    message = f"data access rule: `{name}`(.|\n)*{second.__name__}"
    with pytest.raises(sg.SpirogradAssertionError, match=message), sg.ad.Tape(loss, validation=True):
        square()
        first()
        second()
    sg.sync()
    np.testing.assert_array_equal(x.to_numpy(), X.astype(np.float32))  # as before the launch
    with sg.ad.Tape(loss):
        square()
        first()
        second()


def test_elements_are_told_apart(arch: str) -> None:
    sg.init(arch=arch, debug=True)
    v = sg.Vector.field(2, sg.f32, shape=(3, 4), offset=(-1, 2), needs_grad=True)
    loss = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def work(column: sg.i32):
        for i in range(-1, 2):
            v[i, column][1] = v[i, 2][0] * 2.0
            loss[None] += v[i, column][1]

    for column, entry in ((3, True), (2, False)):  # the entry that is read is never written, the one that is written is read after it
        with sg.ad.Tape(loss, validation=True):
            work(column)
            if entry:
                work(5)
    with pytest.raises(sg.SpirogradAssertionError, match="`v` is overwritten"), sg.ad.Tape(loss, validation=True):
        work(4)
        work(4)


def test_arrays(arch: str) -> None:
    sg.init(arch=arch, debug=True)
    x, loss = sg.ndarray(sg.f32, N, needs_grad=True), sg.ndarray(sg.f32, (), needs_grad=True)
    other = np.zeros(N, np.float32)

    @sg.kernel
    def work(x: sg.types.ndarray(), loss: sg.types.ndarray(), other: sg.types.ndarray(), write: sg.i32):
        for i in x:
            other[i] += 1.0
            loss[None] += x[i] * other[i]
            if write == i:
                x[i] = 0.0

    with sg.ad.Tape(loss, validation=True):
        work(x, loss, other, -1)
    assert other.tolist() == [1.0] * N
    assert x.grad.to_numpy().tolist() == [1.0] * N
    with pytest.raises(sg.SpirogradAssertionError, match="`x` is overwritten"), sg.ad.Tape(loss, validation=True):
        work(x, loss, other, 2)


@pytest.mark.archs("interpreter")
def test_without_debug_mode(session: Any, caplog: pytest.LogCaptureFixture) -> None:
    x, y, loss = memory()
    with caplog.at_level(logging.WARNING, "spirograd"), sg.ad.Tape(loss, validation=True):
        kernels(x, y, loss)[3]()
    assert "checks nothing without `init(debug=True)`" in caplog.text


# --- differences -------------------------------------------------------------------------------------------------------------


def test_right_gradients(session: Any, capsys: pytest.CaptureFixture[str]) -> None:
    needs.of_type(sg.f64)
    x, y, loss = memory(sg.f64)
    square, total, again, in_place = kernels(x, y, loss)
    z = sg.ndarray(sg.f64, (), needs_grad=True)
    z.fill(1.5)

    @sg.kernel
    def scale(z: sg.types.ndarray()):
        for i in x:
            y[i] *= sg.sin(z[None]) * sg.random(sg.f64)

    with sg.ad.Tape(loss, grad_check=[x, z, y]):
        square()
        scale(z)
        again()
        in_place()
        x.from_numpy(X[::-1].copy())
        again()
        total()
    out = capsys.readouterr().out
    assert out.count("passed") == 3 and "`x`" in out and "`y`" in out
    np.testing.assert_array_equal(x.to_numpy(), X[::-1])
    assert float(z[None]) == 1.5 and loss[None] > 0.0
    assert x.grad.to_numpy().all() and z.grad[None] != 0.0


def test_wrong_gradients(session: Any, capsys: pytest.CaptureFixture[str]) -> None:
    needs.of_type(sg.f64)
    x, y, loss = memory(sg.f64)
    square, total, *_ = kernels(x, y, loss)

    @sg.ad.grad_replaced
    def replaced():
        square()
        total()

    @sg.ad.grad_for(replaced)
    def gradient(factor=1.0):
        x.grad.from_numpy(4 * X**3 * factors)

    factors = np.array([1.0, 1.009, 1.0, 1.0, 0.991])
    with sg.ad.Tape(loss, grad_check=[x]):
        replaced()
    factors[3] = 1.02
    with pytest.raises(AssertionError, match=r"the gradient of `x\[3\]` is"), sg.ad.Tape(loss, grad_check=[x, y]):
        replaced()
    out = capsys.readouterr().out
    assert "`x`: FAILED, relative error 0.0196" in out and "`y`: passed" in out


@pytest.mark.archs("interpreter")
def test_what_cannot_be_checked(session: Any) -> None:
    x, _, loss = memory()
    exact = sg.field(sg.f64, (), needs_grad=True)
    for wrong, message, of in (
        ([x], "f64 only", loss),
        (x, "a list", exact),
        ([sg.field(sg.f64, N)], "with gradients", exact),
        ([], "needs a loss", None),
    ):
        with pytest.raises(AssertionError, match=message):
            sg.ad.Tape(of, grad_check=wrong)

    @sg.kernel
    def work(a: sg.types.ndarray()):
        for i in a:
            exact[None] += a[i]

    with pytest.raises(sg.SpirogradRuntimeError, match="runs launches again"), sg.ad.Tape(exact, grad_check=[]):
        work(np.zeros(3))
