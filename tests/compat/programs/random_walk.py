"""Random numbers: walks, pi by throwing darts, normal deviates; their statistics, as the streams differ between implementations."""

import numpy as np

import spirograd.compat.taichi as ti

ti.init(arch=ti.cpu, random_seed=1)
N = 20000
ends = ti.field(ti.f32, N)
draws = ti.field(ti.f32, N)


@ti.kernel
def walk():
    for i in range(N):
        x = 0.0
        for _ in range(16):
            x += 1.0 if ti.random() < 0.5 else -1.0
        ends[i] = x


@ti.kernel
def darts() -> ti.f32:
    inside = 0
    for _ in range(N):
        p = ti.Vector([ti.random(), ti.random()])
        if p.norm() <= 1.0:
            inside += 1
    return 4 * inside / N


@ti.kernel
def normal():
    for i in draws:
        draws[i] = ti.randn()


walk()
normal()
pi = darts()
e, d = ends.to_numpy(), draws.to_numpy()
RESULT = {
    "even": float((e % 2 == 0).all()), "mean": float(abs(e.mean()) < 0.15), "variance": float(abs(e.var() - 16) < 0.8), "pi": float(abs(pi - np.pi) < 0.06),
    "normal": float(abs(d.mean()) < 0.04 and abs(d.std() - 1) < 0.03 and abs((d**3).mean()) < 0.12),
}  # fmt: skip
EXPECTED = dict.fromkeys(RESULT, 1.0)
