"""Structs in and out: dataclass arguments, struct and matrix arguments and results, nested structs, arithmetic on their members."""

import numpy as np

import spirograd.compat.taichi as ti

ti.init(arch=ti.cpu)
vec2 = ti.types.vector(2, ti.f32)
mat2 = ti.types.matrix(2, 2, ti.f32)
Particle = ti.types.struct(pos=vec2, vel=vec2, mass=ti.f32)
Pair = ti.types.struct(a=Particle, b=Particle)
particles = Particle.field(shape=8)


@ti.kernel
def push(p: Particle, dt: ti.f32) -> Particle:
    q = p
    q.pos += dt * p.vel
    return q


@ti.kernel
def rotate(m: mat2, v: vec2) -> vec2:
    return m @ v


@ti.kernel
def fill(p: Particle):
    for i in particles:
        particles[i] = p
        particles[i].mass = i * p.mass


@ti.func
def centre(p: ti.template()):
    return (p.a.pos * p.a.mass + p.b.pos * p.b.mass) / (p.a.mass + p.b.mass)


@ti.kernel
def pair_centre() -> vec2:
    pair = Pair(a=particles[1], b=particles[3])
    return centre(pair)


@ti.kernel
def inverse(m: mat2) -> mat2:
    return m.inverse()


p = Particle(pos=[1.0, 2.0], vel=[0.5, -1.0], mass=2.0)
q = push(p, 0.5)
fill(p)
particles[3].pos = [3.0, 4.0]
r = rotate(mat2([[0, -1], [1, 0]]), vec2(3, 4))
inv = inverse(ti.Matrix([[2.0, 1.0], [1.0, 1.0]]))
c = pair_centre()
RESULT = {
    "q": np.array([q.pos[0], q.pos[1], q.vel[0], q.mass]), "r": np.array([r[0], r[1]]), "mass": particles.mass.to_numpy(),
    "c": np.array([c.x, c.y]), "inv": inv.to_numpy(),
}  # fmt: skip
EXPECTED = {"q": [1.25, 1.5, 0.5, 2.0], "r": [-4, 3], "mass": 2.0 * np.arange(8), "c": [2.5, 3.5], "inv": [[1, -1], [-1, 2]]}
