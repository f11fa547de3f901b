"""Functions with gradients of the user's own, and without."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

N = 5
START = np.linspace(0.5, 1.5, N).astype(np.float32)


class Memory:
    def __init__(self) -> None:
        self.x, self.y = (sg.field(sg.f32, N, needs_grad=True) for _ in range(2))
        self.loss = sg.field(sg.f32, (), needs_grad=True)
        self.x.from_numpy(START)


@pytest.fixture
def memory(session: Any) -> Memory:
    return Memory()


@sg.kernel
def scale(x: sg.template(), y: sg.template(), a: sg.f32):
    for i in x:
        y[i] = x[i] * a


@sg.kernel
def scale_gradient(x: sg.template(), y: sg.template(), a: sg.f32):
    for i in x:
        x.grad[i] += 100.0 * a * y.grad[i]


@sg.kernel
def total(y: sg.template(), loss: sg.template()):
    for i in y:
        loss[None] += y[i] ** 2


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found.to_numpy(), wanted, rtol=3e-5)


def test_replaced(memory: Memory) -> None:
    x, y, loss = memory.x, memory.y, memory.loss
    calls = []

    @sg.ad.grad_replaced
    def run(a: float, *, twice: bool = False) -> str:
        """Scales."""
        scale(x, y, a)
        return "done"

    @sg.ad.grad_for(run)
    def run_gradient(a: float, *, twice: bool = False) -> None:
        calls.append(twice)
        scale_gradient(x, y, a)

    assert run.__doc__ == "Scales."
    assert run(2.0) == "done"  # without a tape, the function itself
    with sg.ad.Tape(loss):
        assert run(3.0, twice=True) == "done"
        total(y, loss)
    assert calls == [True]
    close(x.grad, 100.0 * 3.0 * 2 * y.to_numpy())
    close(y, 3.0 * START)
    run.grad(1.0)  # by itself
    assert calls == [True, False]


def test_replaced_methods(memory: Memory) -> None:
    @sg.data_oriented
    class Model:
        def __init__(self, a: float) -> None:
            self.a = a

        @sg.ad.grad_replaced
        def run(self) -> None:
            scale(memory.x, memory.y, self.a)

        @sg.ad.grad_for(run)
        def run_gradient(self) -> None:
            scale_gradient(memory.x, memory.y, self.a)

    with sg.ad.Tape(memory.loss):
        Model(2.0).run()
        total(memory.y, memory.loss)
    close(memory.x.grad, 200.0 * 2 * 2 * START)


def test_replaced_function_that_writes_the_loss(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    @sg.ad.grad_replaced
    def run() -> None:
        total(memory.x, memory.loss)

    @sg.ad.grad_for(run)
    def run_gradient() -> None:
        memory.x.grad.fill(7.0)

    with caplog.at_level("WARNING", "spirograd"), sg.ad.Tape(memory.loss):
        run()
    close(memory.x.grad, 7.0)
    assert not caplog.text


def test_no_grad(memory: Memory) -> None:
    @sg.ad.no_grad
    def run() -> int:
        scale(memory.x, memory.y, 2.0)
        return 7

    with sg.ad.Tape(memory.loss):
        assert run() == 7
        total(memory.y, memory.loss)
    assert not memory.x.grad.to_numpy().any()
    close(memory.y.grad, 4 * START)


def test_inner_functions_belong_to_the_outer_one(memory: Memory) -> None:
    order = []

    @sg.ad.grad_replaced
    def inner() -> None:
        scale(memory.x, memory.y, 2.0)

    @sg.ad.grad_for(inner)
    def inner_gradient() -> None:
        order.append("inner")

    @sg.ad.grad_replaced
    def outer() -> None:
        inner()

    @sg.ad.grad_for(outer)
    def outer_gradient() -> None:
        order.append("outer")

    with sg.ad.Tape():
        outer()
    with sg.ad.Tape(memory.loss):
        inner()
        outer()
    assert order == ["outer", "inner"]


@pytest.mark.archs("interpreter")
def test_mistakes(memory: Memory) -> None:
    @sg.ad.grad_replaced
    def alone() -> None:
        pass

    alone()
    with sg.ad.Tape(), pytest.raises(sg.SpirogradRuntimeError, match="has no gradient: write one and decorate it with `grad_for"):
        alone()
    for wrong, hint in ((scale, "above `@sg.kernel`"), (sg.ad.no_grad(lambda: None), "above it"), (None, "above it")):
        with pytest.raises(sg.SpirogradRuntimeTypeError, match=f"decorated with `grad_replaced`(.|\n)*{hint}"):
            sg.ad.grad_for(wrong)

    @sg.func
    def inside(a: sg.f32):
        return a

    for decorator in (sg.ad.no_grad, sg.ad.grad_replaced):
        with pytest.raises(sg.SpirogradTypeError, match="`inside` is a function of kernels") as caught:
            decorator(inside)
        assert "stop_grad" in caught.value.hint


def test_decorated_kernels(memory: Memory) -> None:
    x, y, loss = memory.x, memory.y, memory.loss

    @sg.ad.grad_replaced
    @sg.kernel
    def product():
        for i in x:
            y[i] = x[i] ** 2

    @sg.ad.grad_for(product)
    @sg.kernel
    def gradient():
        for i in x:
            x.grad[i] += 10.0 * y.grad[i]

    @sg.ad.no_grad
    @sg.kernel
    def unseen():
        for i in x:
            loss[None] += x[i] ** 3

    @sg.kernel
    def total():
        for i in x:
            loss[None] += y[i]

    with sg.ad.Tape(loss):
        product()
        unseen()
        total()
    assert (x.grad.to_numpy() == 10.0).all()


def test_writes_of_unrecorded_functions_are_saved(memory: Memory) -> None:
    x, y, loss = memory.x, memory.y, memory.loss

    @sg.kernel
    def clear():
        for i in x:
            x[i] = 0.0

    @sg.kernel
    def square():
        for i in x:
            y[i] = x[i] ** 2

    with sg.ad.Tape(loss):
        square()
        sg.ad.no_grad(clear)()
        total(y, loss)
    close(x.grad, 4 * START**3)
    assert not x.to_numpy().any()


def test_gradients_find_memory_as_the_function_left_it(memory: Memory) -> None:
    """They may use it as scratch, too: it is put back."""
    x, loss = memory.x, memory.loss
    seen = []

    @sg.kernel
    def square():
        for i in x:
            x[i] = x[i] ** 2

    @sg.ad.grad_replaced
    def run() -> None:
        square()

    @sg.ad.grad_for(run)
    def run_gradient() -> None:
        seen.append(x.to_numpy())
        x.fill(-1.0)
        scale(x, x, 3.0)
        x.grad.fill(2.0)

    with sg.ad.Tape(loss):
        square()
        run()
        square()
        total(x, loss)
    np.testing.assert_allclose(seen[0], START**4, rtol=1e-5)
    close(x.grad, 2.0 * 2 * START)
    close(x, START**8)


@sg.kernel
def advance(x: sg.template(), t: sg.i32):
    for i in range(N):
        x[t + 1, i] = sg.sin(x[t, i]) * 1.5


def test_checkpoints(session: Any) -> None:
    """Steps in segments: memory for the states of one segment, and for the first state of each. A gradient function computes the states of
    its segment again, on a tape of its own."""
    torch = needs.package("torch")
    steps, segments = 3, 4
    x = sg.field(sg.f32, (steps + 1, N), needs_grad=True, name="x")
    starts = sg.field(sg.f32, (segments, N), name="starts")
    loss = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def keep(s: sg.i32):
        for i in range(N):
            starts[s, i] = sg.stop_grad(x[0, i])

    @sg.kernel
    def bring_back(s: sg.i32):
        for i in range(N):
            x[0, i] = starts[s, i]

    @sg.kernel
    def wrap_around():
        for i in range(N):
            x[0, i] = x[steps, i]

    @sg.kernel
    def add():
        for i in range(N):
            loss[None] += x[0, i] ** 2

    def run() -> None:
        for t in range(steps):
            advance(x, t)

    @sg.ad.grad_replaced
    def segment(s: int) -> None:
        keep(s)
        run()

    @sg.ad.grad_for(segment, saves=False)
    def segment_gradient(s: int) -> None:
        bring_back(s)
        with sg.ad.Tape(clear_gradients=False) as tape:
            run()
        tape.grad()

    x.from_numpy(np.stack([START] * (steps + 1)))
    with sg.ad.Tape(loss) as tape:
        for s in range(segments):
            segment(s)
            wrap_around()
        add()
    reference = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    y = reference
    for _ in range(steps * segments):
        y = torch.sin(y) * 1.5
    (y**2).sum().backward()
    np.testing.assert_allclose(x.grad.to_numpy()[0], reference.grad.numpy(), rtol=1e-4)
    np.testing.assert_allclose(x.to_numpy()[0], y.detach().numpy(), rtol=1e-5)
    assert tape.memory_report().total == 0


@pytest.mark.archs("interpreter")
def test_tapes_in_gradient_functions_add(memory: Memory) -> None:
    @sg.ad.grad_replaced
    def run() -> None:
        pass

    @sg.ad.grad_for(run)
    def run_gradient() -> None:
        with pytest.raises(sg.SpirogradRuntimeError, match="would clear the gradients"), sg.ad.Tape():
            pass

    with sg.ad.Tape(memory.loss):
        run()


def test_clear_all_gradients(session: Any) -> None:
    x = sg.field(sg.f32, N, needs_grad=True)
    v = sg.Vector.field(2, sg.f32)
    m = sg.field(sg.f32)
    sg.root.dense(sg.i, N).place(v, m)
    sg.root.lazy_grad()
    a = sg.ndarray(sg.f32, N, needs_grad=True)
    gradients = [x.grad, v.grad, m.grad, a.grad]
    for gradient in gradients:
        gradient.fill(3.0)
    x.fill(2.0)
    sg.ad.clear_all_gradients()
    assert not any(gradient.to_numpy().any() for gradient in gradients)
    assert (x.to_numpy() == 2.0).all()
