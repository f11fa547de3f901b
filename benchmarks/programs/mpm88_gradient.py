"""Differentiable mpm88: 64 steps of 8,192 particles, and the gradient of where they land with respect to how they start.

Every step has particles and grids of its own, so that nothing that the reverse needs is overwritten.
"""

import numpy as np

import spirograd as sg

N, GRID, STEPS = 8192, 128, 64
DX, DT, VOLUME, GRAVITY, BOUND, STIFFNESS = 1 / GRID, 2e-4, (0.5 / GRID) ** 2, 9.8, 3, 400
x, v = (sg.Vector.field(2, sg.f32, (STEPS + 1, N), needs_grad=True) for _ in range(2))
C, J = sg.Matrix.field(2, 2, sg.f32, (STEPS + 1, N), needs_grad=True), sg.field(sg.f32, (STEPS + 1, N), needs_grad=True)
grid_p, grid_v = (sg.Vector.field(2, sg.f32, (STEPS, GRID, GRID), needs_grad=True) for _ in range(2))
grid_m = sg.field(sg.f32, (STEPS, GRID, GRID), needs_grad=True)
loss = sg.field(sg.f32, (), needs_grad=True)


@sg.kernel
def scatter(t: sg.i32):
    for p in range(N):
        base = sg.cast(x[t, p] / DX - 0.5, sg.i32)
        fx = x[t, p] / DX - base
        w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
        stress = -DT * 4 * STIFFNESS * VOLUME * (J[t, p] - 1) / DX**2
        affine = sg.Matrix([[stress, 0.0], [0.0, stress]]) + VOLUME * C[t, p]
        for i, j in sg.static(sg.ndrange(3, 3)):
            offset = sg.Vector([i, j])
            weight = w[i].x * w[j].y
            grid_p[t, base + offset] += weight * (VOLUME * v[t, p] + affine @ ((offset - fx) * DX))
            grid_m[t, base + offset] += weight * VOLUME


@sg.kernel
def move_grid(t: sg.i32):
    for i, j in sg.ndrange(GRID, GRID):
        if grid_m[t, i, j] > 0:
            new_v = grid_p[t, i, j] / grid_m[t, i, j]
            new_v.y -= DT * GRAVITY
            if i < BOUND and new_v.x < 0:
                new_v.x = 0.0
            if i > GRID - BOUND and new_v.x > 0:
                new_v.x = 0.0
            if j < BOUND and new_v.y < 0:
                new_v.y = 0.0
            if j > GRID - BOUND and new_v.y > 0:
                new_v.y = 0.0
            grid_v[t, i, j] = new_v


@sg.kernel
def gather(t: sg.i32):
    for p in range(N):
        base = sg.cast(x[t, p] / DX - 0.5, sg.i32)
        fx = x[t, p] / DX - base
        w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
        new_v, new_C = sg.Vector.zero(sg.f32, 2), sg.Matrix.zero(sg.f32, 2, 2)
        for i, j in sg.static(sg.ndrange(3, 3)):
            offset = sg.Vector([i, j])
            weight = w[i].x * w[j].y
            g = grid_v[t, base + offset]
            new_v += weight * g
            new_C += 4 * weight * g.outer_product((offset - fx) * DX) / DX**2
        v[t + 1, p] = new_v
        x[t + 1, p] = x[t, p] + DT * new_v
        J[t + 1, p] = J[t, p] * (1 + DT * new_C.trace())
        C[t + 1, p] = new_C


@sg.kernel
def measure():
    for p in range(N):
        d = x[STEPS, p] - sg.Vector([0.7, 0.6])
        loss[None] += d.dot(d) / N


def clear():
    grid_p.fill(0)
    grid_m.fill(0)
    loss.fill(0)


def run():
    for t in range(STEPS):
        scatter(t)
        move_grid(t)
        gather(t)
    measure()


def forward():
    clear()
    run()


def gradient():
    clear()
    with sg.ad.Tape(loss):
        run()


x.from_numpy(np.random.default_rng(0).random((STEPS + 1, N, 2), np.float32) * 0.4 + 0.2)
J.fill(1)
v.fill(1)
CASES = {"mpm88 64 steps": (forward, 1), "mpm88 64 steps, gradient": (gradient, 1)}
RATIOS = {"mpm88, gradient / forward": ("mpm88 64 steps, gradient", "mpm88 64 steps")}
