"""`sg.ad.Tape`: chains of kernels against torch, what is refused, where chains break."""

from __future__ import annotations

import logging
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

torch = needs.package("torch")

N = 6
START = np.linspace(0.2, 1.4, N)


def torch_gradient(function: Any, start: Any = START) -> np.ndarray:
    x = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    function(x).sum().backward()
    return x.grad.numpy()


def close(found: Any, wanted: Any, rtol: float = 3e-5) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=rtol, atol=1e-6)


def fields(*shapes: Any) -> list[Any]:
    return [sg.field(sg.f32, shape, needs_grad=True) for shape in shapes]


@sg.kernel
def sine(a: sg.types.ndarray(), b: sg.types.ndarray(), k: sg.f32):
    for i in a:
        b[i] = sg.sin(k * a[i]) + a[i]


@sg.kernel
def added(a: sg.types.ndarray(), loss: sg.types.ndarray()):
    for i in a:
        loss[None] += a[i] * a[i]


def test_chain_of_fields(session: Any) -> None:
    x, y, loss = fields(N, N, ())

    @sg.kernel
    def first(a: sg.f32):
        for i in x:
            y[i] = sg.exp(a * x[i])

    @sg.kernel
    def second():
        for i in y:
            loss[None] += y[i] * x[i]

    x.from_numpy(START)
    for _ in range(2):  # gradients are cleared
        loss[None] = 0.0
        with sg.ad.Tape(loss):
            first(0.5)
            second()
        close(x.grad.to_numpy(), torch_gradient(lambda x: torch.exp(0.5 * x) * x))
        assert loss[None] == pytest.approx(float((np.exp(0.5 * START) * START).sum()), rel=1e-5)
        assert loss.grad[None] == 1.0


def test_chain_of_ndarrays(session: Any) -> None:
    x, y, z = (sg.ndarray(sg.f32, N, needs_grad=True) for _ in range(3))
    loss = sg.ndarray(sg.f32, (), needs_grad=True)
    x.from_numpy(START)
    with sg.ad.Tape(loss=loss):
        sine(x, y, 2.0)
        sine(y, z, k=3.0)
        added(z, loss)

    def chain(x: Any) -> Any:
        y = torch.sin(2 * x) + x
        return (torch.sin(3 * y) + y) ** 2

    close(x.grad.to_numpy(), torch_gradient(chain))


def test_chain_of_torch_tensors(session: Any) -> None:
    x = torch.tensor(START, dtype=torch.float32, requires_grad=True)
    y = torch.zeros(N, requires_grad=True)
    loss = sg.ndarray(sg.f32, (), needs_grad=True)
    with sg.ad.Tape(loss) as tape:
        sine(x, y, 2.0)
        added(y, loss)
        with torch.no_grad():
            x.zero_()  # what gradients need of it was copied at the launch
            y.zero_()
    close(x.grad, torch_gradient(lambda x: (torch.sin(2 * x) + x) ** 2))
    assert tape.memory_report().total == 8 * N


def test_methods(session: Any) -> None:
    @sg.data_oriented
    class Model:
        def __init__(self) -> None:
            self.x, self.y, self.loss = fields(N, N, ())

        @sg.kernel
        def square(self):
            for i in self.x:
                self.y[i] = self.x[i] ** 2

        @sg.kernel
        def total(self):
            for i in self.y:
                self.loss[None] += self.y[i] ** 2

    model = Model()
    model.x.from_numpy(START)
    with sg.ad.Tape(model.loss):
        model.square()
        model.total()
    close(model.x.grad.to_numpy(), 4 * START**3)


def test_without_loss(session: Any) -> None:
    x, y = fields(N, N)
    x.from_numpy(START)

    @sg.kernel
    def cube():
        for i in x:
            y[i] = x[i] ** 3

    with sg.ad.Tape() as tape:
        cube()
    assert not x.grad.to_numpy().any()
    seed = np.arange(N, dtype=np.float32)
    y.grad.from_numpy(seed)
    tape.grad()
    close(x.grad.to_numpy(), 3 * START**2 * seed)
    y.grad.from_numpy(seed)  # it was taken: the kernel overwrites y
    tape.grad()
    close(x.grad.to_numpy(), 6 * START**2 * seed)


def test_gradients_are_kept(session: Any) -> None:
    x, loss = fields(N, 1)
    x.from_numpy(START)
    x.grad.fill(10.0)

    @sg.kernel
    def total():
        for i in x:
            loss[0] += 3.0 * x[i]

    with sg.ad.Tape(loss, clear_gradients=False):
        total()
    close(x.grad.to_numpy(), np.full(N, 13.0))


def test_nothing_after_an_exception(session: Any) -> None:
    x, loss = fields(N, ())

    @sg.kernel
    def total():
        for i in x:
            loss[None] += x[i]

    with pytest.raises(ZeroDivisionError), sg.ad.Tape(loss):
        total()
        _ = 1 / 0
    assert not x.grad.to_numpy().any()
    with sg.ad.Tape(loss):  # the next one works
        total()
    assert x.grad.to_numpy().all()


