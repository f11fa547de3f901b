"""Passes over arrays of 16 million numbers."""

import numpy as np

import spirograd as sg

N = 1 << 24
x, y = sg.field(sg.f32, N), sg.field(sg.f32, N)
x.from_numpy(np.random.default_rng(0).random(N, np.float32))


@sg.kernel
def saxpy(a: sg.f32):
    for i in x:
        y[i] = a * x[i] + y[i]


@sg.kernel
def update(a: sg.f32):
    for i in x:
        y[i] += a * x[i]


@sg.kernel
def trigonometry():
    for i in x:
        y[i] = sg.sin(x[i]) * sg.exp(x[i])


@sg.kernel
def branches():
    for i in x:
        if x[i] > 0.5:
            y[i] = x[i] - 0.5
        else:
            y[i] = 0.5 - x[i]


CASES = {
    "saxpy 16M": (lambda: saxpy(2.0), 1),
    "y[i] += a * x[i] 16M": (lambda: update(2.0), 1),
    "sin(x) * exp(x) 16M": (trigonometry, 1),
    "branches 16M": (branches, 1),
}
