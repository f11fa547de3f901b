"""Loops whose trip counts are not numbers of 32 bits: counted in types that hold them, or refused before anything is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.autodiff import differentiate
from spirograd.autodiff.sweep import Counter, counter_for
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import i32, i64
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError

pytestmark = pytest.mark.vulkan_or_wgpu

LARGE = 2**31 + 10


@pytest.mark.archs("cpu")  # drivers of the others end loops before, and the interpreter would take hours
@pytest.mark.parametrize("n", [1000, pytest.param(LARGE, marks=pytest.mark.long)])
def test_while(session: Any, n: int) -> None:
    c, y = (sg.field(sg.f64, (), needs_grad=True) for _ in range(2))

    @sg.kernel
    def add(n: sg.i64):
        for _ in range(1):
            v = sg.f64(0)
            i = sg.i64(0)
            while i < n:
                v += c[None]
                i += 1
            y[None] = v

    @sg.kernel
    def add_strided(n: sg.i64, step: sg.i64):
        for _ in range(1):
            v = sg.f64(0)
            for i in range(0, n, step):
                if c[None] > 2:
                    break
                v += c[None]
            y[None] = v

    for launch in (lambda: add.grad(n), lambda: add_strided.grad(n, 1), lambda: add_strided.grad(3 * n - 1, 3)):
        c.grad[None], y.grad[None] = 0, 1
        launch()
        assert c.grad[None] == n


def test_counters() -> None:
    """64 bits where there are integers as wide; where drivers end loops early, 32 do."""
    wide = Capabilities("vulkan", int64=True)
    assert counter_for(wide) == Counter(i64)
    assert counter_for(Capabilities("vulkan", int64=True, loop_limit=65535)) == Counter(i32)
    assert counter_for(Capabilities("wgpu")) == Counter(i32, 2**31 - 2)


@pytest.mark.parametrize("count", [Counter(i32, 50), Counter(i64)], ids=["checked", "wide"])
def test_counted_up_to_a_limit(session: Any, monkeypatch: pytest.MonkeyPatch, count: Counter) -> None:
    """Devices without 64-bit integers raise an error for a loop that makes more iterations than they can count."""
    monkeypatch.setattr(differentiate, "counter_for", lambda caps: count)
    x, y = (sg.field(sg.f32, (), needs_grad=True) for _ in range(2))

    @sg.kernel
    def power(n: sg.i32):
        for _ in range(1):
            v = sg.f32(1)
            i = 0
            while i < n:
                v = v * x[None]
                i += 1
            y[None] = v

    for n in (0, 1, 7, 50, 51, 60, 3):
        x[None], x.grad[None], y.grad[None] = 1.01, 0, 1
        if count.most is not None and n > count.most:
            with pytest.raises(SpirogradRuntimeError, match="this loop runs more than 50 iterations"):
                power.grad(n)
                sg.sync()
        else:
            power.grad(n)
            sg.sync()
            np.testing.assert_allclose(x.grad[None], n * 1.01 ** (n - 1), rtol=1e-5)


@pytest.mark.optimized
def test_saved_values_are_refused_by_their_size(session: Any) -> None:
    """What a launch saves of memory that it overwrites is numbered in 31 bits."""
    x, loss = sg.field(sg.f32, 2, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def swing(n: sg.i32):
        for _ in range(1):
            for i in range(n):
                x[i % 2] = 0.5 * sg.sin(x[(i + 1) % 2])

    @sg.kernel
    def swing_while(n: sg.i64):
        for _ in range(1):
            i = sg.i64(0)
            while i < n:
                x[i % 2] = 0.5 * sg.sin(x[(i + 1) % 2])
                i += 1

    @sg.kernel
    def total():
        for i in x:
            loss[None] += x[i]

    def gradient(kernel: Any, n: int) -> Any:
        x.from_numpy(np.array([1, 1], np.float32))
        with sg.ad.Tape(loss):
            kernel(n)
            total()
        return x.grad.to_numpy()

    expected = gradient(swing, 6)
    cases = [(swing, 2**31 - 1)]
    if sg.cfg.arch == "cpu":
        cases += [(swing_while, 2**31 - 1), (swing_while, LARGE)]
    for kernel, n in cases:
        with pytest.raises(OutOfDeviceMemory, match="saving them takes 8,589,934,588 bytes or more"):
            gradient(kernel, n)
        np.testing.assert_allclose(gradient(kernel, 6), expected, rtol=1e-6)
