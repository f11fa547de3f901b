"""Sums in many ways: reductions of all types, prefix sums, histograms, extremes by atomics, returned vectors."""

import numpy as np

import spirograd.compat.taichi as ti

ti.init(arch=ti.cpu)
n = 1000
a = ti.field(ti.i32, shape=n)
f = ti.field(ti.f32, shape=n)
bins = ti.field(ti.i32, shape=16)
total = ti.field(ti.i64, shape=())
ends = ti.field(ti.i32, shape=2)


@ti.kernel
def histogram():
    for i in a:
        ti.atomic_add(bins[a[i] % 16], 1)


@ti.kernel
def total_of() -> ti.i32:
    s = 0
    for i in range(n):
        s += a[i]
    return s


@ti.kernel
def extremes():
    ends[0] = 2**31 - 1
    ends[1] = -(2**31)
    for i in a:
        ti.atomic_min(ends[0], a[i])
        ti.atomic_max(ends[1], a[i])


@ti.kernel
def total64():
    for i in a:
        total[None] += ti.cast(a[i], ti.i64) * 1000000


@ti.kernel
def moments() -> ti.types.vector(2, ti.f32):
    s = ti.Vector([0.0, 0.0])
    for i in f:
        s += ti.Vector([f[i], f[i] ** 2])
    return s / n


@ti.kernel
def scan(data: ti.template()):
    ti.loop_config(serialize=True)
    for i in range(1, n):
        data[i] += data[i - 1]


values = np.random.default_rng(6).integers(0, 1000, n).astype("i4")
floats = np.random.default_rng(7).random(n).astype("f4")
a.from_numpy(values)
f.from_numpy(floats)
histogram()
extremes()
total64()
sums = total_of()
both = moments()
scan(a)
RESULT = {
    "bins": bins.to_numpy(), "sum": sums, "ends": ends.to_numpy(), "total": total[None], "moments": np.array([both[0], both[1]]), "scan": a.to_numpy(),
}  # fmt: skip
EXPECTED = {
    "bins": np.bincount(values % 16, minlength=16), "sum": values.sum(), "ends": [values.min(), values.max()],
    "total": values.astype("i8").sum() * 1000000, "moments": [floats.mean(), (floats.astype("f8") ** 2).mean()], "scan": np.cumsum(values),
}  # fmt: skip
