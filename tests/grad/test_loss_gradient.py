"""What `loss.grad` holds after a tape: 1, as programs of the family read it, and nothing that a later tape adds to other gradients."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg

torch = needs.package("torch")

N = 4
X = np.arange(1.0, N + 1.0, dtype=np.float32)


@pytest.fixture
def x(session: Any) -> Any:
    x = sg.field(sg.f32, N, needs_grad=True)
    x.from_numpy(X)
    return x


def scalars(count: int) -> list[Any]:
    return [sg.field(sg.f32, (), needs_grad=True) for _ in range(count)]


@sg.kernel
def added(x: sg.template(), loss: sg.template()):
    for i in x:
        loss[None] += x[i] * x[i]


@sg.kernel
def stored(x: sg.template(), loss: sg.template()):
    for _ in range(1):
        loss[None] = x[0] * x[0] + x[1]


@sg.kernel
def scaled(loss: sg.template(), other: sg.template(), factor: sg.f32):
    for _ in range(1):
        other[None] = factor * loss[None]


@pytest.mark.parametrize("checkpoints", [None, 1])
def test_it_is_one(x: Any, checkpoints: int | None) -> None:
    (loss,) = scalars(1)
    for kernel in (added, stored, added):
        for _ in range(2):
            with sg.ad.Tape(loss, checkpoints=checkpoints):
                kernel(x, loss)
            assert loss.grad[None] == 1.0
            np.testing.assert_allclose(x.grad.to_numpy(), 2 * X if kernel is added else [2.0, 1.0, 0.0, 0.0])
    with sg.ad.Tape(loss, checkpoints=checkpoints):
        stored(x, loss)
        loss[None] = 3.0  # no derivative of what the kernel computed is left
    assert loss.grad[None] == 1.0
    assert not x.grad.to_numpy().any()


def test_graphs(x: Any) -> None:
    (loss,) = scalars(1)
    with sg.Graph() as graph, sg.ad.Tape(loss):
        stored(x, loss)
    for factor in (2.0, 3.0):
        x.from_numpy(factor * X)
        loss.grad.fill(0.0)
        graph.launch()
        assert loss.grad[None] == 1.0
        np.testing.assert_allclose(x.grad.to_numpy(), [2.0 * factor, 1.0, 0.0, 0.0])


def test_later_tapes_do_not_add_it(x: Any) -> None:
    """The loss of one tape is in the middle of another, which adds to the gradients that there are."""
    loss, other = scalars(2)
    with sg.ad.Tape(loss):
        stored(x, loss)
    assert loss.grad[None] == 1.0
    with sg.ad.Tape(other, clear_gradients=False):
        stored(x, loss)
        scaled(loss, other, 10.0)
    np.testing.assert_allclose(x.grad.to_numpy(), [2.0 + 20.0, 1.0 + 10.0, 0.0, 0.0])
    assert other.grad[None] == 1.0

    with sg.ad.Tape(clear_gradients=False) as tape:
        stored(x, loss)
        scaled(loss, other, 10.0)
    other.grad[None] = 1.0
    tape.grad()
    np.testing.assert_allclose(x.grad.to_numpy(), [2.0 + 40.0, 1.0 + 20.0, 0.0, 0.0])


def test_what_the_user_sets_stays(x: Any) -> None:
    (loss,) = scalars(1)
    with sg.ad.Tape(loss):
        stored(x, loss)
    loss.grad[None] = 1.0  # as it was, but written
    with sg.ad.Tape(clear_gradients=False) as tape:
        stored(x, loss)
    tape.grad()
    np.testing.assert_allclose(x.grad.to_numpy(), [4.0, 2.0, 0.0, 0.0])


def test_kernel_grad_starts_from_it(x: Any) -> None:
    """A bare gradient takes what memory holds."""
    (loss,) = scalars(1)
    with sg.ad.Tape(loss):
        stored(x, loss)
    stored.grad(x, loss)
    np.testing.assert_allclose(x.grad.to_numpy(), [4.0, 2.0, 0.0, 0.0])
    assert loss.grad[None] == 0.0


def test_a_tape_in_a_gradient_function(x: Any) -> None:
    """An inner tape leaves what its reverse pass leaves: the outer one goes on from there."""
    loss, inner = scalars(2)
    found = []

    @sg.ad.grad_replaced
    def step() -> None:
        stored(x, inner)

    @sg.ad.grad_for(step)
    def step_grad() -> None:
        outer = inner.grad[None]
        with sg.ad.Tape(inner, clear_gradients=False):
            stored(x, inner)
        found.append((outer, inner.grad[None]))

    with sg.ad.Tape(loss):
        step()
        scaled(inner, loss, 1.0)
    assert found == [(1.0, 0.0)]
    np.testing.assert_allclose(x.grad.to_numpy(), [2.0, 1.0, 0.0, 0.0])


@pytest.mark.needs("torch")
def test_tensors(session: Any) -> None:
    @sg.kernel
    def stored_tensor(x: sg.types.NDArray, loss: sg.types.NDArray, factor: sg.f32):
        for _ in range(1):
            loss[0] = factor * x[0] * x[0]

    x, loss, other = torch.tensor([3.0], requires_grad=True), torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    with sg.ad.Tape(loss):
        stored_tensor(x, loss, 1.0)
    assert loss.grad.item() == 1.0
    assert x.grad.item() == 6.0
    x.grad = None
    with sg.ad.Tape(other):
        stored_tensor(x, loss, 1.0)
        stored_tensor(loss, other, 1.0)
    assert x.grad.item() == 4 * 3.0**3
    assert other.grad.item() == 1.0
