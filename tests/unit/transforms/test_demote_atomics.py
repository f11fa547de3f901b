"""`demote_atomics`: which additions stay atomic, and that what they leave is right either way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spirograd as sg

N = 1000


def check_atomics(session: Any, kernel: Any, count: int) -> None:
    if session.arch != "interpreter":  # it runs kernels as they are written
        assert kernel.stages()["offload.ir"].count('atomic[("add"') == count


def steps(x: Any) -> Any:
    @sg.kernel
    def kernel(t: sg.i32):
        for i in range(N):
            x[t + 1, i] = 3.0
            x[t, i] += 1.0

    return kernel


def both_steps(x: Any) -> Any:
    @sg.kernel
    def kernel(t: sg.i32):
        for i in range(N):
            x[t, i] += 1.0
            x[t + 1, i] += 2.0

    return kernel


def halves(x: Any) -> Any:
    @sg.kernel
    def kernel(t: sg.i32):
        for i in range(N):
            x[t, i // 2] += 1.0
            x[t + 1, i // 2] = 3.0

    return kernel


def neighbours(x: Any) -> Any:
    @sg.kernel
    def kernel(t: sg.i32):
        for i in range(N - 1):
            x[t, i] += 1.0
            x[t, i + 1] += 2.0

    return kernel


def row_and_column(x: Any) -> Any:
    @sg.kernel
    def kernel(t: sg.i32):
        for i in range(3):
            x[i, t] += 1.0
            x[t, i] += 2.0

    return kernel


def expected(change: Callable[[np.ndarray[Any, Any]], None]) -> np.ndarray[Any, Any]:
    out = np.zeros((3, N), np.float32)
    change(out)
    return out


def by_steps(a: np.ndarray[Any, Any]) -> None:
    a[1], a[2] = 1, 3


def by_both_steps(a: np.ndarray[Any, Any]) -> None:
    a[1], a[2] = 1, 2


def by_halves(a: np.ndarray[Any, Any]) -> None:
    a[1, : N // 2], a[2, : N // 2] = 2, 3


def by_neighbours(a: np.ndarray[Any, Any]) -> None:
    a[1, :-1] += 1
    a[1, 1:] += 2


def by_row_and_column(a: np.ndarray[Any, Any]) -> None:
    a[:, 1] += 1
    a[1, :3] += 2


@pytest.mark.parametrize(
    ("make", "change", "atomic"),
    [
        (steps, by_steps, 0),
        (both_steps, by_both_steps, 0),
        (halves, by_halves, 1),
        (neighbours, by_neighbours, 2),
        (row_and_column, by_row_and_column, 2),
    ],
)
def test_elements_of_one_iteration(session: Any, make: Any, change: Any, atomic: int) -> None:
    x = sg.field(sg.f32, (3, N))
    kernel = make(x)
    kernel(1)
    np.testing.assert_array_equal(x.to_numpy(), expected(change))
    check_atomics(session, kernel, atomic)


def test_gradients_of_steps(session: Any) -> None:
    """From one row of a field to the next: no other iteration adds to the gradient of an element."""
    x = sg.field(sg.f32, (3, N), needs_grad=True)

    @sg.kernel
    def step(t: sg.i32):
        for i in range(N):
            x[t + 1, i] = sg.sin(x[t, i]) + 2.0 * x[t, i]

    start = np.linspace(-1, 1, N, dtype=np.float32)
    x.from_numpy(np.stack([start, np.zeros_like(start), np.zeros_like(start)]))
    weights = np.linspace(1, 2, N, dtype=np.float32)
    x.grad.from_numpy(np.stack([np.zeros_like(start), np.zeros_like(start), weights]))
    step(0)
    step(1)
    step.grad(1)
    step.grad(0)
    middle = np.sin(start.astype(np.float64)) + 2 * start
    np.testing.assert_allclose(x.grad.to_numpy()[0], weights * (np.cos(middle) + 2) * (np.cos(start.astype(np.float64)) + 2), rtol=2e-5)
    check_atomics(session, step.grad, 0)
