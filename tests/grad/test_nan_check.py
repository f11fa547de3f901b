"""`Tape(nan_check=True)` names the first operation of a program whose value or derivative is not finite."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]
N = 5
START = np.linspace(0.0, 1.0, N, dtype=np.float32)


@pytest.fixture
def k(session: Any) -> SimpleNamespace:
    """Steps of a program over `x`, `y` and `loss`."""
    x, y, loss = (sg.field(sg.f32, shape, needs_grad=True) for shape in (N, N, ()))

    @sg.kernel
    def step(c: sg.f32):
        for i in x:
            v = x[i]
            for _ in range(3):
                v = v * 0.5
            x[i] = sg.sqrt(v + c)

    @sg.kernel
    def logs(c: sg.f32):
        for i in x:
            for j in range(2):
                y[i] += sg.log(x[i] - c * float(j))

    @sg.kernel
    def grow(c: sg.f32):
        for i in x:
            y[i] += c * x[i]

    @sg.kernel
    def measure(c: sg.f32):
        for i in x:
            loss[None] += x[i] + c * y[i]

    return SimpleNamespace(**{name: value for name, value in locals().items() if name != "session"})


def run(k: SimpleNamespace, program: Any, **options: Any) -> str:
    """Return the message of a program, "" if it has none."""
    k.x.from_numpy(START)
    k.y.fill(0.0)
    try:
        with sg.ad.Tape(k.loss, nan_check=True, **options):
            program()
    except sg.SpirogradAssertionError as error:
        return str(error)
    return ""


def test_the_first_operation_is_named(k: SimpleNamespace) -> None:
    derivative = run(k, lambda: (k.grow(1.0), k.grow(2.0), k.step(0.0), k.step(0.5), k.measure(1.0)))
    assert "launch 3 of 5 of the tape, of kernel `step`: the derivative of `sqrt` is not finite here, at index (" in derivative
    assert "x[i] = sg.sqrt(v + c)" in derivative and "its operand is 0.0" in derivative
    value = run(k, lambda: (k.step(0.5), k.logs(0.0), k.logs(0.75), k.grow(1.0), k.measure(1.0)))
    assert "launch 3 of 5 of the tape, of kernel `logs`: the value of `log` is not finite here, at index (0, 1)" in value
    assert "test_nan_check.py:" in value and "it is nan, its operand is -0.04" in value


def test_an_overflow_is_found(k: SimpleNamespace) -> None:
    message = run(k, lambda: (k.x.fill(1.0), k.grow(3e38), k.grow(3e38), k.measure(1.0)))
    assert "launch 2 of 3" in message and "`grow`" in message and "inf" in message and "y[i] += c * x[i]" in message


def test_a_constant_of_python(k: SimpleNamespace) -> None:
    message = run(k, lambda: (k.y.fill(float("nan")), k.measure(1.0)))
    assert "the loss is nan: no launch of the tape made that of finite numbers" in message


def test_numbers_that_do_not_matter_are_no_error(k: SimpleNamespace) -> None:
    assert run(k, lambda: (k.logs(2.0), k.measure(0.0 + 1e-30), k.y.fill(0.0))) != ""  # times a small number: they do
    assert run(k, lambda: (k.logs(2.0), k.y.fill(0.0), k.measure(1.0))) == ""


def test_gradients_are_those_of_other_tapes(k: SimpleNamespace) -> None:
    def program() -> None:
        k.step(0.5)
        k.y.from_numpy(START)
        k.step(0.5)
        k.grow(2.0)
        k.measure(1.0)

    assert run(k, program) == ""
    checked = k.x.grad.to_numpy()
    k.x.from_numpy(START)
    with sg.ad.Tape(k.loss):
        program()
    assert (checked == k.x.grad.to_numpy()).all() and checked.any()


def test_tapes_that_repeat_a_sequence(k: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SG_CHECK_TAPES", "0")  # checked tapes follow none
    for shift in (0.5, 0.5, 0.5, 0.5, 0.5):
        assert run(k, lambda c=shift: (k.step(c), k.grow(1.0), k.step(c), k.measure(1.0))) == ""
    message = run(k, lambda: (k.step(-0.05), k.grow(1.0), k.step(0.5), k.measure(1.0)))
    assert "launch 1 of 4 of the tape, of kernel `step`: the value of `sqrt`" in message and "index (0)" in message
    message = run(k, lambda: (k.step(0.0), k.grow(1.0), k.step(0.5), k.measure(1.0)))
    assert "launch 1 of 4 of the tape, of kernel `step`: the derivative of `sqrt`" in message
    assert run(k, lambda: (k.step(0.5), k.grow(1.0), k.step(0.5), k.measure(1.0))) == ""


def test_a_tape_without_a_loss(k: SimpleNamespace) -> None:
    k.x.from_numpy(START)
    with sg.ad.Tape(nan_check=True) as tape:
        k.step(0.0)
        k.step(0.5)
    k.x.grad.fill(0.0)
    tape.grad()
    k.x.grad.fill(1.0)
    with pytest.raises(sg.SpirogradAssertionError, match=r"launch 1 of 2.*the derivative of `sqrt`"):
        tape.grad()


def test_what_cannot_be_searched_is_refused(k: SimpleNamespace) -> None:
    @sg.kernel
    def take(u: sg.types.NDArray):
        for i in k.x:
            k.loss[None] += u[i] * k.x[i]

    with pytest.raises(sg.SpirogradUnsupportedError, match=r"nan_check=True\)` runs launches again, and kernel `take` takes"):
        run(k, lambda: take(START))
    with pytest.raises(ValueError, match="`nan_check` of a tape keeps"):
        sg.ad.Tape(k.loss, nan_check=True, checkpoints=3)
