"""The material point method in 88 lines: a step of 8,192 particles, and compiling it."""

import numpy as np

import spirograd as sg

N, GRID = 8192, 128
DX, DT, VOLUME, GRAVITY, BOUND, STIFFNESS = 1 / GRID, 2e-4, (0.5 / GRID) ** 2, 9.8, 3, 400
x, v = sg.Vector.field(2, sg.f32, N), sg.Vector.field(2, sg.f32, N)
C, J = sg.Matrix.field(2, 2, sg.f32, N), sg.field(sg.f32, N)
grid_v, grid_m = sg.Vector.field(2, sg.f32, (GRID, GRID)), sg.field(sg.f32, (GRID, GRID))


def make():
    """A new kernel, which the first call compiles."""

    @sg.kernel
    def substep():
        for i, j in grid_m:
            grid_v[i, j] = [0, 0]
            grid_m[i, j] = 0
        for p in x:
            base = sg.cast(x[p] / DX - 0.5, sg.i32)
            fx = x[p] / DX - base
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
            stress = -DT * 4 * STIFFNESS * VOLUME * (J[p] - 1) / DX**2
            affine = sg.Matrix([[stress, 0], [0, stress]]) + VOLUME * C[p]
            for i, j in sg.static(sg.ndrange(3, 3)):
                offset = sg.Vector([i, j])
                weight = w[i].x * w[j].y
                grid_v[base + offset] += weight * (VOLUME * v[p] + affine @ ((offset - fx) * DX))
                grid_m[base + offset] += weight * VOLUME
        for i, j in grid_m:
            if grid_m[i, j] > 0:
                grid_v[i, j] /= grid_m[i, j]
            grid_v[i, j].y -= DT * GRAVITY
            if i < BOUND and grid_v[i, j].x < 0:
                grid_v[i, j].x = 0
            if i > GRID - BOUND and grid_v[i, j].x > 0:
                grid_v[i, j].x = 0
            if j < BOUND and grid_v[i, j].y < 0:
                grid_v[i, j].y = 0
            if j > GRID - BOUND and grid_v[i, j].y > 0:
                grid_v[i, j].y = 0
        for p in x:
            base = sg.cast(x[p] / DX - 0.5, sg.i32)
            fx = x[p] / DX - base
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
            new_v, new_C = sg.Vector.zero(sg.f32, 2), sg.Matrix.zero(sg.f32, 2, 2)
            for i, j in sg.static(sg.ndrange(3, 3)):
                offset = sg.Vector([i, j])
                weight = w[i].x * w[j].y
                g = grid_v[base + offset]
                new_v += weight * g
                new_C += 4 * weight * g.outer_product((offset - fx) * DX) / DX**2
            v[p] = new_v
            x[p] += DT * new_v
            J[p] *= 1 + DT * new_C.trace()
            C[p] = new_C

    return substep


x.from_numpy(np.random.default_rng(0).random((N, 2), np.float32) * 0.4 + 0.2)
J.fill(1)
step = make()
CASES = {"mpm88 step": (step, 20), "compile mpm88": (lambda: make()(), 1)}