def test_random_numbers_are_replayed(session: Any) -> None:
    x, y, loss = fields(N, (2, N), ())
    x.fill(1.0)

    @sg.kernel
    def noisy(t: sg.i32):
        for i in x:
            y[t, i] = x[i] * sg.random()

    @sg.kernel
    def total():
        for i in x:
            loss[None] += y[0, i] + 10 * y[1, i]

    with sg.ad.Tape(loss):
        noisy(0)
        noisy(1)
        total()
    noise = y.to_numpy()
    assert noise[0].std() > 0
    assert (noise[0] != noise[1]).all()
    close(x.grad.to_numpy(), noise[0] + 10 * noise[1])


def test_serial_loops_in_a_chain(session: Any) -> None:
    x, y, loss = fields(N, N, ())
    x.from_numpy(START)

    @sg.kernel
    def powers():
        for i in x:
            p = x[i]
            for _ in range(4):
                p = sg.sin(p) * x[i] + p
            y[i] = p

    @sg.kernel
    def total():
        for i in y:
            loss[None] += y[i] ** 2

    with sg.ad.Tape(loss):
        powers()
        total()

    def chain(x: Any) -> Any:
        p = x
        for _ in range(4):
            p = torch.sin(p) * x + p
        return p**2

    close(x.grad.to_numpy(), torch_gradient(chain), 1e-4)


def test_logs_of_scans_in_place(session: Any) -> None:
    x, loss = fields(N, ())
    x.from_numpy(START)

    @sg.kernel
    def scan():
        for _ in range(1):
            for i in range(1, N):
                x[i] = x[i] * x[i - 1] + x[i]

    @sg.kernel
    def total():
        for i in x:
            loss[None] += x[i] ** 2

    with sg.ad.Tape(loss):
        scan()
        total()

    def chain(x: Any) -> Any:
        values = [x[0]]
        for i in range(1, N):
            values.append(x[i] * values[-1] + x[i])
        return torch.stack(values) ** 2

    close(x.grad.to_numpy(), torch_gradient(chain), 1e-4)


# --- what is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.archs("interpreter")
def test_losses_that_are_none(session: Any) -> None:
    for loss, message in (
        (sg.field(sg.f32, 3, needs_grad=True), "one float, .* 3 elements"),
        (sg.field(sg.f32, ()), "has no gradient"),
        (sg.ndarray(sg.i32, ()), "has no gradient"),
        (sg.Vector.field(2, sg.f32, (), needs_grad=True), "one float, .* 2 elements"),
    ):
        with pytest.raises(sg.SpirogradRuntimeError, match=message):
            sg.ad.Tape(loss)
    with pytest.raises(sg.SpirogradTypeError, match="a field, an array or a torch tensor of one float"):
        sg.ad.Tape(1.0)


@pytest.mark.archs("interpreter")
def test_nested_tapes(session: Any) -> None:
    with sg.ad.Tape(), pytest.raises(sg.SpirogradRuntimeError, match="inside of another"), sg.ad.Tape():
        pass
    tape = sg.ad.Tape(sg.ndarray(sg.f32, (), needs_grad=True))
    with tape:
        pass
    with pytest.raises(sg.SpirogradRuntimeError, match="records once"), tape:
        pass
    with pytest.raises(sg.SpirogradRuntimeError, match="released its launches"):
        tape.grad()


@pytest.mark.archs("interpreter")
def test_returned_values_are_refused(session: Any) -> None:
    x = sg.ndarray(sg.f32, N, needs_grad=True)

    @sg.kernel
    def head(x: sg.types.ndarray()) -> sg.f32:
        return x[0] * 2.0

    @sg.kernel
    def count(x: sg.types.ndarray()) -> sg.i32:
        return x.shape[0]

    with sg.ad.Tape():
        assert count(x) == N
        with pytest.raises(sg.SpirogradCompilationError, match="returns a value that depends on memory with gradients"):
            head(x)


@pytest.mark.parametrize("clear", [True, False])
@pytest.mark.parametrize("make", [sg.field, sg.ndarray])
def test_the_loss_is_zero_when_a_tape_is_entered(session: Any, make: Any, clear: bool) -> None:
    """As in the family, whether or not gradients are cleared: what is accumulated does not grow from one tape to the next."""
    x, loss = make(sg.f32, shape=4, needs_grad=True), make(sg.f32, shape=(), needs_grad=True)
    x.fill(1.0)

    @sg.kernel
    def squares_of_field(x: sg.template(), loss: sg.template()):
        for i in x:
            loss[None] += x[i] * x[i]

    run = squares_of_field if make is sg.field else added
    for times in range(1, 4):
        tape = sg.ad.Tape(loss, clear_gradients=clear)
        assert loss[None] == (4.0 if times > 1 else 0.0)
        with tape:
            assert loss[None] == 0.0
            run(x, loss)
        assert loss[None] == 4.0
        close(x.grad.to_numpy(), 2.0 if clear else 2.0 * times)
    with sg.ad.Tape() as tape:
        run(x, loss)
    assert loss[None] == 8.0


