"""Differentiable mpm88 for any package of the family: steps of particles, and the gradient of where they land with respect to the start.

Every step has particles and grids of its own, so that nothing that the reverse needs is overwritten. Imports nothing but NumPy, since the
processes of peers import it.
"""

import numpy as np

GRID, DT, STIFFNESS, GRAVITY, BOUND = 128, 2e-4, 400, 9.8, 3
DX, VOLUME = 1 / GRID, (0.5 / GRID) ** 2
TARGET = (0.7, 0.6)


def particles(n):
    """Where the particles start."""
    return np.random.default_rng(0).random((n, 2), np.float32) * np.float32(0.4) + np.float32(0.2)


class Simulation:
    """``steps`` steps of ``n`` particles in the language of ``sg``: positions `x` of all steps, and the `loss` of the last ones."""

    def __init__(self, sg, n, steps):
        self.x, self._v = (sg.Vector.field(2, sg.f32, (steps + 1, n), needs_grad=True) for _ in range(2))
        self._C, self._J = sg.Matrix.field(2, 2, sg.f32, (steps + 1, n), needs_grad=True), sg.field(sg.f32, (steps + 1, n), needs_grad=True)
        self._grid_p, self._grid_v = (sg.Vector.field(2, sg.f32, (steps, GRID, GRID), needs_grad=True) for _ in range(2))
        self._grid_m = sg.field(sg.f32, (steps, GRID, GRID), needs_grad=True)
        self.loss = sg.field(sg.f32, (), needs_grad=True)
        self._sg, self._steps = sg, steps
        self._scatter, self._gather = self._scattering(n), self._gathering(n)
        self._move_grid, self._measure = self._moving(), self._measuring(n, steps)
        self.x.from_numpy(np.broadcast_to(particles(n), (steps + 1, n, 2)).copy())
        self._J.fill(1)
        self._v.fill(1)

    def forward(self):
        self._clear()
        self._run()

    def gradient(self):
        self._clear()
        with self._sg.ad.Tape(self.loss):
            self._run()

    def _clear(self):
        self._grid_p.fill(0)
        self._grid_m.fill(0)
        self.loss.fill(0)

    def _run(self):
        for t in range(self._steps):
            self._scatter(t)
            self._move_grid(t)
            self._gather(t)
        self._measure()

    def _scattering(self, n):
        sg, x, v, C, J, grid_p, grid_m = self._sg, self.x, self._v, self._C, self._J, self._grid_p, self._grid_m

        @sg.kernel
        def scatter(t: sg.i32):
            for p in range(n):
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

        return scatter

    def _moving(self):
        sg, grid_p, grid_v, grid_m = self._sg, self._grid_p, self._grid_v, self._grid_m

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

        return move_grid

    def _gathering(self, n):
        sg, x, v, C, J, grid_v = self._sg, self.x, self._v, self._C, self._J, self._grid_v

        @sg.kernel
        def gather(t: sg.i32):
            for p in range(n):
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

        return gather

    def _measuring(self, n, steps):
        sg, x, loss = self._sg, self.x, self.loss

        @sg.kernel
        def measure():
            for p in range(n):
                d = x[steps, p] - sg.Vector([TARGET[0], TARGET[1]])
                loss[None] += d.dot(d) / n

        return measure
