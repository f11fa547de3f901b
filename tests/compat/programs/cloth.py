"""Cloth: a struct type with methods in fields, offsets to neighbours as compile-time lists, masked conditions."""

import numpy as np

import spirograd.compat.taichi as ti

ti.init(arch=ti.gpu)
n = 12
dt = 4e-3
links = [[-1, 0], [1, 0], [0, -1], [0, 1]]
links = [ti.Vector(v) for v in links]


@ti.dataclass
class Node:
    x: ti.math.vec3
    v: ti.math.vec3
    pinned: ti.i32

    @ti.func
    def energy(self):
        return 0.5 * self.v.dot(self.v)


nodes = Node.field(shape=(n, n))
energy = ti.field(ti.f32, ())


@ti.kernel
def setup():
    for i, j in nodes:
        nodes[i, j].x = ti.Vector([i / n, 0.5, j / n])
        nodes[i, j].v = ti.Vector([0.0, 0.0, 0.0])
        nodes[i, j].pinned = 1 if j == 0 else 0


@ti.kernel
def step():
    for I in ti.grouped(nodes):
        node = nodes[I]
        force = ti.Vector([0.0, -9.8, 0.0])
        for d in ti.static(links):
            other = min(max(I + d, 0), [n - 1, n - 1])
            rel = nodes[other].x - node.x
            dist = rel.norm()
            if dist > 0:
                force += 100.0 * (dist - 1 / n) * rel.normalized()
        if node.pinned == 0:
            nodes[I].v += force * dt
    for I in ti.grouped(nodes):
        nodes[I].x += dt * nodes[I].v


@ti.kernel
def measure():
    for I in ti.grouped(nodes):
        energy[None] += nodes[I].energy()


setup()
for _ in range(5):
    step()
measure()
RESULT = {"x": nodes.x.to_numpy(), "energy": energy[None], "pinned": nodes.pinned.to_numpy()}

i, j = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
x = np.stack([i / n, np.full(i.shape, 0.5), j / n], -1)
v = np.zeros_like(x)
for _ in range(5):
    force = np.zeros_like(x)
    force[..., 1] = -9.8
    for a, b in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        rel = x[np.clip(i + a, 0, n - 1), np.clip(j + b, 0, n - 1)] - x
        dist = np.linalg.norm(rel, axis=-1, keepdims=True)
        force += np.where(dist > 0, 100 * (dist - 1 / n) * rel / np.maximum(dist, 1e-9), 0)
    v[:, 1:] += force[:, 1:] * dt
    x = x + dt * v
EXPECTED = {"x": x, "energy": 0.5 * (v**2).sum(), "pinned": (j == 0)}
TOLERANCE = 1e-3
