"""Tensors that require a gradient, given to kernels of which torch does not know: a warning with the line of the call."""

from typing import Any

import numpy as np
import pytest

import spirograd as sg
from tests import needs

torch = needs.package("torch")
ARRAY = sg.types.ndarray(sg.f32, 1)


@sg.kernel
def square(a: ARRAY, y: ARRAY):
    for i in a:
        y[i] = a[i] ** 2


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "requires a gradient" in record.getMessage()]


def test_a_launch_is_reported_once_with_its_line(session: Any, caplog: pytest.LogCaptureFixture) -> None:
    a = torch.ones(4, requires_grad=True)
    for _ in range(3):
        square(a, torch.zeros(4))
    (text,) = _warnings(caplog)
    assert "`a`" in text and "torch_function" in text and "square(a, torch.zeros(4))" in text


def test_a_tensor_that_torch_computed(session: Any, caplog: pytest.LogCaptureFixture) -> None:
    a = 2 * torch.ones(4, requires_grad=True)
    square(a, torch.zeros(4, requires_grad=True))
    assert len(_warnings(caplog)) == 1


def test_results_in_python_and_fields(session: Any, caplog: pytest.LogCaptureFixture) -> None:
    @sg.kernel
    def total(a: ARRAY) -> sg.f32:
        s = 0.0
        for i in a:
            s += a[i]
        return s

    x = sg.field(sg.f32, shape=4)

    @sg.kernel
    def copied(a: ARRAY):
        for i in a:
            x[i] = a[i]

    a = torch.ones(4, requires_grad=True)
    total(a)
    copied(a)
    assert len(_warnings(caplog)) == 2


def test_what_loses_nothing_is_silent(session: Any, caplog: pytest.LogCaptureFixture) -> None:
    a, y = torch.ones(4, requires_grad=True), torch.zeros(4)
    with torch.no_grad():
        square(a, y)
    square(a.detach(), y)
    square(y, torch.zeros(4))
    with torch.inference_mode():
        square(torch.ones(4), torch.zeros(4))
    z = sg.ad.torch_function(square, {"y": "a"})(a)
    z.sum().backward()
    assert np.allclose(a.grad.numpy(), 2)
    assert not _warnings(caplog)


def test_gradients_by_kernel_grad_are_silent(session: Any, caplog: pytest.LogCaptureFixture) -> None:
    a, y = torch.ones(4, requires_grad=True), torch.zeros(4, requires_grad=True)
    square(a, y)
    y.grad = torch.ones(4)
    square.grad(a, y)
    assert np.allclose(a.grad.numpy(), 2)
    loss = torch.zeros(1, requires_grad=True)

    @sg.kernel
    def total(y: ARRAY, loss: ARRAY):
        for i in y:
            loss[0] += y[i]

    b = torch.ones(4, requires_grad=True)
    with sg.ad.Tape(loss):
        square(b, y)
        total(y, loss)
    assert np.allclose(b.grad.numpy(), 2)
    assert not _warnings(caplog)
