"""Chains of derivatives that end in memory without a gradient, and whose values reach the loss through more such memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import spirograd as sg

N = 4


@pytest.fixture
def program(session: Any) -> SimpleNamespace:
    """Kernels over `x`, `y`, `z` and `table` without gradients, and `k` and `loss` with them."""
    x, y, z, table = (sg.field(sg.f32, N) for _ in range(4))
    k = sg.field(sg.f32, N, needs_grad=True, needs_dual=True)
    loss = sg.field(sg.f32, (), needs_grad=True, needs_dual=True)
    k.fill(1.0)
    table.from_numpy(np.arange(1.0, N + 1, dtype=np.float32))

    @sg.kernel
    def begin():
        for i in x:
            x[i] = 2.0 * k[i]

    @sg.kernel
    def relay():
        for i in x:
            y[i] = x[i] + 1.0
            z[i] = 3.0 * table[i]

    @sg.kernel
    def stopped():
        for i in x:
            y[i] = sg.stop_grad(x[i]) + 1.0

    @sg.kernel
    def relay_before():
        for i in x:
            y[i] = x[i] + 1.0
            x[i] = 2.0 * k[i]

    @sg.kernel
    def read_y():
        for i in x:
            loss[None] += y[i] * k[i]

    @sg.kernel
    def read_z():
        for i in x:
            loss[None] += z[i] * k[i]

    @sg.kernel
    def at_once():
        for i in x:
            x[i] = 2.0 * k[i]
            y[i] = x[i] + 1.0
            loss[None] += y[i] * k[i]

    @sg.kernel
    def swing(steps: sg.i32):
        for _ in range(steps):
            y[0] -= 0.1 * k[0] * x[0]
            x[0] += 0.1 * y[0]

    @sg.kernel
    def read_x():
        loss[None] = x[0] * k[0]

    return SimpleNamespace(**locals())


def test_the_end_of_a_chain_is_an_error_where_the_loss_reads_it(program: SimpleNamespace) -> None:
    p = program
    for steps, memory, writer in (
        ((p.begin, p.relay, p.read_y), "y", "relay"),
        ((lambda: p.swing(3), p.read_x), "x", "swing"),
        ((lambda: p.swing(1), p.read_x), "x", "swing"),
    ):
        with pytest.raises(sg.SpirogradCompilationError) as error, sg.ad.Tape(p.loss):
            for step in steps:
                step()
        assert f"gradients end at `{memory}`" in str(error.value) and f"`{writer}`" in str(error.value)


def test_what_depends_on_nothing_with_a_gradient_is_no_error(program: SimpleNamespace) -> None:
    """Memory written beside a relay; values stopped on purpose; values read before the chain begins; and values that a single iteration
    hands on, which need no memory."""
    p = program
    for steps, slope in (
        ((p.begin, p.relay, p.read_z), 3.0 * np.arange(1, N + 1)),
        ((p.begin, p.stopped, p.read_y), np.full(N, 3.0)),
        ((p.relay_before, p.read_y), np.full(N, 6.0)),
        ((p.at_once,), np.full(N, 5.0)),
    ):
        p.k.fill(1.0)
        p.x.fill(5.0)
        with sg.ad.Tape(p.loss):
            for step in steps:
                step()
        np.testing.assert_allclose(p.k.grad.to_numpy(), slope)


def test_tangents(program: SimpleNamespace) -> None:
    p = program
    with pytest.raises(sg.SpirogradRuntimeError, match="`y`"), sg.ad.FwdMode(loss=p.loss, param=p.k, seed=[1.0] * N):
        p.begin()
        p.relay()
        p.read_y()
