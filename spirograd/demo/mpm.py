"""A fluid in two dimensions by the moving least squares material point method (MLS-MPM).

Method: Hu, Fang, Ge, Qu, Zhu, Pradhana, Jiang, "A moving least squares material point method with displacement discontinuity and
two-way rigid body coupling", ACM Transactions on Graphics 37(4), 2018; with quadratic B-splines, affine velocities (APIC) and a
weakly compressible fluid whose pressure grows linearly with the volume ratio.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import spirograd as sg

Positions = npt.NDArray[np.float32]

DENSITY = 1.0
STIFFNESS = 400.0  # Young's modulus, in units of density * (box lengths per second)^2
GRAVITY = 9.8  # box lengths per second^2
WALL = 3  # cells along each wall in which the fluid cannot move outwards


@sg.data_oriented
class Fluid:
    """``particles`` particles in a box of side 1 with ``cells`` x ``cells`` grid cells; ``dt``: seconds per step.

    A session of `spirograd.init` must be running. ``dt`` defaults to a value that is stable for the speed of sound and the cell size.
    """

    def __init__(self, particles: int = 8192, cells: int = 128, dt: float | None = None) -> None:
        self.particles = particles
        self.cells = cells
        self.dt = dt if dt is not None else 0.0256 / cells
        self.dx = 1.0 / cells
        self.volume = (0.5 * self.dx) ** 2
        self.mass = self.volume * DENSITY
        self.position = sg.Vector.field(2, sg.f32, shape=particles)
        self.velocity = sg.Vector.field(2, sg.f32, shape=particles)
        self.affine = sg.Matrix.field(2, 2, sg.f32, shape=particles)
        self.ratio = sg.field(sg.f32, shape=particles)  # current volume / volume at rest
        self.grid_velocity = sg.Vector.field(2, sg.f32, shape=(cells, cells))
        self.grid_mass = sg.field(sg.f32, shape=(cells, cells))

    def reset(self, seed: int = 0) -> None:
        """Fill a square with resting particles, at random positions that depend only on ``seed``."""
        places = np.random.default_rng(seed).random((self.particles, 2))
        self.position.from_numpy((0.2 + 0.4 * places).astype(np.float32))
        self.velocity.fill(0)
        self.affine.fill(0)
        self.ratio.fill(1)

    @sg.func
    def cell_of(self, x):  # type: ignore[no-untyped-def]
        """Return the lowest of the 3 x 3 cells around ``x``, and the offset of ``x`` from it, in cells: 0.5 to 1.5."""
        scaled = x / self.dx
        base = sg.cast(scaled - 0.5, sg.i32)
        return base, scaled - base

    @sg.func
    def weight(self, offset, i: sg.Template, j: sg.Template):  # type: ignore[no-untyped-def]
        """Return the quadratic B-spline of cell (i, j) of the 3 x 3 cells at ``offset``."""
        splines = [0.5 * (1.5 - offset) ** 2, 0.75 - (offset - 1.0) ** 2, 0.5 * (offset - 0.5) ** 2]
        return splines[i][0] * splines[j][1]

    @sg.kernel
    def step(self):  # type: ignore[no-untyped-def]
        """Run one step of ``dt`` seconds: clear the grid, particles to grid, forces and walls, grid to particles."""
        for cell in sg.grouped(self.grid_mass):
            self.grid_velocity[cell] = [0.0, 0.0]
            self.grid_mass[cell] = 0.0

        for p in self.position:
            base, offset = self.cell_of(self.position[p])
            pressure = -4.0 * self.dt * STIFFNESS * self.volume * (self.ratio[p] - 1.0) / self.dx**2
            momentum = sg.Matrix([[pressure, 0.0], [0.0, pressure]]) + self.mass * self.affine[p]
            for i, j in sg.static(sg.ndrange(3, 3)):
                away = (sg.Vector([i, j]) - offset) * self.dx
                weight = self.weight(offset, i, j)
                self.grid_velocity[base + sg.Vector([i, j])] += weight * (self.mass * self.velocity[p] + momentum @ away)
                self.grid_mass[base + sg.Vector([i, j])] += weight * self.mass

        for i, j in self.grid_mass:
            if self.grid_mass[i, j] > 0:
                v = self.grid_velocity[i, j] / self.grid_mass[i, j]
                v[1] -= self.dt * GRAVITY
                if (i < WALL and v[0] < 0) or (i > self.cells - WALL and v[0] > 0):
                    v[0] = 0.0
                if (j < WALL and v[1] < 0) or (j > self.cells - WALL and v[1] > 0):
                    v[1] = 0.0
                self.grid_velocity[i, j] = v

        for p in self.position:
            base, offset = self.cell_of(self.position[p])
            v = sg.Vector([0.0, 0.0])
            gradient = sg.Matrix([[0.0, 0.0], [0.0, 0.0]])
            for i, j in sg.static(sg.ndrange(3, 3)):
                away = (sg.Vector([i, j]) - offset) * self.dx
                carried = self.weight(offset, i, j) * self.grid_velocity[base + sg.Vector([i, j])]
                v += carried
                gradient += 4.0 * carried.outer_product(away) / self.dx**2
            self.velocity[p] = v
            self.position[p] += self.dt * v
            self.ratio[p] *= 1.0 + self.dt * gradient.trace()
            self.affine[p] = gradient

    def run(self, steps: int) -> Positions:
        """Run ``steps`` steps; return the positions, shape (particles, 2)."""
        for _ in range(steps):
            self.step()
        return self.positions()

    def positions(self) -> Positions:
        """Return the current positions, shape (particles, 2), in box lengths."""
        return np.asarray(self.position.to_numpy())
