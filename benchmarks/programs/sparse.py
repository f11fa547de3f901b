"""Sparse fields: loops over 1 % of 1024^3 in blocks of 8^3, 10M random activations, a step of the material point method on a sparse grid.

Particles: 65,536 in a cube that falls, grid of 256^3 in blocks of 4^3; after Hu et al., "A moving least squares material point method",
SIGGRAPH 2018.
"""

import numpy as np

import spirograd as sg

BLOCKS, RANDOM, PARTICLES, GRID = 128, 10_000_000, 65536, 256
DT, DX, INV_DX = 5e-5, 1.0 / GRID, float(GRID)
VOLUME = (DX * 0.5) ** 3

x, total = sg.field(sg.f32), sg.field(sg.f32, ())
blocks = sg.root.pointer(sg.ijk, (BLOCKS, BLOCKS, BLOCKS))
blocks.dense(sg.ijk, (8, 8, 8)).place(x)

y = sg.field(sg.f32)
scattered = sg.root.pointer(sg.ijk, (256, 256, 256))
scattered.dense(sg.ijk, (2, 2, 2)).place(y)

place, speed = sg.Vector.field(3, sg.f32, PARTICLES), sg.Vector.field(3, sg.f32, PARTICLES)
affine, grown = sg.Matrix.field(3, 3, sg.f32, PARTICLES), sg.field(sg.f32, PARTICLES)
mass, momentum = sg.field(sg.f32), sg.Vector.field(3, sg.f32)
grid = sg.root.pointer(sg.ijk, (GRID // 4, GRID // 4, GRID // 4))
grid.dense(sg.ijk, (4, 4, 4)).place(mass, momentum)


@sg.kernel
def activate(cells: sg.types.ndarray(sg.i32, 2)):
    for n in range(cells.shape[0]):
        x[cells[n, 0] * 8, cells[n, 1] * 8, cells[n, 2] * 8] = 1.0


@sg.kernel
def add():
    for i, j, k in x:
        x[i, j, k] += 1.0


@sg.kernel
def sum_all():
    for i, j, k in x:
        total[None] += x[i, j, k]


@sg.kernel
def scatter():
    for n in range(RANDOM):
        h = sg.cast(n, sg.u32) * sg.u32(2654435761)
        h = (h ^ (h >> 15)) * sg.u32(2246822519)
        h = (h ^ (h >> 13)) & sg.u32((1 << 24) - 1)
        i = sg.cast(h >> 16, sg.i32)
        j = sg.cast((h >> 8) & sg.u32(255), sg.i32)
        k = sg.cast(h & sg.u32(255), sg.i32)
        y[2 * i, 2 * j, 2 * k] = 1.0


@sg.kernel
def to_grid():
    for p in place:
        base = (place[p] * INV_DX - 0.5).cast(sg.i32)
        fx = place[p] * INV_DX - base.cast(sg.f32)
        w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
        stress = -DT * 4.0 * 400.0 * VOLUME * (grown[p] - 1.0) * INV_DX * INV_DX
        moved = sg.Matrix([[stress, 0.0, 0.0], [0.0, stress, 0.0], [0.0, 0.0, stress]]) + VOLUME * affine[p]
        for a, b, c in sg.static(sg.ndrange(3, 3, 3)):
            offset = sg.Vector([a, b, c])
            weight = w[a][0] * w[b][1] * w[c][2]
            away = (offset.cast(sg.f32) - fx) * DX
            momentum[base + offset] += weight * (VOLUME * speed[p] + moved @ away)
            mass[base + offset] += weight * VOLUME


@sg.kernel
def on_grid():
    for i, j, k in mass:
        if mass[i, j, k] > 0.0:
            v = momentum[i, j, k] / mass[i, j, k]
            v[1] -= DT * 9.8
            if j < 3 and v[1] < 0.0:
                v[1] = 0.0
            momentum[i, j, k] = v


@sg.kernel
def from_grid():
    for p in place:
        base = (place[p] * INV_DX - 0.5).cast(sg.i32)
        fx = place[p] * INV_DX - base.cast(sg.f32)
        w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
        new_v = sg.Vector([0.0, 0.0, 0.0])
        new_c = sg.Matrix([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
        for a, b, c in sg.static(sg.ndrange(3, 3, 3)):
            offset = sg.Vector([a, b, c])
            weight = w[a][0] * w[b][1] * w[c][2]
            away = (offset.cast(sg.f32) - fx) * DX
            v = momentum[base + offset]
            new_v += weight * v
            new_c += 4.0 * INV_DX * INV_DX * weight * v.outer_product(away)
        speed[p] = new_v
        place[p] += DT * new_v
        grown[p] *= 1.0 + DT * new_c.trace()
        affine[p] = new_c


def step():
    grid.deactivate_all()
    to_grid()
    on_grid()
    from_grid()


def activate_10m():
    scattered.deactivate_all()
    scatter()


rng = np.random.default_rng(0)
chosen = rng.choice(BLOCKS**3, BLOCKS**3 // 100, replace=False)
cells = sg.ndarray(sg.i32, (len(chosen), 3))
cells.from_numpy(np.stack(np.unravel_index(chosen, (BLOCKS,) * 3), 1).astype(np.int32))
activate(cells)
side = round(PARTICLES ** (1 / 3)) + 1
corner = np.indices((side,) * 3).reshape(3, -1).T[:PARTICLES] * 0.5 * DX
place.from_numpy((corner + 0.3).astype(np.float32))
grown.fill(1.0)

CASES = {
    "sparse: x[i, j, k] += 1": (add, 1),
    "sparse: sum": (sum_all, 1),
    "sparse: 10M activations": (activate_10m, 1),
    "sparse: step of MPM": (step, 1),
}
