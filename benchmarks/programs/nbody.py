"""Gravity between 4,096 bodies, and between 8,192: with vectors, with vectors and one division instead of three, with scalars."""

import numpy as np

import spirograd as sg

N, MORE = 4096, 8192
position, velocity = sg.Vector.field(3, sg.f32, N), sg.Vector.field(3, sg.f32, N)
place, speed = sg.Vector.field(3, sg.f32, MORE), sg.Vector.field(3, sg.f32, MORE)
px, py, pz = (sg.field(sg.f32, MORE) for _ in range(3))
vx, vy, vz = (sg.field(sg.f32, MORE) for _ in range(3))
start = np.random.default_rng(0).random((MORE, 3), np.float32)
position.from_numpy(start[:N])
place.from_numpy(start)
for number, axis in enumerate((px, py, pz)):
    axis.from_numpy(np.ascontiguousarray(start[:, number]))


@sg.kernel
def kick():
    for i in range(N):
        force = sg.Vector([0.0, 0.0, 0.0])
        for j in range(N):
            d = position[j] - position[i]
            r2 = d.dot(d) + 1e-3
            force += d / (r2 * sg.sqrt(r2))
        velocity[i] += 1e-4 * force


@sg.kernel
def kick_vectors():
    for i in range(MORE):
        force = sg.Vector([0.0, 0.0, 0.0])
        for j in range(MORE):
            d = place[j] - place[i]
            r2 = d.dot(d) + 1e-3
            force += d / (r2 * sg.sqrt(r2))
        speed[i] += 1e-4 * force


@sg.kernel
def kick_vectors_once():
    for i in range(MORE):
        force = sg.Vector([0.0, 0.0, 0.0])
        for j in range(MORE):
            d = place[j] - place[i]
            r2 = d.dot(d) + 1e-3
            force += d * (1.0 / (r2 * sg.sqrt(r2)))
        speed[i] += 1e-4 * force


@sg.kernel
def kick_scalars():
    for i in range(MORE):
        x, y, z = px[i], py[i], pz[i]
        fx, fy, fz = 0.0, 0.0, 0.0
        for j in range(MORE):
            dx, dy, dz = px[j] - x, py[j] - y, pz[j] - z
            r2 = dx * dx + dy * dy + dz * dz + 1e-3
            w = 1.0 / (r2 * sg.sqrt(r2))
            fx += w * dx
            fy += w * dy
            fz += w * dz
        vx[i] += 1e-4 * fx
        vy[i] += 1e-4 * fy
        vz[i] += 1e-4 * fz


CASES = {
    "n-body 4096": (kick, 1),
    "n-body 8192, vectors": (kick_vectors, 1),
    "n-body 8192, one division": (kick_vectors_once, 1),
    "n-body 8192, scalars": (kick_scalars, 1),
}
