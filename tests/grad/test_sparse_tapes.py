"""Tapes of loops over active cells: their bytes follow how many are active, which the device counts, not how many there may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.archs("cpu", "vulkan", "wgpu")  # the interpreter has no heap

POSSIBLE, CELL, STEPS = 4096, 4, 7


def test_bytes_follow_the_active_cells(session: Any) -> None:
    x, loss = sg.field(sg.f32, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    steps = sg.field(sg.i32, ())
    node = sg.root.pointer(sg.i, POSSIBLE)
    node.dense(sg.i, CELL).place(x, x.grad)

    @sg.kernel
    def activate(count: sg.i32):
        for k in range(count):
            x[CELL * k] = 0.5

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(steps[None]):
                v = sg.sin(v) + x[i]
            loss[None] += v

    def gradient(active: int) -> tuple[int, np.ndarray]:
        node.deactivate_all()
        activate(active)
        with sg.ad.Tape(loss):
            run()
        return run.grad.adstack_bytes, x.grad.to_numpy()[: CELL * active]

    steps[None] = STEPS
    one, _ = gradient(1)
    sizes = {}
    for active in (10, 1000, 100, POSSIBLE):
        sizes[active], found = gradient(active)
        start = np.tile([0.5, *[0.0] * (CELL - 1)], active)
        value, slope = start.copy(), np.ones(len(start))
        for _ in range(STEPS):
            value, slope = np.sin(value) + start, np.cos(value) * slope + 1.0
        np.testing.assert_allclose(found, slope, rtol=1e-5)
        assert 0 < sizes[active] <= one * (CELL * active + 128)
    if sg.cfg.arch != "cpu":  # where each thread of the few that there are has a tape
        assert 5 * sizes[10] < sizes[100] + 20 * one and 5 * sizes[100] < sizes[1000] < sizes[POSSIBLE] / 3
