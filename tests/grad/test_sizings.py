"""How launches were sized: `sg.ad.sizings`, and how often the host waited for the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from grad.chains import advance, advanced, chains, starts

import spirograd as sg
from spirograd.ad import Sizings, sizings
from spirograd.lang import context

pytestmark = pytest.mark.usefixtures("session")

N = 6
STEPS = 25
DEVICES = ("vulkan", "wgpu")  # which run on their own
RATE = 0.01


class Training:
    """``y[i]`` is count[i] iterations of x[i]; each step adds to x a part of its gradient. All fields lie in one tree."""

    def __init__(self) -> None:
        self.count = sg.field(sg.i32, N)
        self.x, self.y = chains(N)
        x, y, count = self.x, self.y, self.count

        @sg.kernel
        def forward():
            for i in x:
                v = x[i]
                for _ in range(count[i]):
                    v = advance(v)
                y[i] = v

        @sg.kernel
        def prepare():
            for i in x:
                x.grad[i] = 0.0
                y.grad[i] = 1.0

        @sg.kernel
        def update():
            for i in x:
                x[i] += RATE * x.grad[i]

        @sg.kernel
        def bound(k: sg.i32):
            for i in count:
                count[i] = (k + i) % 17

        self.forward, self.prepare, self.update, self.bound = forward, prepare, update, bound
        self.wanted = starts(N).astype(np.float64)
        self.counts = np.arange(N) % 3
        x.from_numpy(starts(N))

    def step(self, counts: Any) -> None:
        self.prepare()
        self.forward()
        self.forward.grad()
        self.update()
        self.wanted += RATE * advanced(self.wanted, counts)[1]

    def check(self) -> None:
        np.testing.assert_allclose(self.x.to_numpy(), self.wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.archs("cpu", *DEVICES)
def test_bounds_that_stay_in_training(arch: str) -> None:
    """Written once, before: nothing is sized after the first step, and the host does not wait, although each step writes to the tree."""
    training, device = Training(), context.session().device
    counts = np.arange(N) * 5 % 13
    training.count.from_numpy(counts.astype(np.int32))
    assert sizings() == Sizings(0, 0, 0, 0)
    training.step(counts)
    first = sizings(reset=True)
    assert (first.known + first.counted, first.reused) == (1, 0)
    assert first.counted == 1 or arch == "cpu"  # where the host may read the bounds
    assert first.waited == (arch in DEVICES)
    sg.sync()
    waits = device.waits
    for _ in range(STEPS):
        training.step(counts)
    assert sizings() == Sizings(0, STEPS, 0, 0)
    assert device.waits == waits or arch == "cpu"  # a launch is over there when it returns
    training.check()


def by_kernel(training: Training, k: int) -> np.ndarray:
    training.bound(k)
    return (k + np.arange(N)) % 17


def by_host(training: Training, k: int) -> np.ndarray:
    counts = (k + 2 * np.arange(N)) % 17
    training.count.from_numpy(counts.astype(np.int32))
    return counts


def by_element(training: Training, k: int) -> np.ndarray:
    training.count[k % N] = 16
    training.counts[k % N] = 16
    return training.counts


@pytest.mark.archs("cpu", *DEVICES)
@pytest.mark.parametrize("write", [by_kernel, by_host, by_element])
def test_bounds_that_change_each_step(arch: str, write: Callable[[Training, int], np.ndarray]) -> None:
    """Counted in each step, and never waited for, but in the first ones."""
    training, device = Training(), context.session().device
    training.count.from_numpy(training.counts.astype(np.int32))
    for k in (1, 9):
        training.step(write(training, k))
    sg.sync()
    sizings(reset=True)
    waits = device.waits
    for k in range(STEPS):
        training.step(write(training, 3 + 7 * k))
    found = sizings()
    assert (found.known + found.counted, found.reused, found.waited) == (STEPS, 0, 0)
    assert found.counted == STEPS or arch == "cpu"
    assert device.waits == waits or arch == "cpu"
    training.check()


@pytest.mark.archs("cpu", *DEVICES)
def test_arguments_are_known() -> None:
    x, y = chains(N)

    @sg.kernel
    def run(k: sg.i32, a: sg.types.ndarray(sg.f32, 1)):
        for i in x:
            v = x[i]
            for _ in range(k + a.shape[0]):
                v = advance(v)
            y[i] = v

    waits = context.session().device.waits
    long, short = sg.ndarray(sg.f32, 9), sg.ndarray(sg.f32, 4)
    for k in (3, 8, 8):
        for a in (long, long, short):
            run.grad(k, a)
    run.grad.memory_plan(5, long)
    assert sizings(reset=True) == Sizings(known=6, reused=3, counted=0, waited=0)
    assert context.session().device.waits == waits
    assert sizings() == Sizings(0, 0, 0, 0)


def test_what_does_not_count() -> None:
    """A gradient without adstacks; and the interpreter's, which need no sizes."""
    x, y = chains(N)

    @sg.kernel
    def square():
        for i in x:
            y[i] = x[i] * x[i]

    square.grad()
    if context.session().arch == "interpreter":
        Training().forward.grad()
    assert sizings() == Sizings(0, 0, 0, 0)


@pytest.mark.archs("cpu", *DEVICES)
def test_a_new_session_starts_from_0(arch: str) -> None:
    Training().forward.grad()
    assert sizings() != Sizings(0, 0, 0, 0)
    sg.init(arch=arch)
    assert sizings() == Sizings(0, 0, 0, 0)
