"""Bodies that attract each other: vector fields, `ti.static` constants, reduction of energy, symplectic steps."""

import numpy as np

import spirograd.compat.taichi as ti

ti.init(arch=ti.gpu)
N = 48
SOFTENING = 0.1
DT = 1e-3
pos = ti.Vector.field(3, ti.f32, shape=N)
vel = ti.Vector.field(3, ti.f32, shape=N)
force = ti.Vector.field(3, ti.f32, N)
mass = ti.field(ti.f32, N)


@ti.kernel
def compute_force():
    for i in range(N):
        force[i] = ti.Vector([0.0, 0.0, 0.0])
    for i in range(N):
        p = pos[i]
        for j in range(N):
            if i != j:
                d = pos[j] - p
                r = ti.sqrt(d.dot(d) + SOFTENING**2)
                force[i] += mass[i] * mass[j] * d / r**3


@ti.kernel
def update():
    dt = ti.static(DT)
    for i in pos:
        vel[i] += dt * force[i] / mass[i]
        pos[i] += dt * vel[i]


@ti.kernel
def kinetic() -> ti.f32:
    total = 0.0
    for i in range(N):
        total += 0.5 * mass[i] * vel[i].norm_sqr()
    return total


rng = np.random.default_rng(2)
p, v, m = rng.random((N, 3)).astype("f4"), rng.normal(size=(N, 3)).astype("f4"), (rng.random(N) + 0.5).astype("f4")
pos.from_numpy(p)
vel.from_numpy(v)
mass.from_numpy(m)
for _ in range(5):
    compute_force()
    update()
RESULT = {"pos": pos.to_numpy(), "vel": vel.to_numpy(), "kinetic": kinetic()}

for _ in range(5):
    d = p[None] - p[:, None]
    r = np.sqrt((d**2).sum(-1) + SOFTENING**2)
    v = v + DT * (m[None, :, None] * d / r[..., None] ** 3).sum(1)
    p = p + DT * v
EXPECTED = {"pos": p, "vel": v, "kinetic": (0.5 * m * (v**2).sum(1)).sum()}
