"""Arrays of NumPy in kernels: matrix multiplication with run-time extents, bubble and odd-even sorting, transposition, in place."""

import numpy as np

import spirograd.compat.taichi as ti

ti.init(arch=ti.cpu)


@ti.kernel
def matmul(a: ti.types.ndarray(dtype=ti.f32, ndim=2), b: ti.types.ndarray(dtype=ti.f32, ndim=2), c: ti.types.ndarray(dtype=ti.f32, ndim=2)):
    for i, j in ti.ndrange(a.shape[0], b.shape[1]):
        s = 0.0
        for k in range(a.shape[1]):
            s += a[i, k] * b[k, j]
        c[i, j] = s


@ti.kernel
def odd_even(x: ti.types.ndarray(), parity: ti.i32):
    for k in range((x.shape[0] - parity) // 2):
        i = 2 * k + parity
        if i + 1 < x.shape[0] and x[i] > x[i + 1]:
            x[i], x[i + 1] = x[i + 1], x[i]


@ti.kernel
def bubble(x: ti.types.ndarray(ti.i32, 1)) -> ti.i32:
    swaps = 0
    n = x.shape[0]
    ti.loop_config(serialize=True)
    for i in range(n):
        for j in range(n - 1 - i):
            if x[j] > x[j + 1]:
                t = x[j]
                x[j] = x[j + 1]
                x[j + 1] = t
                swaps += 1
    return swaps


@ti.kernel
def transpose(a: ti.types.ndarray(), b: ti.types.ndarray()):
    for I in ti.grouped(a):
        b[I[1], I[0]] = a[I]


rng = np.random.default_rng(8)
a, b = rng.random((17, 23)).astype("f4"), rng.random((23, 11)).astype("f4")
c = np.zeros((17, 11), "f4")
matmul(a, b, c)
x = rng.integers(0, 1000, 63).astype("i4")
y, z = x.copy(), x.copy()
for k in range(64):
    odd_even(y, k % 2)
swaps = bubble(z)
t = np.zeros((23, 17), "f4")
transpose(a, t)
device = ti.ndarray(ti.f32, shape=(17, 11))
matmul(a, b, device)
RESULT = {"c": c, "y": y, "z": z, "t": t, "swaps": swaps, "device": device.to_numpy()}
inversions = sum(int((x[k + 1 :] < x[k]).sum()) for k in range(len(x)))
EXPECTED = {"c": a @ b, "y": np.sort(x), "z": np.sort(x), "t": a.T, "swaps": inversions, "device": a @ b}
