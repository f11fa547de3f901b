"""An elastic and a snow material by MLS-MPM, as in the well-known program: singular values in the kernel, materials as integers, dense grids."""

import numpy as np

import spirograd.compat.taichi as ti

ti.init(arch=ti.gpu)
n, n_grid, dt = 400, 32, 1e-4
dx, inv_dx = 1 / n_grid, float(n_grid)
p_vol, p_rho = (dx * 0.5) ** 2, 1
p_mass = p_vol * p_rho
E, nu = 5e3, 0.2
mu_0, lambda_0 = E / (2 * (1 + nu)), E * nu / ((1 + nu) * (1 - 2 * nu))
x = ti.Vector.field(2, dtype=float, shape=n)
v = ti.Vector.field(2, dtype=float, shape=n)
C = ti.Matrix.field(2, 2, dtype=float, shape=n)
F = ti.Matrix.field(2, 2, dtype=float, shape=n)
material = ti.field(dtype=int, shape=n)
Jp = ti.field(dtype=float, shape=n)
grid_v = ti.Vector.field(2, dtype=float, shape=(n_grid, n_grid))
grid_m = ti.field(dtype=float, shape=(n_grid, n_grid))


@ti.kernel
def substep():
    for i, j in grid_m:
        grid_v[i, j] = [0, 0]
        grid_m[i, j] = 0
    for p in x:
        base = (x[p] * inv_dx - 0.5).cast(int)
        fx = x[p] * inv_dx - base.cast(float)
        w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
        F[p] = (ti.Matrix.identity(float, 2) + dt * C[p]) @ F[p]
        h = ti.max(0.1, ti.min(5, ti.exp(10 * (1.0 - Jp[p]))))
        if material[p] == 1:
            h = 0.3
        mu, la = mu_0 * h, lambda_0 * h
        U, sig, V = ti.svd(F[p])
        J = 1.0
        for d in ti.static(range(2)):
            new_sig = sig[d, d]
            if material[p] == 2:
                new_sig = ti.min(ti.max(sig[d, d], 1 - 2.5e-2), 1 + 4.5e-3)
            Jp[p] *= sig[d, d] / new_sig
            sig[d, d] = new_sig
            J *= new_sig
        if material[p] == 2:
            F[p] = U @ sig @ V.transpose()
        stress = 2 * mu * (F[p] - U @ V.transpose()) @ F[p].transpose() + ti.Matrix.identity(float, 2) * la * J * (J - 1)
        stress = (-dt * p_vol * 4 * inv_dx * inv_dx) * stress
        affine = stress + p_mass * C[p]
        for i, j in ti.static(ti.ndrange(3, 3)):
            offset = ti.Vector([i, j])
            dpos = (offset.cast(float) - fx) * dx
            weight = w[i][0] * w[j][1]
            grid_v[base + offset] += weight * (p_mass * v[p] + affine @ dpos)
            grid_m[base + offset] += weight * p_mass
    for i, j in grid_m:
        if grid_m[i, j] > 0:
            grid_v[i, j] = (1 / grid_m[i, j]) * grid_v[i, j]
            if i < 3 and grid_v[i, j][0] < 0:
                grid_v[i, j][0] = 0
            if i > n_grid - 3 and grid_v[i, j][0] > 0:
                grid_v[i, j][0] = 0
    for p in x:
        base = (x[p] * inv_dx - 0.5).cast(int)
        fx = x[p] * inv_dx - base.cast(float)
        w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
        new_v = ti.Vector.zero(float, 2)
        new_C = ti.Matrix.zero(float, 2, 2)
        for i, j in ti.static(ti.ndrange(3, 3)):
            g_v = grid_v[base + ti.Vector([i, j])]
            weight = w[i][0] * w[j][1]
            new_v += weight * g_v
            new_C += 4 * inv_dx * weight * g_v.outer_product(ti.Vector([i, j]).cast(float) - fx)
        v[p], C[p] = new_v, new_C
        x[p] += dt * v[p]


rng = np.random.default_rng(11)
start = rng.random((n, 2)) * 0.3 + 0.35
x.from_numpy(start.astype("f4"))
# Everything turns and is stretched: momentum and angular momentum stay as they are, volumes do not collapse.
v.from_numpy(((start - 0.5) @ np.array([[0.5, 2.0], [-2.0, 0.5]])).astype("f4"))
F.from_numpy(np.tile(np.array([[1.05, 0.1], [0.0, 1.0]], "f4"), (n, 1, 1)))
material.from_numpy(np.arange(n, dtype="i4") % 2 + 1)
Jp.fill(1)
p0 = v.to_numpy().mean(0)
for _ in range(20):
    substep()
singular = np.linalg.svd(F.to_numpy()[1::2].astype("f8"), compute_uv=False)
RESULT = {
    "momentum": v.to_numpy().mean(0) + 1,
    "mass": grid_m.to_numpy().sum() / (n * p_mass),
    "snow within its limits": float(singular.min() > 1 - 2.6e-2 and singular.max() < 1 + 4.6e-3 + 1e-3 * 40),
    "finite": float(np.isfinite(x.to_numpy()).all()),
}
EXPECTED = {"momentum": p0 + 1, "mass": 1.0, "snow within its limits": 1.0, "finite": 1.0}
TOLERANCE = 1e-3
