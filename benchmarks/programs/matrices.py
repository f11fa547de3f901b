"""A product, a transpose and a determinant of 3 x 3 matrices, a million of them."""

import numpy as np

import spirograd as sg

N = 1 << 20
m, r = sg.Matrix.field(3, 3, sg.f32, N), sg.Matrix.field(3, 3, sg.f32, N)
m.from_numpy(np.random.default_rng(0).random((N, 3, 3), np.float32))


@sg.kernel
def products():
    for i in m:
        r[i] = m[i] @ m[i].transpose() * m[i].determinant()


CASES = {"3 x 3 matrices 1M": (products, 1)}
