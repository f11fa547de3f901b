"""Eight loops over 16 million numbers in one kernel, and over a million in ndarrays, as they stand and written as one loop by hand."""

import numpy as np

import spirograd as sg

N = 1 << 24
x, y = sg.field(sg.f32, N), sg.field(sg.f32, N)
x.from_numpy(np.random.default_rng(0).random(N, np.float32))


@sg.kernel
def apart():
    for i in x:
        y[i] = x[i] * 1.01 + 0.1
    for i in x:
        x[i] = y[i] * 0.99 - 0.1
    for i in x:
        y[i] = x[i] * 1.01 + 0.1
    for i in x:
        x[i] = y[i] * 0.99 - 0.1
    for i in x:
        y[i] = x[i] * 1.01 + 0.1
    for i in x:
        x[i] = y[i] * 0.99 - 0.1
    for i in x:
        y[i] = x[i] * 1.01 + 0.1
    for i in x:
        x[i] = y[i] * 0.99 - 0.1


@sg.kernel
def by_hand():
    for i in x:
        v, w = x[i], 0.0
        for _ in sg.static(range(4)):
            w = v * 1.01 + 0.1
            v = w * 0.99 - 0.1
        y[i] = w
        x[i] = v


@sg.kernel
def arrays_apart(x: sg.types.ndarray(sg.f32, 1), y: sg.types.ndarray(sg.f32, 1)):
    for i in range(x.shape[0]):
        y[i] = x[i] * 1.01 + 0.1
    for i in range(x.shape[0]):
        x[i] = y[i] * 0.99 - 0.1
    for i in range(x.shape[0]):
        y[i] = x[i] * 1.01 + 0.1
    for i in range(x.shape[0]):
        x[i] = y[i] * 0.99 - 0.1
    for i in range(x.shape[0]):
        y[i] = x[i] * 1.01 + 0.1
    for i in range(x.shape[0]):
        x[i] = y[i] * 0.99 - 0.1
    for i in range(x.shape[0]):
        y[i] = x[i] * 1.01 + 0.1
    for i in range(x.shape[0]):
        x[i] = y[i] * 0.99 - 0.1


@sg.kernel
def arrays_by_hand(x: sg.types.ndarray(sg.f32, 1), y: sg.types.ndarray(sg.f32, 1)):
    for i in range(x.shape[0]):
        v, w = x[i], 0.0
        for _ in sg.static(range(4)):
            w = v * 1.01 + 0.1
            v = w * 0.99 - 0.1
        y[i] = w
        x[i] = v


a, b = sg.ndarray(sg.f32, (1 << 20,)), sg.ndarray(sg.f32, (1 << 20,))
a.from_numpy(np.random.default_rng(0).random(1 << 20, np.float32))
CASES = {
    "eight loops 16M": (apart, 1),
    "the same as one loop 16M": (by_hand, 1),
    "eight loops 1M, ndarrays": (lambda: arrays_apart(a, b), 10),
    "one loop 1M, ndarrays": (lambda: arrays_by_hand(a, b), 10),
}
