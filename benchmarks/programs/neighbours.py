"""Sums over the neighbours of 27,000 particles, which lie sorted by cells of a grid: densities and forces of fluids by particles."""

import numpy as np

import spirograd as sg

SIDE, SPACING, RADIUS = 30, 0.02, 0.04
N, CELLS = SIDE**3, 24
rng = np.random.default_rng(0)
grid = np.stack(np.meshgrid(*[np.arange(SIDE)] * 3, indexing="ij"), -1).reshape(N, 3)
start = (SPACING * (grid + rng.uniform(-0.3, 0.3, grid.shape)) + 2 * RADIUS).astype(np.float32)
number = (start // np.float32(RADIUS)).astype(np.int64) @ [CELLS * CELLS, CELLS, 1]
order = np.argsort(number, kind="stable")

# Kinds of particles: 0 flows, 1 is a wall, 2 is a body that the others push.
kind, push = sg.field(sg.i32, N), sg.Vector.field(3, sg.f32, N)
kind.from_numpy(rng.choice(3, N, p=(0.9, 0.095, 0.005)).astype(np.int32))
position, force = sg.Vector.field(3, sg.f32, N), sg.Vector.field(3, sg.f32, N)
density = sg.field(sg.f32, N)
first, size = sg.field(sg.i32, CELLS**3), sg.field(sg.i32, CELLS**3)
counts = np.bincount(number, minlength=CELLS**3).astype(np.int32)
first.from_numpy((np.cumsum(counts) - counts).astype(np.int32))
size.from_numpy(counts)
position.from_numpy(start[order])


@sg.func
def weight(r: sg.f32) -> sg.f32:
    """The cubic spline."""
    q = r / RADIUS
    w = 0.0
    if q <= 1.0:
        if q <= 0.5:
            w = 6.0 * (q * q * q - q * q) + 1.0
        else:
            w = 2.0 * (1.0 - q) ** 3
    return w


@sg.func
def slope(d: sg.types.vector(3, sg.f32), r: sg.f32) -> sg.types.vector(3, sg.f32):
    """The gradient of the cubic spline."""
    q = r / RADIUS
    w = sg.Vector([0.0, 0.0, 0.0])
    if r > 1e-5 and q <= 1.0:
        g = d / (r * RADIUS)
        if q <= 0.5:
            w = 6.0 * q * (3.0 * q - 2.0) * g
        else:
            w = -6.0 * (1.0 - q) ** 2 * g
    return w


@sg.kernel
def densities():
    for i in range(N):
        total = 1.0
        cell = sg.floor(position[i] / RADIUS, sg.i32)
        for a, b, c in sg.ndrange((-1, 2), (-1, 2), (-1, 2)):
            k = (cell[0] + a) * CELLS * CELLS + (cell[1] + b) * CELLS + cell[2] + c
            for j in range(first[k], first[k] + size[k]):
                if i != j:
                    r = (position[i] - position[j]).norm()
                    if r < RADIUS:
                        total += weight(r)
        density[i] = total


@sg.kernel
def forces():
    for i in range(N):
        total = sg.Vector([0.0, 0.0, 0.0])
        cell = sg.floor(position[i] / RADIUS, sg.i32)
        for a, b, c in sg.ndrange((-1, 2), (-1, 2), (-1, 2)):
            k = (cell[0] + a) * CELLS * CELLS + (cell[1] + b) * CELLS + cell[2] + c
            for j in range(first[k], first[k] + size[k]):
                if i != j:
                    d = position[i] - position[j]
                    r = d.norm()
                    if r < RADIUS:
                        total += (1.0 / density[i] + 1.0 / density[j]) * slope(d, r)
        force[i] = total


@sg.kernel
def forces_of_kinds():
    for i in range(N):
        total = sg.Vector([0.0, 0.0, 0.0])
        if kind[i] == 0:
            cell = sg.floor(position[i] / RADIUS, sg.i32)
            for a, b, c in sg.ndrange((-1, 2), (-1, 2), (-1, 2)):
                k = (cell[0] + a) * CELLS * CELLS + (cell[1] + b) * CELLS + cell[2] + c
                for j in range(first[k], first[k] + size[k]):
                    if i != j and (position[i] - position[j]).norm() < RADIUS:
                        d = position[i] - position[j]
                        if kind[j] == 0:
                            total += (1.0 / density[i] + 1.0 / density[j]) * slope(d, d.norm())
                        else:
                            f = 2.0 / density[i] * slope(d, d.norm())
                            total += f
                            if kind[j] == 2:
                                push[j] -= f
        force[i] = total


densities()
CASES = {"neighbours, density": (densities, 1), "neighbours, force": (forces, 1), "neighbours, kinds": (forces_of_kinds, 1)}
