"""Gradients through views of arrays, beside finite differences of NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu
N = 6
Array = Any


@sg.kernel
def step(x: sg.types.NDArray, y: sg.types.NDArray):
    for i in x:
        y[i] += sg.sin(x[i]) * y[i]


@sg.kernel
def add_up(x: sg.types.NDArray, loss: sg.Template):
    for i in x:
        loss[None] += x[i] ** 2 * (i + 1)


def step_(x: Array, y: Array) -> None:
    y += np.sin(x) * y


def numeric(f: Callable[[Array], float], at: Array) -> Array:
    h = 1e-6
    return np.array([(f(at + h * e) - f(at - h * e)) / (2 * h) for e in np.eye(len(at))])


@pytest.fixture
def memory(arch: Any) -> tuple[Any, Any, Array]:
    """An array, a loss, and what the array is to begin with."""
    sg.init(arch=arch, default_fp=sg.f64)
    return sg.ndarray(sg.f64, 3 * N, needs_grad=True), sg.field(sg.f64, (), needs_grad=True), np.random.default_rng(3).normal(size=3 * N)


def test_tape(memory: Any) -> None:
    """Launches, copies and writes of the host through views: what each overwrites is saved, and no other gradient ends there."""
    a, loss, start = memory

    def program(data: Array) -> float:
        a = data.copy()
        step_(a[:N], a[N : 2 * N])
        step_(a[N : 2 * N], a[2 * N :])
        a[:N] = a[2 * N :]
        step_(a[::3], a[1::3])
        a[1:] = a[:-1].copy()
        a[:-2] = a[2:].copy()
        a[3:5], a[7], a[10] = 2, 1, 3
        step_(a[::-2], a[-2::-2])
        return float((a[::-1] ** 2 * (np.arange(3 * N) + 1)).sum())

    a.from_numpy(start)
    with sg.ad.Tape(loss):
        step(a[:N], a[N : 2 * N])
        step(a[N : 2 * N], a[2 * N :])
        a[:N].copy_from(a[2 * N :])
        step(a[::3], a[1::3])
        a[1:].copy_from(a[:-1])
        a[:-2].copy_from(a[2:])
        a[3:5].fill(2.0)
        a[7] = 1.0
        a[9:12][1] = 3.0
        step(a[::-2], a[-2::-2])
        add_up(a[::-1], loss)
    assert loss[None] == pytest.approx(program(start), rel=1e-12)
    assert np.allclose(a.grad.to_numpy(), numeric(program, start), rtol=1e-6, atol=1e-6)
    assert (a[2:9:3].grad.to_numpy() == a.grad.to_numpy()[2:9:3]).all()


def test_slices_in_kernels(memory: Any) -> None:
    a, loss, start = memory

    @sg.func
    def norm(v):
        s = 0.0
        for k in range(v.shape[0]):
            s += v[k] * v[k]
        return sg.sqrt(s)

    @sg.kernel
    def run(a: sg.types.NDArray, width: sg.i32):
        for i in range(3):
            part = a[i * N : i * N + width]
            loss[None] += norm(part) * norm(part[::-2])

    def program(data: Array) -> float:
        return float(sum(np.linalg.norm(row) * np.linalg.norm(row[::-2]) for row in data.reshape(3, N)[:, :5]))

    a.from_numpy(start)
    with sg.ad.Tape(loss):
        run(a, 5)
    assert np.allclose(a.grad.to_numpy(), numeric(program, start), rtol=1e-6, atol=1e-7)


def test_rows_of_a_trajectory(memory: Any) -> None:
    """A tape saves the rows that are overwritten, not the array."""
    _, loss, start = memory
    x = sg.ndarray(sg.f64, (3, N), needs_grad=True)

    def program(data: Array) -> float:
        x = data.reshape(3, N).copy()
        for t in (0, 1, 2, 1, 2):
            step_(x[t], x[(t + 1) % 3])
        return float((x[0] ** 2 * (np.arange(N) + 1)).sum())

    x.from_numpy(start.reshape(3, N))
    with sg.ad.Tape(loss):
        for t in (0, 1, 2, 1, 2):
            step(x[t, :], x[(t + 1) % 3, :])
        add_up(x[0, :], loss)
    assert np.allclose(x.grad.to_numpy().reshape(-1), numeric(program, start), rtol=1e-6, atol=1e-7)


@sg.kernel
def squares(x: sg.types.NDArray, out: sg.types.NDArray):
    for i in x:
        out[0] += x[i] ** 2 * (i + 1)


def test_views_as_loss_and_in_forward_mode(memory: Any) -> None:
    a, _, start = memory
    a.from_numpy(start)
    with sg.ad.Tape(a[2:3]):
        squares(a[10:4:-2], a[2:3])
    expected = np.zeros(3 * N)
    expected[10:4:-2] = 2 * start[10:4:-2] * [1, 2, 3]
    expected[2] = 1
    assert np.allclose(a.grad.to_numpy(), expected)
    b, out = sg.ndarray(sg.f64, 3 * N, needs_dual=True), sg.ndarray(sg.f64, 4, needs_dual=True)
    b.from_numpy(start)
    with sg.ad.FwdMode(loss=out, param=b, seed=np.eye(3 * N)[8].tolist()):
        squares(b[10:4:-2], out[3:])
    assert out.dual.to_numpy() == pytest.approx([0, 0, 0, 2 * start[8] * 2])


def test_views_that_overlap_are_refused(memory: Any) -> None:
    a, _, _ = memory
    for x, y in (a[:N], a[N - 1 : 2 * N - 1]), (a[:12:2], a[::3]), (a[::-1], a[:]):
        with pytest.raises(sg.SpirogradRuntimeError, match="share memory, which the kernel writes"):
            step.grad(x, y, replay=True)
    for x, y in (a[:N], a[N : 2 * N]), (a[::2], a[1::2]), (a[::6], a[3::6]), (a[5:5], a[3:3]):
        step.grad(x, y, replay=True)
