"""Torch tensors that require gradients as arguments of kernels: their `grad`, a tape whose loss is one, functions of torch's own."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg
import spirograd.compat.quadrants as qd
from spirograd.transfers import _copy_into

torch = needs.package("torch")

N = 5


def leaf(*values: float, dtype: Any = None) -> Any:
    return torch.tensor(values or (0.5, 1.0, 1.5, 2.0, 2.5), dtype=dtype or torch.float32).requires_grad_()


@sg.kernel
def square(x: sg.types.ndarray(), y: sg.types.ndarray()):
    for i in x:
        y[i] = x[i] * x[i]


@sg.kernel
def weigh(y: sg.types.ndarray(), w: sg.types.ndarray(), loss: sg.types.ndarray()):
    for i in y:
        loss[0] += y[i] * w[i]


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, torch.as_tensor(wanted, dtype=found.dtype), rtol=1e-5, atol=1e-6)


def test_a_tensor_is_the_loss(session: Any) -> None:
    x, w, y, loss = leaf(), leaf(1, -2, 3, -4, 5).detach(), torch.zeros(N, requires_grad=True), torch.full((1,), 7.0, requires_grad=True)
    for count in (1, 2, 3):
        with sg.ad.Tape(loss):
            square(x, y)
            weigh(y, w, loss)
        value = (x.detach() ** 2 * w).sum()
        close(loss.detach(), value.reshape(1))  # set to zero on entry
        close(x.grad, 2 * x.detach() * w * count)  # accumulates, as torch users expect
        close(loss.grad, [1.0])
        assert not y.grad.any()
        assert w.grad is None


def test_gradient_descent_of_torch(session: Any) -> None:
    x, w, y, loss = leaf(), torch.ones(N), torch.zeros(N, requires_grad=True), torch.zeros(1, requires_grad=True)
    wanted = x.detach().clone()
    optimizer = torch.optim.SGD([x], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        with sg.ad.Tape(loss):
            square(x, y)
            weigh(y, w, loss)
        optimizer.step()
        wanted -= 0.2 * wanted
    close(x.detach(), wanted)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_shapes_of_losses(session: Any, shape: tuple[int, ...]) -> None:
    x, loss = leaf(dtype=torch.float64 if session.device.caps.float64 else None), torch.zeros(shape, requires_grad=True)

    @sg.kernel
    def total(x: sg.types.ndarray(), loss: sg.types.ndarray()):
        for i in x:
            for I in sg.grouped(loss):
                loss[I] += sg.cast(x[i] ** 3, sg.f32)

    with sg.ad.Tape(loss):
        total(x, loss)
    close(x.grad, 3 * x.detach() ** 2)


def test_gradients_are_there_after_the_kernel(session: Any) -> None:
    x, y = leaf(), torch.zeros(N, requires_grad=True)
    square(x, y)
    assert not x.grad.any() and not y.grad.any()
    for count in (1, 2):
        y.grad.fill_(1.0)
        square.grad(x, y)
        close(x.grad, 2 * x.detach() * count)


@pytest.mark.filterwarnings("error")  # torch warns of reading the gradient of a tensor that it computed
def test_gradients_of_tensors_that_torch_computed_are_there_after_the_kernel(session: Any) -> None:
    p = leaf()
    x, y = p * 2.0, torch.zeros(N) * p
    square(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        close(x.grad, np.zeros(N))
        x.grad.zero_()  # as programs of the family do
        close(y.grad, np.zeros(N))
    x.sum().backward()
    close(p.grad, np.full(N, 2.0))


def test_nothing_is_allocated_where_torch_records_nothing(session: Any) -> None:
    x, y = leaf(), torch.zeros(N)
    with torch.no_grad():
        square(x, y)
    square(x.detach(), y)
    assert x.grad is None and y.grad is None


def test_a_strided_tensor(session: Any) -> None:
    x, y, loss = torch.arange(10.0)[::2].requires_grad_(), torch.zeros(N, requires_grad=True), torch.zeros(1, requires_grad=True)
    with sg.ad.Tape(loss):
        square(x, y)
        weigh(y, torch.ones(N), loss)
    close(x.grad, 2 * x.detach())


def test_a_tensor_that_overlaps_itself(session: Any) -> None:
    for tensor in (torch.ones(4).as_strided((3,), (0,)), torch.ones(4).as_strided((3, 2), (1, 1))):
        x = torch.full(tensor.shape, 3.0)

        @sg.kernel
        def copy(x: sg.types.ndarray(), y: sg.types.ndarray()) -> None:
            for I in sg.grouped(x):
                y[I] = x[I]

        with pytest.raises(sg.SpirogradRuntimeTypeError, match=r"argument `y`: .* several elements of which are one place in memory"):
            copy(x, tensor)
        copy(tensor, x)
        assert (tensor == 1).all() and (x == 1).all()
        with pytest.raises(sg.SpirogradRuntimeTypeError, match="one place in memory"):
            _copy_into(tensor, x, "argument `y`")  # as a GPU's strided tensor is written back
    turned = torch.zeros(3, 2)
    _copy_into(turned.T, torch.ones(2, 3), "argument `y`")
    assert (turned == 1).all()


def test_a_function_of_torch_around_kernels(session: Any) -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = torch.zeros_like(x, requires_grad=True)
            square(x, y)
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            x, y = ctx.saved_tensors
            x.grad = None
            y.grad = dy.contiguous()
            square.grad(x, y)
            return x.grad

    p = leaf()
    Square.apply(p * 3.0).sum().backward()
    close(p.grad, 18 * p.detach())


def test_a_tensor_that_torch_computed(session: Any) -> None:
    p, y, loss = leaf(), torch.zeros(N, requires_grad=True), torch.zeros(1, requires_grad=True)
    x = p * 2.0
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="computed by torch"), sg.ad.Tape(loss):
        square(x, y)
        weigh(y, torch.ones(N), loss)
    y.grad = None
    x.retain_grad()
    with sg.ad.Tape(loss):
        square(x, y)
        weigh(y, torch.ones(N), loss)
    x.backward(x.grad.clone())
    close(p.grad, 2 * 2 * x.detach())


def test_a_tensor_that_torch_computed_in_the_family(arch: str, caplog: pytest.LogCaptureFixture) -> None:
    qd.init(arch=arch)
    x, y, loss = leaf() * 2.0, torch.zeros(N, requires_grad=True), torch.zeros(1, requires_grad=True)
    with caplog.at_level(logging.WARNING, "spirograd"), qd.ad.Tape(loss):
        square(x, y)
        weigh(y, torch.ones(N), loss)
    assert "computed by torch" in caplog.text


@pytest.mark.archs("interpreter")
def test_tensors_that_are_no_loss(session: Any) -> None:
    for loss, message in (
        (torch.zeros(3, requires_grad=True), "one float, a torch tensor of shape .* 3 elements"),
        (torch.zeros(1), "has no gradient(.|\n)*requires_grad=True"),
        (torch.zeros(1, dtype=torch.int32), "only floats"),
    ):
        with pytest.raises(sg.SpirogradRuntimeError, match=message):
            sg.ad.Tape(loss)
