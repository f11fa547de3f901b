"""Simulations whose steps have gradients of their own: particles by time, grids that each step clears, the step run again in reverse.

The shape of differentiable MPM: `advance` clears the grid, and goes from particles to the grid and back; `advance_grad` computes the grid
of the step again, and calls the gradients of its kernels. Compared with central differences of the same program in NumPy, in f64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg

STEPS, P, G, DT = 6, 10, 12, 0.05
DX = 1.0 / G
X0, V0 = np.linspace(0.22, 0.61, P), np.linspace(0.4, -0.3, P)


def weights(fx: np.ndarray) -> list[np.ndarray]:
    return [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]


def simulated(x: np.ndarray, v: np.ndarray) -> float:
    f = np.ones(P)
    for _ in range(STEPS):
        m, mv = np.zeros(G), np.zeros(G)
        base = (x / DX - 0.5).astype(int)
        fx = x / DX - base
        for k, w in enumerate(weights(fx)):
            np.add.at(m, base + k, w)
            np.add.at(mv, base + k, w * (v - 0.3 * (f - 1.0) * (k - fx)))
        out = mv / (m + 1e-3)
        new_v = sum(w * out[base + k] for k, w in enumerate(weights(fx)))
        f = f * (1.0 + DT * sum(w * out[base + k] * (k - fx) for k, w in enumerate(weights(fx))) * 4.0)
        x, v = x + DT * new_v, new_v
    return float((x**2).sum() + (v * f).sum())


def differences(values: np.ndarray, function: Any) -> np.ndarray:
    steps = 1e-6 * np.eye(len(values))
    return np.array([(function(values + h) - function(values - h)) / 2e-6 for h in steps])


class Simulation:
    """``of``: makes a field of particles by step; ``saves``: as of `grad_for`."""

    def __init__(self, of: str, saves: bool = True) -> None:
        names = ("x", "v", "f")
        if of == "cells":  # all of a particle in one cell, with the gradients
            fields = [sg.field(sg.f32, name=name) for name in names]
            sg.root.dense(sg.i, STEPS + 1).dense(sg.j, P).place(*fields)
            sg.root.lazy_grad()
        elif of == "arrays":
            fields = [sg.ndarray(sg.f32, (STEPS + 1, P), needs_grad=True) for _ in names]
        else:
            fields = [sg.field(sg.f32, (STEPS + 1, P), needs_grad=True, name=name) for name in names]
        self.x, self.v, self.f = x, v, f = fields
        self.m, self.mv, self.out = m, mv, out = [sg.field(sg.f32, G, needs_grad=True, name=name) for name in ("m", "mv", "out")]
        self.loss = loss = sg.field(sg.f32, (), needs_grad=True)

        @sg.kernel
        def clear():
            for i in m:
                m[i] = 0.0
                mv[i] = 0.0
                m.grad[i] = 0.0
                mv.grad[i] = 0.0
                out.grad[i] = 0.0

        @sg.kernel
        def to_grid(s: sg.i32, x: sg.template(), v: sg.template(), f: sg.template()):
            for p in range(P):
                base = int(x[s, p] / DX - 0.5)
                fx = x[s, p] / DX - base
                w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
                for k in sg.static(range(3)):
                    m[base + k] += w[k]
                    mv[base + k] += w[k] * (v[s, p] - 0.3 * (f[s, p] - 1.0) * (k - fx))

        @sg.kernel
        def on_grid():
            for i in m:
                out[i] = mv[i] / (m[i] + 1e-3)

        @sg.kernel
        def to_particles(s: sg.i32, x: sg.template(), v: sg.template(), f: sg.template()):
            for p in range(P):
                base = int(x[s, p] / DX - 0.5)
                fx = x[s, p] / DX - base
                w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
                new_v, strain = 0.0, 0.0
                for k in sg.static(range(3)):
                    new_v += w[k] * out[base + k]
                    strain += w[k] * out[base + k] * (k - fx)
                v[s + 1, p] = new_v
                x[s + 1, p] = x[s, p] + DT * v[s + 1, p]
                f[s + 1, p] = f[s, p] * (1.0 + DT * strain * 4.0)

        @sg.kernel
        def total(x: sg.template(), v: sg.template(), f: sg.template()):
            for p in range(P):
                loss[None] += x[STEPS, p] ** 2 + v[STEPS, p] * f[STEPS, p]

        @sg.ad.grad_replaced
        def advance(s: int) -> None:
            clear()
            to_grid(s, x, v, f)
            on_grid()
            to_particles(s, x, v, f)

        @sg.ad.grad_for(advance, saves=saves)
        def advance_grad(s: int) -> None:
            clear()
            to_grid(s, x, v, f)
            on_grid()
            to_particles.grad(s, x, v, f)
            on_grid.grad()
            to_grid.grad(s, x, v, f)

        self.advance, self.total = advance, total

    def start(self) -> None:
        contents = np.zeros((3, STEPS + 1, P), np.float32)
        contents[0, 0], contents[1, 0], contents[2, 0] = X0, V0, 1.0
        for memory, values in zip((self.x, self.v, self.f), contents):
            memory.from_numpy(values)

    def steps(self) -> None:
        for s in range(STEPS):
            self.advance(s)
        self.total(self.x, self.v, self.f)

    def check(self) -> None:
        np.testing.assert_allclose(self.loss[None], simulated(X0, V0), rtol=1e-4)
        for memory, wanted in (
            (self.x, differences(X0, lambda x: simulated(x, V0))),
            (self.v, differences(V0, lambda v: simulated(X0, v))),
        ):
            np.testing.assert_allclose(memory.grad.to_numpy()[0], wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("of", ["fields", "cells", "arrays"])
def test_steps(session: Any, of: str) -> None:
    simulation = Simulation(of)
    for _ in range(2):
        simulation.start()
        with sg.ad.Tape(simulation.loss) as tape:
            simulation.steps()
        simulation.check()
    # Grids are cleared at each step, so each gradient function gets a copy of its grids; the last ones are still there.
    assert set(tape.memory_report().nbytes) == {"m", "mv", "out"}
    assert tape.memory_report().total == 3 * (STEPS - 1) * 4 * G


def test_steps_that_save_nothing(session: Any) -> None:
    simulation = Simulation("fields", saves=False)
    simulation.start()
    with sg.ad.Tape(simulation.loss) as tape:
        simulation.steps()
    simulation.check()
    assert tape.memory_report().total == 0


def test_steps_with_checkpoints(session: Any) -> None:
    """The step sets gradients to zero, which would be done again while the reverse pass adds to them."""
    simulation = Simulation("fields")
    simulation.start()
    with pytest.raises(sg.SpirogradUnsupportedError, match=r"writes `m\.grad`"), sg.ad.Tape(simulation.loss, checkpoints=3):
        simulation.steps()


def test_a_gradient_function_may_write_slices(session: Any) -> None:
    """What a gradient function writes to memory is put back: the slice, not more, and what is next to it is left alone."""
    x = sg.field(sg.f32, (4, P), needs_grad=True)
    loss = sg.field(sg.f32, (), needs_grad=True)
    seen = []

    @sg.kernel
    def step(s: sg.i32):
        for i in range(P):
            x[s + 1, i] = 2.0 * x[s, i]

    @sg.kernel
    def spoil(s: sg.i32):
        for i in range(P):
            x[s, i] = -1.0

    @sg.kernel
    def pull(s: sg.i32):
        for i in range(P):
            x.grad[s, i] += 2.0 * x.grad[s + 1, i]

    @sg.kernel
    def total():
        for i in range(P):
            loss[None] += x[3, i]

    @sg.ad.grad_replaced
    def advance(s: int) -> None:
        step(s)

    @sg.ad.grad_for(advance)
    def advance_grad(s: int) -> None:
        seen.append(x.to_numpy()[s : s + 2].copy())
        spoil(s)
        x[s + 1, 2] = -7.0
        pull(s)

    for i in range(P):
        x[0, i] = 1.0 + i
    with sg.ad.Tape(loss):
        for s in range(3):
            advance(s)
        total()
        spoil(1)
        x.fill(9.0)
    one = 1.0 + np.arange(P)
    for s, found in zip((2, 1, 0), seen):
        np.testing.assert_array_equal(found, [one * 2**s, one * 2 ** (s + 1)])
    assert (x.to_numpy() == 9.0).all()
