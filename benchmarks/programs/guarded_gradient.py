"""Bytes that the gradient of a guarded task keeps: of 1,000,000 cells one in twenty is active, and carries eight floats through 64 steps.

How many steps is in a field in one case, and a constant in another.
"""

import numpy as np

import spirograd as sg

N, STEPS = 1_000_000, 64
x, y = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, N, needs_grad=True)
active = sg.field(sg.f32, N)
steps = sg.field(sg.i32, ())


@sg.func
def turned(a, b):
    return sg.sin(a) * b + 0.1


@sg.kernel
def by_field():
    for i in x:
        if active[i] > 0.5:
            a, b, c, d = x[i], 0.9 * x[i], 0.8 * x[i], 0.7 * x[i]
            e, f, g, h = 0.6 * x[i], 0.5 * x[i], 0.4 * x[i], 0.3 * x[i]
            for _ in range(steps[None]):
                a, b, c, d = turned(a, b), turned(b, c), turned(c, d), turned(d, e)
                e, f, g, h = turned(e, f), turned(f, g), turned(g, h), turned(h, a)
            y[i] = a + b + c + d + e + f + g + h


@sg.kernel
def by_constant():
    for i in x:
        if active[i] > 0.5:
            a, b, c, d = x[i], 0.9 * x[i], 0.8 * x[i], 0.7 * x[i]
            e, f, g, h = 0.6 * x[i], 0.5 * x[i], 0.4 * x[i], 0.3 * x[i]
            for _ in range(STEPS):
                a, b, c, d = turned(a, b), turned(b, c), turned(c, d), turned(d, e)
                e, f, g, h = turned(e, f), turned(f, g), turned(g, h), turned(h, a)
            y[i] = a + b + c + d + e + f + g + h


def gradient_by_field():
    y.grad.fill(1.0)
    by_field.grad()


def gradient_by_constant():
    y.grad.fill(1.0)
    by_constant.grad()


x.from_numpy(np.linspace(0, 1, N, dtype=np.float32))
active.from_numpy((np.random.default_rng(0).random(N) < 0.05).astype(np.float32))
steps[None] = STEPS
CASES = {
    "guarded 1M x 64, field": (by_field, 1),
    "guarded, field, gradient": (gradient_by_field, 1),
    "guarded, constant, gradient": (gradient_by_constant, 1),
}
TAPES = {
    "guarded, field": (by_field, gradient_by_field),
    "guarded, constant": (by_constant, gradient_by_constant),
}
