"""`kernel.grad(..., replay=True)`: memory holds what it held before the kernel; and bare gradients in the family's modules."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np
import pytest

import spirograd as sg
import spirograd.compat.quadrants as qd

pytestmark = pytest.mark.vulkan_or_wgpu

N = 5
X = np.linspace(0.4, 1.2, N).astype(np.float32)


def test_arrays_of_all_kinds(session: Any) -> None:
    x, host = sg.ndarray(sg.f32, N, needs_grad=True), np.full(N, 2.0, np.float32)

    @sg.kernel
    def step(x: sg.types.ndarray(), host: sg.types.ndarray()):
        for i in x:
            host[i] += 1.0
            x[i] = x[i] ** 2 * host[i]

    x.from_numpy(X)
    for count in (1, 2):
        x.grad.fill(1.0)
        step.grad(x, host, replay=True)
        np.testing.assert_allclose(x.grad.to_numpy(), 6 * X, rtol=1e-5)
        assert host.tolist() == [2.0] * N
        np.testing.assert_array_equal(x.to_numpy(), X)


def test_results(session: Any) -> None:
    x = sg.field(sg.f32, N, needs_grad=True)

    @sg.kernel
    def energy() -> sg.f32:
        e = 0.0
        for i in range(N):
            e += x[i] ** 3
            x[i] = 0.0
        return e

    x.from_numpy(X)
    energy.grad(replay=True, returned=2.0)
    np.testing.assert_allclose(x.grad.to_numpy(), 6 * X**2, rtol=1e-5)
    np.testing.assert_array_equal(x.to_numpy(), X)


def test_random_numbers_are_those_of_the_launch(session: Any) -> None:
    x = sg.field(sg.f32, N, needs_grad=True)

    @sg.kernel
    def noisy():
        for i in x:
            x[i] = x[i] * x[i] * sg.random()

    x.from_numpy(X)
    noisy()
    drawn = x.to_numpy() / X**2
    x.from_numpy(X)
    x.grad.fill(1.0)
    noisy.grad(replay=True)
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * X * drawn, rtol=1e-4)


def test_methods_and_kernels_that_overwrite_nothing(session: Any) -> None:
    x, y = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, N, needs_grad=True)

    @sg.data_oriented
    class Solver:
        @sg.kernel
        def run(self, k: sg.f32):
            for i in x:
                y[i] = x[i] ** 2 * k

    x.from_numpy(X)
    y.grad.fill(1.0)
    Solver().run.grad(3.0, replay=True)
    np.testing.assert_allclose(x.grad.to_numpy(), 6 * X, rtol=1e-5)
    assert not y.to_numpy().any()


def test_not_inside_of_a_tape(session: Any) -> None:
    x = sg.field(sg.f32, N, needs_grad=True)

    @sg.kernel
    def square():
        for i in x:
            x[i] = x[i] ** 2

    with sg.ad.Tape(), pytest.raises(sg.SpirogradRuntimeError, match="inside of a tape"):
        square.grad(replay=True)
    for _ in range(2):
        with pytest.raises(sg.SpirogradCompilationError, match="replay=True"):
            square.grad()
        square.grad(replay=True)


def test_the_family_replays(arch: str, caplog: pytest.LogCaptureFixture) -> None:
    """A program that puts the state back by itself before it asks for the gradient."""
    qd.init(arch=arch)
    x, v = qd.field(qd.f32, N, needs_grad=True), qd.field(qd.f32, N, needs_grad=True)
    states = []

    @qd.kernel
    def step(dt: qd.f32):
        for i in x:
            v[i] -= dt * qd.sin(x[i])
            x[i] += dt * v[i]

    x.from_numpy(X)
    for _ in range(3):
        states.append((x.to_numpy(), v.to_numpy()))
        step(0.1)
    x.grad.fill(1.0)
    with caplog.at_level(logging.WARNING, "spirograd"):
        for at, speed in reversed(states):
            x.from_numpy(at)
            v.from_numpy(speed)
            step.grad(0.1)
    assert caplog.text.count("needs `x` as it was before") == 1

    def end(start: Any) -> Any:
        at, speed = start.copy(), np.zeros(N)
        for _ in range(3):
            speed = speed - 0.1 * np.sin(at)
            at = at + 0.1 * speed
        return at

    X64 = X.astype(np.float64)
    np.testing.assert_allclose(x.grad.to_numpy(), (end(X64 + 1e-6) - end(X64 - 1e-6)) / 2e-6, rtol=1e-4)


def test_frozen_dataclasses_that_change(session: Any) -> None:
    """What is found once for an instance, with its bindings and with its arrays, is found anew for another gradient of an array."""

    @dataclasses.dataclass(frozen=True)
    class State:
        x: sg.types.ndarray(sg.f32, 1)
        k: sg.f32

    @sg.kernel
    def step(s: State):
        for i in s.x:
            s.x[i] = s.x[i] ** 2 * s.k

    states = [State(sg.ndarray(sg.f32, N, needs_grad=True), k) for k in (1.0, 3.0)]
    for count in range(4):
        for s in states:
            if count == 2:
                s.x.grad = sg.ndarray(sg.f32, N)
            s.x.from_numpy(X + count)
            s.x.grad.fill(2.0)
            step.grad(s, replay=True)
            np.testing.assert_allclose(s.x.grad.to_numpy(), 4 * s.k * (X + count), rtol=1e-5)
            np.testing.assert_array_equal(s.x.to_numpy(), X + count)
