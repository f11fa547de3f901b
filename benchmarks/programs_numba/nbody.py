"""Gravity between 8,192 bodies, with scalars.

The flags are those that correspond to `fast_math` of spirograd. With `fastmath=True`, numba approximates 1 / (r sqrt(r)).
"""

import numba
import numpy as np

N = 8192
start = np.random.default_rng(0).random((N, 3), np.float32)
place = [np.ascontiguousarray(start[:, axis]) for axis in range(3)]
speed = [np.zeros(N, np.float32) for _ in range(3)]


def kick(px, py, pz, vx, vy, vz):
    one, softening, dt = np.float32(1.0), np.float32(1e-3), np.float32(1e-4)
    for i in numba.prange(px.size):
        x, y, z = px[i], py[i], pz[i]
        fx, fy, fz = np.float32(0.0), np.float32(0.0), np.float32(0.0)
        for j in range(px.size):
            dx, dy, dz = px[j] - x, py[j] - y, pz[j] - z
            r2 = dx * dx + dy * dy + dz * dz + softening
            w = one / (r2 * np.sqrt(r2))
            fx += w * dx
            fy += w * dy
            fz += w * dz
        vx[i] += dt * fx
        vy[i] += dt * fy
        vz[i] += dt * fz


exact = numba.njit(parallel=True, fastmath={"reassoc", "nsz", "contract"})(kick)
approximate = numba.njit(parallel=True, fastmath=True)(kick)

CASES = {
    "n-body 8192, scalars": (lambda: exact(*place, *speed), 1),
    "n-body 8192, scalars, approximate": (lambda: approximate(*place, *speed), 1),
}
