"""Stable fluids: pairs of fields that are swapped, template arguments, bilinear sampling, Jacobi iterations, divergence."""

import numpy as np

import spirograd.compat.taichi as ti

ti.init(arch=ti.gpu)
RES = 24
DT = 0.03


class TexPair:
    def __init__(self, cur, nxt):
        self.cur = cur
        self.nxt = nxt

    def swap(self):
        self.cur, self.nxt = self.nxt, self.cur


velocities = TexPair(ti.Vector.field(2, float, shape=(RES, RES)), ti.Vector.field(2, float, shape=(RES, RES)))
pressures = TexPair(ti.field(float, shape=(RES, RES)), ti.field(float, shape=(RES, RES)))
divs = ti.field(float, shape=(RES, RES))


@ti.func
def sample(qf, u, v):
    at = ti.Vector([int(u), int(v)])
    at = ti.max(0, ti.min(RES - 1, at))
    return qf[at]


@ti.func
def lerp(vl, vr, frac):
    return vl + frac * (vr - vl)


@ti.func
def bilerp(vf, p):
    u, v = p
    s, t = u - 0.5, v - 0.5
    iu, iv = ti.floor(s), ti.floor(t)
    fu, fv = s - iu, t - iv
    a = sample(vf, iu, iv)
    b = sample(vf, iu + 1, iv)
    c = sample(vf, iu, iv + 1)
    d = sample(vf, iu + 1, iv + 1)
    return lerp(lerp(a, b, fu), lerp(c, d, fu), fv)


@ti.kernel
def advect(vf: ti.template(), qf: ti.template(), new_qf: ti.template()):
    for i, j in vf:
        p = ti.Vector([i, j]) + 0.5
        p -= DT * vf[i, j] * RES
        new_qf[i, j] = bilerp(qf, p)


@ti.kernel
def divergence(vf: ti.template()):
    for i, j in vf:
        vl = sample(vf, i - 1, j)
        vr = sample(vf, i + 1, j)
        vb = sample(vf, i, j - 1)
        vt = sample(vf, i, j + 1)
        vc = sample(vf, i, j)
        if i == 0:
            vl.x = -vc.x
        if i == RES - 1:
            vr.x = -vc.x
        if j == 0:
            vb.y = -vc.y
        if j == RES - 1:
            vt.y = -vc.y
        divs[i, j] = (vr.x - vl.x + vt.y - vb.y) * 0.5


@ti.kernel
def jacobi(pf: ti.template(), new_pf: ti.template()):
    for i, j in pf:
        pl, pr = sample(pf, i - 1, j), sample(pf, i + 1, j)
        pb, pt = sample(pf, i, j - 1), sample(pf, i, j + 1)
        new_pf[i, j] = (pl + pr + pb + pt - divs[i, j]) * 0.25


@ti.kernel
def subtract_gradient(vf: ti.template(), pf: ti.template()):
    for i, j in vf:
        pl, pr = sample(pf, i - 1, j), sample(pf, i + 1, j)
        pb, pt = sample(pf, i, j - 1), sample(pf, i, j + 1)
        vf[i, j] -= 0.5 * ti.Vector([pr - pl, pt - pb])


start = np.random.default_rng(5).normal(size=(RES, RES, 2)).astype("f4") * 0.3
velocities.cur.from_numpy(start)
for _ in range(2):
    advect(velocities.cur, velocities.cur, velocities.nxt)
    velocities.swap()
    divergence(velocities.cur)
    for _ in range(20):
        jacobi(pressures.cur, pressures.nxt)
        pressures.swap()
    subtract_gradient(velocities.cur, pressures.cur)
RESULT = {"v": velocities.cur.to_numpy(), "p": pressures.cur.to_numpy()}


def at(q, i, j):
    return q[np.clip(np.trunc(i).astype(int), 0, RES - 1), np.clip(np.trunc(j).astype(int), 0, RES - 1)]


i, j = np.meshgrid(np.arange(RES), np.arange(RES), indexing="ij")
v, p = start.astype("f8"), np.zeros((RES, RES))
for _ in range(2):
    s = np.stack([i, j], -1) - DT * v * RES
    floor = np.floor(s)
    f = s - floor
    a, b, c, d = (at(v, floor[..., 0] + x, floor[..., 1] + y) for x, y in ((0, 0), (1, 0), (0, 1), (1, 1)))
    low, high = a + f[..., :1] * (b - a), c + f[..., :1] * (d - c)
    v = low + f[..., 1:] * (high - low)
    vl, vr, vb, vt = at(v, i - 1, j), at(v, i + 1, j), at(v, i, j - 1), at(v, i, j + 1)
    vl, vr, vb, vt = vl[..., 0], vr[..., 0], vb[..., 1], vt[..., 1]
    vl, vr = np.where(i == 0, -v[..., 0], vl), np.where(i == RES - 1, -v[..., 0], vr)
    vb, vt = np.where(j == 0, -v[..., 1], vb), np.where(j == RES - 1, -v[..., 1], vt)
    div = (vr - vl + vt - vb) * 0.5
    for _ in range(20):
        p = (at(p, i - 1, j) + at(p, i + 1, j) + at(p, i, j - 1) + at(p, i, j + 1) - div) * 0.25
    v = v - 0.5 * np.stack([at(p, i + 1, j) - at(p, i - 1, j), at(p, i, j + 1) - at(p, i, j - 1)], -1)
EXPECTED = {"v": v, "p": p}
TOLERANCE = 2e-3
