"""Neighbours on a grid of cells, as in SPH: atomic counters whose old value is a slot, lists in a field, nested loops with bounds from memory."""

import numpy as np

import spirograd.compat.taichi as ti

ti.init(arch=ti.cpu)
N = 300
CELL = 0.1
GRID = 10
MAX = 32
pos = ti.Vector.field(2, ti.f32, shape=N)
density = ti.field(ti.f32, shape=N)
found = ti.field(ti.i32, shape=N)
counts = ti.field(ti.i32)
lists = ti.field(ti.i32)
cells = ti.root.dense(ti.ij, (GRID, GRID))
cells.place(counts)
cells.dense(ti.k, MAX).place(lists)


@ti.func
def cell_of(p):
    return (p / CELL).cast(int)


@ti.func
def is_in_grid(c):
    return 0 <= c[0] < GRID and c[1] >= 0 and c[1] < GRID


@ti.func
def poly6(r, h):
    result = 0.0
    if 0 < r < h:
        t = (h * h - r * r) / (h * h * h)
        result = 315.0 / 64.0 / 3.14159265 * t * t * t
    return result


@ti.kernel
def build():
    for I in ti.grouped(counts):
        counts[I] = 0
    for p in pos:
        cell = cell_of(pos[p])
        slot = ti.atomic_add(counts[cell], 1)
        if slot < MAX:
            lists[cell, slot] = p


@ti.kernel
def measure():
    for p in pos:
        centre = cell_of(pos[p])
        total = 0.0
        n = 0
        for offset in ti.grouped(ti.ndrange((-1, 2), (-1, 2))):
            cell = centre + offset
            if is_in_grid(cell):
                for s in range(counts[cell]):
                    q = lists[cell, s]
                    r = (pos[p] - pos[q]).norm()
                    if q != p and r < CELL:
                        n += 1
                        total += poly6(r, CELL)
        density[p] = total
        found[p] = n


start = np.random.default_rng(4).random((N, 2)).astype("f4")
pos.from_numpy(start)
build()
measure()
RESULT = {"density": density.to_numpy(), "found": found.to_numpy(), "counted": counts.to_numpy().sum()}
r = np.linalg.norm(start[None] - start[:, None], axis=-1) + 10 * np.eye(N)
t = (CELL**2 - r**2) / CELL**3
EXPECTED = {"density": np.where(r < CELL, 315 / 64 / np.pi * t**3, 0).sum(1), "found": (r < CELL).sum(1), "counted": N}
TOLERANCE = 1e-3