def test_the_loss_of_a_tape_in_a_gradient_function(session: Any) -> None:
    """It is zero there, and put back as all that a gradient function writes."""
    x, y, part, loss = fields((), (), (), ())

    @sg.kernel
    def square():
        part[None] += x[None] ** 2

    @sg.kernel
    def total():
        loss[None] += part[None] + y[None]

    @sg.ad.grad_replaced
    def squared() -> None:
        square()

    @sg.ad.grad_for(squared)
    def squared_gradient() -> None:
        with sg.ad.Tape(part, clear_gradients=False):
            square()
            assert part[None] == 9.0

    x[None] = 3.0
    with sg.ad.Tape(loss):
        squared()
        squared()
        total()
    assert part[None] == 18.0
    assert x.grad[None] == 12.0


@pytest.mark.archs("interpreter")
def test_losses_without_gradients(session: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What is said is why."""
    p, loss = fields((), ())

    @sg.kernel
    def add(value: sg.f32):
        loss[None] += value

    @sg.kernel
    def store(value: sg.f32):
        loss[None] = value

    @sg.kernel
    def read():
        loss[None] += p[None]

    @sg.ad.no_grad
    def aside() -> None:
        read()

    constant = "what kernel `{}` writes to the loss depends on no memory that has a gradient"
    no_writer = "no kernel that the tape recorded writes the loss"
    cases: list[tuple[Any, str]] = [
        (lambda: None, no_writer),
        (lambda: loss.fill(2.0), no_writer),
        (lambda: add(1.0), constant.format("add")),
        (lambda: store(1.0), constant.format("store")),
        (lambda: add(p[None]), ""),  # numbers that Python reads have gradients
        (aside, "only functions that are not differentiated write the loss"),
        (read, ""),
        (lambda: (add(p[None]), read(), add(1.0), store(1.0)), ""),
    ]
    for run, wanted in cases:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "spirograd"), sg.ad.Tape(loss):
            run()
        assert [record.message.split("\n")[0] for record in caplog.records] == ([f"all gradients are zero: {wanted}"] if wanted else [])
        assert ("has no gradient: have the kernel read the field" in caplog.text) == ("depends on no memory" in wanted)


@pytest.mark.archs("interpreter")
def test_loss_that_nobody_writes(session: Any, caplog: pytest.LogCaptureFixture) -> None:
    loss = sg.ndarray(sg.f32, (), needs_grad=True)
    with caplog.at_level(logging.WARNING, "spirograd"), sg.ad.Tape(loss):
        pass
    assert "no kernel that the tape recorded writes the loss" in caplog.text


@pytest.mark.archs("interpreter")
def test_chain_with_inactive_memory(session: Any) -> None:
    x, z = (sg.ndarray(sg.f32, N, needs_grad=True) for _ in range(2))
    y = sg.ndarray(sg.f32, N)
    lines = sine.function.__code__.co_firstlineno + 3
    with sg.ad.Tape():
        sine(x, y, 1.0)
        with pytest.raises(sg.SpirogradCompilationError, match="gradients end at `a`, which has none: kernel `sine` reads it") as caught:
            sine(y, z, 1.0)
        assert caught.value.message.endswith(f"({__file__}:{lines})")
        assert caught.value.loc.line == lines
        assert "needs_grad=True" in caught.value.hint
    with sg.ad.Tape():
        sine(x, y, 1.0)
        y.fill(1.0)  # now it depends on nothing
        sine(y, z, 1.0)


@pytest.mark.archs("interpreter")
def test_copies_by_the_host(session: Any) -> None:
    x, y = (sg.ndarray(sg.f32, N, needs_grad=True) for _ in range(2))
    z = sg.ndarray(sg.f32, N)
    w = sg.ndarray(sg.f32, N, needs_grad=True)
    x.from_numpy(START.astype(np.float32))
    with sg.ad.Tape() as tape:
        y.fill(2.0)
        y.copy_from(x)
        sine(y, w, 1.0)
        y.copy_from(z)  # numbers
    w.grad.fill(1.0)
    x.grad.fill(0.5)
    tape.grad()
    close(x.grad.to_numpy(), 0.5 + np.cos(START) + 1.0)
    assert not y.grad.to_numpy().any()
    with sg.ad.Tape(clear_gradients=False) as tape:
        x.copy_from(x)
    tape.grad()
    close(x.grad.to_numpy(), 0.5 + np.cos(START) + 1.0)
    for first, second in ((x, z), (w, z)):
        with sg.ad.Tape(clear_gradients=False):
            sine(x, w, 1.0)
            z.copy_from(first)
            y.copy_from(second)
            with pytest.raises(sg.SpirogradCompilationError, match=r"gradients end at `a`.*gave it values"):
                sine(second, w, 1.0)


def test_kernels_without_floats(session: Any) -> None:
    x, loss = fields(N, ())
    n = sg.field(sg.i32, N)

    @sg.kernel
    def order():
        for i in n:
            n[i] = N - 1 - i

    @sg.kernel
    def total():
        for i in n:
            loss[None] += x[n[i]] * i

    with sg.ad.Tape(loss):
        order()
        total()
    close(x.grad.to_numpy(), np.arange(N)[::-1])
