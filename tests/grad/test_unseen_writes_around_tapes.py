"""Memory that was handed out, with writes after a tape, around functions that are not recorded, and in other modes of differentiation."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import needs
import numpy as np
import pytest
from grad.unseen import KINDS, SQUARES, WEIGHTED, N, memory_of, squares_array, view_of, weighted_array, weighted_field

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]


@KINDS
@pytest.mark.parametrize("handed", ["before", "inside", "after"])
def test_write_after_the_tape(kind: str, handed: str) -> None:
    w, s, loss = memory_of(kind), memory_of(kind), memory_of(kind, ())
    w.fill(3.0)
    s.fill(1.0)
    view = view_of(w) if handed == "before" else None
    with sg.ad.Tape() as tape:
        WEIGHTED[kind](w, s, loss)
        sg.sync()
        view = view_of(w) if handed == "inside" else view
    view = view_of(w) if view is None else view
    for k in range(3):
        view[:] = 50.0 + k
        s.grad.fill(0.0)
        w.grad.fill(0.0)
        loss.grad.fill(1.0)
        tape.grad()
        np.testing.assert_array_equal(s.grad.to_numpy(), 3.0)
        np.testing.assert_array_equal(w.grad.to_numpy(), 1.0)  # a write that is not recorded changes no gradient
        np.testing.assert_array_equal(view, 50.0 + k)


@KINDS
@pytest.mark.parametrize("write", ["host", "kernel", "host, handed out later"])
def test_seen_write_after_the_tape(kind: str, write: str) -> None:
    """Once a tape is closed it saves nothing any more: what it needs must stay."""
    w, s, loss = memory_of(kind), memory_of(kind), memory_of(kind, ())
    w.fill(3.0)
    with sg.ad.Tape() as tape:
        WEIGHTED[kind](w, s, loss)
    loss.fill(0.0)  # no gradient needs it
    loss.grad.fill(1.0)
    tape.grad()
    tape.grad()
    np.testing.assert_array_equal(s.grad.to_numpy(), 6.0)
    if write == "kernel":
        SQUARES[kind](s, w, 1.0)
    else:
        w[2] = 4.0
    if write == "host, handed out later":
        view_of(w)
    with pytest.raises(sg.SpirogradRuntimeError, match="` was written after the tape was closed") as caught:
        tape.grad()
    assert "before the write" in str(caught.value)
    np.testing.assert_array_equal(s.grad.to_numpy(), 6.0)


def test_seen_and_unseen_writes_in_turn() -> None:
    w, s, loss = memory_of("field"), memory_of("field"), memory_of("field", ())
    view = view_of(w)
    with sg.ad.Tape(loss):
        for k in range(4):
            sg.sync()
            view[0] = 10.0 + k
            w[1] = 20.0 + k
            view[2] = 30.0 + k
            SQUARES["field"](w, w, 0.5)
            sg.sync()
            view[3] = 40.0 + k
            w.from_numpy(w.to_numpy() + np.float32(1))
            WEIGHTED["field"](w, s, loss)
    expected = np.zeros(N)
    w_now = np.zeros(N, np.float32)
    for k in range(4):
        w_now[[0, 1, 2]] = 10.0 + k, 20.0 + k, 30.0 + k
        w_now = np.float32(0.5) * w_now * w_now
        w_now[3] = 40.0 + k
        w_now += 1
        expected += w_now
    np.testing.assert_allclose(s.grad.to_numpy(), expected, rtol=1e-6)
    np.testing.assert_array_equal(w.to_numpy(), w_now)


@pytest.mark.parametrize("handed", ["before", "between"])
def test_functions_that_are_not_recorded(handed: str) -> None:
    w, s, loss = memory_of("field", needs_grad=False), memory_of("field"), memory_of("field", ())
    w.fill(2.0)
    view = view_of(w) if handed == "before" else None

    @sg.ad.no_grad
    def doubled() -> None:
        SQUARES["field"](w, w, 1.0)
        sg.sync()
        view_of(w)[0] = 9.0

    @sg.ad.grad_replaced
    def custom() -> None:
        WEIGHTED["field"](w, s, loss)

    @sg.ad.grad_for(custom)
    def custom_gradient() -> None:
        s.grad.from_numpy(s.grad.to_numpy() + 100 * w.to_numpy())

    with sg.ad.Tape(loss):
        WEIGHTED["field"](w, s, loss)
        doubled()
        WEIGHTED["field"](w, s, loss)
        custom()
        sg.sync()
        (view_of(w) if view is None else view)[:] = 77.0
        custom()
    np.testing.assert_allclose(s.grad.to_numpy(), 2 + 101 * np.array([9, 4, 4, 4, 4]) + 7700)
    np.testing.assert_array_equal(w.to_numpy(), 77.0)


@pytest.mark.parametrize("handed", ["before", "between"])
def test_forward_mode(handed: str) -> None:
    def field(shape: Any = N) -> Any:
        return sg.field(sg.f32, shape=shape, needs_dual=True)

    x, y, z = field(), field(), field()
    x.fill(2.0)
    view = view_of(y) if handed == "before" else None
    with sg.ad.FwdMode(loss=z, param=x, seed=np.ones(N)):
        SQUARES["field"](x, y, 1.0)
        sg.sync()
        (view_of(y) if view is None else view)[1:3] = 5.0
        SQUARES["field"](y, z, 1.0)
    np.testing.assert_array_equal(z.dual.to_numpy(), [32, 0, 0, 32, 32])


@pytest.mark.parametrize("handed", ["before", "between"])
def test_second_derivatives(handed: str) -> None:
    x, y, w, loss = memory_of("field"), memory_of("field"), memory_of("field", needs_grad=False), memory_of("field", ())
    x.fill(2.0)
    w.fill(1.0)
    views = [view_of(m) for m in (y, w)] if handed == "before" else None

    def cut() -> None:
        loss[None] = 0.0
        SQUARES["field"](x, y, 1.0)
        sg.sync()
        (views[0] if views else view_of(y))[1:3] = 5.0
        weighted_field(w, y, loss)

    np.testing.assert_array_equal(sg.ad.hvp(cut, loss, x, np.ones(N)), [2, 0, 0, 2, 2])
    np.testing.assert_array_equal(x.grad.to_numpy(), [4, 0, 0, 4, 4])

    def overwritten() -> None:
        loss[None] = 0.0
        weighted_field(w, x, loss)
        sg.sync()
        (views[1] if views else view_of(w))[:] = 100.0

    with pytest.raises(sg.SpirogradRuntimeError, match=r"the host overwrites `.*`, which the gradient of an earlier kernel"):
        sg.ad.hvp(overwritten, loss, x, np.ones(N))


def test_handed_out_by_a_gradient_function() -> None:
    """While a tape is replayed, memory holds what it held before: that is not what it holds afterwards."""
    w, s, loss = memory_of("field"), memory_of("field"), memory_of("field", ())

    @sg.ad.grad_replaced
    def nothing() -> None:
        pass

    @sg.ad.grad_for(nothing)
    def look() -> None:
        np.testing.assert_array_equal(view_of(w), 2.0)

    w.fill(2.0)
    with sg.ad.Tape() as tape:
        WEIGHTED["field"](w, s, loss)
        nothing()
        w.fill(3.0)
        WEIGHTED["field"](w, s, loss)
    for k in range(3):
        s.grad.fill(0.0)
        loss.grad.fill(1.0)
        tape.grad()
        np.testing.assert_array_equal(s.grad.to_numpy(), 5.0)
        np.testing.assert_array_equal(w.to_numpy(), 3.0 if k == 0 else 40.0 + k)
        view_of(w)[:] = 41.0 + k


@pytest.mark.parametrize("how", ["in place", "data", "NumPy"])
def test_tensors_between_launches(how: str) -> None:
    """Torch changes a tensor that a kernel computed: the gradient ends at the elements that changed."""
    torch = needs.package("torch")
    x, y = torch.full((N,), 2.0, requires_grad=True), torch.zeros(N, requires_grad=True)
    loss = memory_of("array", ())

    def change(value: float) -> None:
        if how == "in place":
            with torch.no_grad():
                y[1:3] = value
        elif how == "data":
            y.data[1:3] = value
        else:
            y.detach().numpy()[1:3] = value

    with sg.ad.Tape(loss):
        squares_array(x, y, 1.0)
        change(7.0)
        weighted_array(y, y, loss)
        squares_array(x, y, 1.0)
        weighted_array(x, y, loss)
        change(1.0)
    # y**2 where torch did not replace y, and x**3 where it did so before the loss read it
    first, second = 4 * 2.0**3, 3 * 2.0**2
    np.testing.assert_allclose(x.grad.numpy(), [first + second, second, second, first + second, first + second])
    np.testing.assert_allclose(y.detach().numpy(), [4, 1, 1, 4, 4])


@KINDS
@pytest.mark.parametrize("where", ["before", "inside"])
def test_writes_around_functions_that_are_not_recorded(kind: str, where: str) -> None:
    """What the host writes before the function ends gradients; what happens inside of it does not, as nothing there does."""
    results = []
    for seen in (True, False):
        x, y, loss = memory_of(kind), memory_of(kind), memory_of(kind, ())
        x.fill(2.0)

        def replace(x: Any = x, y: Any = y, seen: bool = seen) -> None:
            sg.sync()
            if seen:
                y[1] = 7.0
            else:
                view_of(y)[1] = 7.0

        @sg.ad.no_grad
        def aside(x: Any = x, y: Any = y, replace: Any = replace) -> None:
            SQUARES[kind](y, memory_of(kind), 1.0)
            if where == "inside":
                replace()

        view_of(y)
        with sg.ad.Tape(loss):
            SQUARES[kind](x, y, 1.0)
            if where == "before":
                replace()
            aside()
            WEIGHTED[kind](y, y, loss)
        results.append(x.grad.to_numpy())
    np.testing.assert_array_equal(*results)
    assert results[0][0] != 0


def test_a_tape_goes_with_its_last_reference() -> None:
    """What it saved does not wait for the garbage collector."""
    w, s, loss = memory_of("field"), memory_of("field"), memory_of("field", ())
    with sg.ad.Tape() as tape:
        WEIGHTED["field"](w, s, loss)
    gone = weakref.ref(tape)
    gc.disable()
    try:
        del tape
        assert gone() is None
    finally:
        gc.enable()
