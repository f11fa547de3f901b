"""Gravity between 4,096 bodies."""

import numpy as np

import spirograd as sg

N = 4096
position, velocity = sg.Vector.field(3, sg.f32, N), sg.Vector.field(3, sg.f32, N)
position.from_numpy(np.random.default_rng(0).random((N, 3), np.float32))


@sg.kernel
def kick():
    for i in range(N):
        force = sg.Vector([0.0, 0.0, 0.0])
        for j in range(N):
            d = position[j] - position[i]
            r2 = d.dot(d) + 1e-3
            force += d / (r2 * sg.sqrt(r2))
        velocity[i] += 1e-4 * force


CASES = {"n-body 4096": (kick, 1)}
