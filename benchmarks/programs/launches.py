"""What a call costs when the kernel does next to nothing."""

import numpy as np

import spirograd as sg

a, b, c, d = (sg.ndarray(sg.f32, 16) for _ in range(4))
x, y = np.zeros(16, np.float32), np.zeros(16, np.float32)
f = sg.field(sg.f32, 16)


@sg.kernel
def empty():
    pass


@sg.kernel
def scale(p: sg.types.ndarray(sg.f32, 1), q: sg.types.ndarray(sg.f32, 1), c: sg.f32):
    for i in range(16):
        p[i] = q[i] * c


@sg.kernel
def add(p: sg.types.ndarray(sg.f32, 1), q: sg.types.ndarray(sg.f32, 1), r: sg.types.ndarray(sg.f32, 1), s: sg.types.ndarray(sg.f32, 1)):
    for i in range(16):
        p[i] = q[i] + r[i] + s[i]


@sg.kernel
def increment():
    for i in f:
        f[i] += 1.0


@sg.kernel
def first() -> sg.f32:
    return f[0]


CASES = {
    "launch: empty": (empty, 2000),
    "launch: 2 ndarrays, scalar": (lambda: scale(a, b, 2.0), 2000),
    "launch: 4 ndarrays": (lambda: add(a, b, c, d), 2000),
    "launch: 2 NumPy arrays": (lambda: scale(x, y, 2.0), 500),
    "launch: field": (increment, 2000),
    "launch: returns a value": (first, 500),
}
