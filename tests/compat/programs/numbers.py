"""Arithmetic corner cases that programs rely on: floor division, modulo, shifts, casts, wrap-around, powers, ternaries, chained comparison."""

import numpy as np

import spirograd.compat.taichi as ti

ti.init(arch=ti.cpu)
n = 41
out = ti.field(ti.i32, shape=(n, 8))
real = ti.field(ti.f32, shape=(n, 8))
word = ti.field(ti.u32, shape=n)


@ti.kernel
def integers():
    for k in range(n):
        x = k - 20
        out[k, 0] = x // 7
        out[k, 1] = x % 7
        out[k, 2] = x // -3
        out[k, 3] = x % -3
        out[k, 4] = (x << 2) ^ (x >> 1)
        out[k, 5] = ti.raw_div(x, 7) if x != 3 else 99
        out[k, 6] = -5 <= x < 5
        out[k, 7] = ti.select(x > 0, 1, 0) - ti.select(x < 0, 1, 0)


@ti.kernel
def reals():
    for k in range(n):
        x = (k - 20) * 0.37
        real[k, 0] = x // 1.5
        real[k, 1] = x % 1.5
        real[k, 2] = ti.cast(x, ti.i32)
        real[k, 3] = ti.floor(x) + ti.ceil(x) + ti.round(x)
        real[k, 4] = abs(x) ** 1.5
        real[k, 5] = max(min(x, 3.0), -2.0)
        real[k, 6] = ti.atan2(x, 2.0)
        real[k, 7] = x**3 + k / 4


@ti.kernel
def hash32():
    for k in word:
        x = ti.cast(k, ti.u32)
        x = (x ^ 61) ^ (x >> 16)
        x = x * 9
        x = x ^ (x >> 4)
        x = x * ti.u32(0x27D4EB2D)
        x = x ^ (x >> 15)
        word[k] = x


integers()
reals()
hash32()
x = np.arange(n) - 20
f = ((np.arange(n) - 20) * np.float32(0.37)).astype("f4")
h = np.arange(n).astype("u4")
h = (h ^ np.uint32(61)) ^ (h >> np.uint32(16))
h = h * np.uint32(9)
h = h ^ (h >> np.uint32(4))
h = h * np.uint32(0x27D4EB2D)
h = h ^ (h >> np.uint32(15))
RESULT = {"integers": out.to_numpy(), "reals": real.to_numpy(), "hash": word.to_numpy()}
EXPECTED = {
    "integers": np.stack(
        [x // 7, x % 7, x // -3, x % -3, (x << 2) ^ (x >> 1), np.where(x != 3, np.trunc(x / 7), 99), (x >= -5) & (x < 5), np.sign(x)], 1
    ),
    "reals": np.stack(
        [
            f // 1.5, f % 1.5, np.trunc(f), np.floor(f) + np.ceil(f) + np.round(f), np.abs(f) ** 1.5, np.clip(f, -2, 3), np.arctan2(f, 2),
            f.astype("f8") ** 3 + np.arange(n) / 4,
        ],
        1,
    ),
    "hash": h,
}  # fmt: skip
