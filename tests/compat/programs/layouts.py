"""Memory layouts: nested dense trees, arrays of structures and structures of arrays, several fields in a tree, offsets, axis order, views."""

import numpy as np

import spirograd.compat.taichi as ti

ti.init(arch=ti.gpu)
a = ti.field(ti.f32)
b = ti.Vector.field(3, ti.f32)
c = ti.field(ti.i32)
blocks = ti.root.dense(ti.ij, (4, 3))
tile = blocks.dense(ti.ij, (2, 4))
tile.place(a, b)
ti.root.dense(ti.j, 12).dense(ti.i, 8).place(c)
shifted = ti.field(ti.f32, shape=(6, 6), offset=(-3, -3))
columns = ti.field(ti.f32, shape=(5, 7), order="ji")
soa = ti.Vector.field(2, ti.f32, shape=9, layout=ti.Layout.SOA)
scalar = ti.field(ti.f64, shape=())


@ti.kernel
def write():
    for i, j in a:
        a[i, j] = i * 100 + j
        b[i, j] = [i, j, i - j]
    for i, j in c:
        c[i, j] += i * 100 + j
    for i, j in shifted:
        shifted[i, j] = i * 10 + j
    for i, j in columns:
        columns[i, j] = i * 10 + j
    for i in soa:
        soa[i] = ti.Vector([i, -i])


@ti.kernel
def gather() -> ti.f32:
    s = 0.0
    for I in ti.grouped(b):
        s += b[I].sum()
    return s


write()
total = gather()
scalar[None] = 2.5
scalar[None] += 1
b[3, 5].y = 70.0
RESULT = {
    "a": a.to_numpy(), "b": b.to_numpy(), "c": c.to_numpy(), "shifted": shifted.to_numpy(), "one": shifted[-3, 2], "columns": columns.to_numpy(),
    "soa": soa.to_numpy(), "total": total, "scalar": scalar[None], "shape": a.shape, "cell": b[3, 5][1],
}  # fmt: skip
i, j = np.meshgrid(np.arange(8), np.arange(12), indexing="ij")
p, q = np.meshgrid(np.arange(-3, 3), np.arange(-3, 3), indexing="ij")
r, s = np.meshgrid(np.arange(5), np.arange(7), indexing="ij")
bb = np.stack([i, j, i - j], -1).astype("f4")
total = bb.sum()
bb[3, 5, 1] = 70
EXPECTED = {
    "a": i * 100 + j, "b": bb, "c": i * 100 + j, "shifted": p * 10 + q, "one": -28, "columns": r * 10 + s,
    "soa": np.stack([np.arange(9), -np.arange(9)], 1), "total": total, "scalar": 3.5, "shape": (8, 12), "cell": 70.0,
}  # fmt: skip
