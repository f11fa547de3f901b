"""A chain of springs as a data-oriented class: fields as attributes, kernels and functions as methods, appended bodies."""

import numpy as np

import spirograd.compat.taichi as ti

ti.init(arch=ti.cpu, default_fp=ti.f64)


@ti.data_oriented
class Springs:
    def __init__(self, capacity, stiffness=50.0):
        self.capacity = capacity
        self.stiffness = stiffness
        self.damping = 0.5
        self.count = ti.field(ti.i32, shape=())
        self.x = ti.Vector.field(2, dtype=float, shape=capacity)
        self.v = ti.Vector.field(2, dtype=float, shape=capacity)
        self.f = ti.Vector.field(2, dtype=float, shape=capacity)
        self.rest = ti.field(float, shape=(capacity, capacity))
        self.gravity = ti.Vector([0.0, -9.8])

    @ti.func
    def spring(self, i: ti.i32, j: ti.i32):
        d = self.x[i] - self.x[j]
        length = d.norm()
        return -self.stiffness * (length - self.rest[i, j]) * d / length

    @ti.kernel
    def add(self, px: ti.f64, py: ti.f64, connect: ti.i32):
        k = self.count[None]
        self.x[k] = [px, py]
        self.count[None] += 1
        if connect and k > 0:
            self.rest[k, k - 1] = 0.1
            self.rest[k - 1, k] = 0.1

    @ti.kernel
    def step(self, dt: float):
        n = self.count[None]
        for i in range(n):
            self.f[i] = self.gravity - self.damping * self.v[i]
            for j in range(n):
                if self.rest[i, j] != 0:
                    self.f[i] += self.spring(i, j)
        for i in range(1, n):
            self.v[i] += dt * self.f[i]
            self.x[i] += dt * self.v[i]


system = Springs(16)
for k in range(10):
    system.add(0.11 * k, 0.0, 1)
for _ in range(20):
    system.step(1e-3)
RESULT = {"x": system.x.to_numpy()[:10], "count": system.count[None]}

x = np.stack([0.11 * np.arange(10), np.zeros(10)], 1)
v = np.zeros_like(x)
for _ in range(20):
    f = np.array([0.0, -9.8]) - 0.5 * v
    for a, b in [(k, k - 1) for k in range(1, 10)] + [(k - 1, k) for k in range(1, 10)]:
        d = x[a] - x[b]
        f[a] += -50.0 * (np.linalg.norm(d) - 0.1) * d / np.linalg.norm(d)
    v[1:] += 1e-3 * f[1:]
    x[1:] += 1e-3 * v[1:]
EXPECTED = {"x": x, "count": 10}
