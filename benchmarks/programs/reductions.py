"""Sums and maxima of 16 million numbers."""

import numpy as np

import spirograd as sg

N = 1 << 24
x = sg.field(sg.f32, N)
x.from_numpy(np.random.default_rng(0).random(N, np.float32))


@sg.kernel
def total() -> sg.f32:
    s = 0.0
    for i in x:
        s += x[i]
    return s


@sg.kernel
def largest() -> sg.f32:
    s = -1e30
    for i in x:
        sg.atomic_max(s, x[i])
    return s


CASES = {"sum 16M": (total, 1), "max 16M": (largest, 1)}
