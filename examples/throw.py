"""Throw a blob of jelly at a target: learn the initial velocity through a simulation with a grid and particles.

The simulation is not written for gradients: one kernel for a step, which overwrites particles and grid. The tape saves the values that the
reverse pass reads.
"""

import numpy as np
from common import descend, finish, start
from matplotlib import pyplot

import spirograd as sg

STIFFNESS, GRAVITY = 100.0, 9.8
TARGET = (0.8, 0.55)


@sg.data_oriented
class Blob:
    """``count`` particles in a box of side 1 with ``cells`` x ``cells`` grid cells, thrown for ``seconds``."""

    def __init__(self, count, cells, seconds):
        self.count, self.cells, self.dx, self.dt = count, cells, 1 / cells, 0.03 / cells
        self.steps = int(seconds / self.dt)
        self.mass = 0.12**2 / count
        self.x, self.v, self.rest = (sg.Vector.field(2, sg.f32, count, needs_grad=True) for _ in range(3))
        self.C, self.F = (sg.Matrix.field(2, 2, sg.f32, count, needs_grad=True) for _ in range(2))
        self.grid_v = sg.Vector.field(2, sg.f32, (cells, cells), needs_grad=True)
        self.grid_m = sg.field(sg.f32, (cells, cells), needs_grad=True)
        self.throw = sg.Vector.field(2, sg.f32, (), needs_grad=True)
        self.loss = sg.field(sg.f32, (), needs_grad=True)
        self.rest.from_numpy(np.random.default_rng(0).random((count, 2), np.float32) * 0.12 + (0.1, 0.2))

    @sg.kernel
    def begin(self):
        for p in self.x:
            self.x[p] = self.rest[p]
            self.v[p] = self.throw[None]
            self.C[p] = sg.Matrix.zero(sg.f32, 2, 2)
            self.F[p] = sg.Matrix.identity(sg.f32, 2)

    @sg.func
    def weights(self, x):
        base = sg.cast(x / self.dx - 0.5, sg.i32)
        f = x / self.dx - base
        return base, f, [0.5 * (1.5 - f) ** 2, 0.75 - (f - 1.0) ** 2, 0.5 * (f - 0.5) ** 2]

    @sg.kernel
    def step(self):
        for cell in sg.grouped(self.grid_m):
            self.grid_v[cell] = [0.0, 0.0]
            self.grid_m[cell] = 0.0
        for p in self.x:
            self.F[p] = (sg.Matrix.identity(sg.f32, 2) + self.dt * self.C[p]) @ self.F[p]
            base, f, w = self.weights(self.x[p])
            F = self.F[p]
            stress = STIFFNESS * (F @ F.transpose() - sg.Matrix.identity(sg.f32, 2))  # stress of a neo-Hookean solid
            affine = self.mass * self.C[p] - 4.0 * self.dt * 0.12**2 / self.count / self.dx**2 * stress
            for i, j in sg.static(sg.ndrange(3, 3)):
                away = (sg.Vector([i, j]) - f) * self.dx
                weight = w[i][0] * w[j][1]
                self.grid_v[base + sg.Vector([i, j])] += weight * (self.mass * self.v[p] + affine @ away)
                self.grid_m[base + sg.Vector([i, j])] += weight * self.mass
        for i, j in self.grid_m:
            if self.grid_m[i, j] > 0.0:
                v = self.grid_v[i, j] / self.grid_m[i, j] - self.dt * sg.Vector([0.0, GRAVITY])
                if (i < 3 and v.x < 0.0) or (i > self.cells - 3 and v.x > 0.0):
                    v.x = 0.0
                if (j < 3 and v.y < 0.0) or (j > self.cells - 3 and v.y > 0.0):
                    v.y = 0.0
                self.grid_v[i, j] = v
        for p in self.x:
            base, f, w = self.weights(self.x[p])
            new_v, new_C = sg.Vector.zero(sg.f32, 2), sg.Matrix.zero(sg.f32, 2, 2)
            for i, j in sg.static(sg.ndrange(3, 3)):
                g = w[i][0] * w[j][1] * self.grid_v[base + sg.Vector([i, j])]
                new_v += g
                new_C += 4.0 / self.dx**2 * g.outer_product((sg.Vector([i, j]) - f) * self.dx)
            self.v[p] = new_v
            self.C[p] = new_C
            self.x[p] += self.dt * new_v

    @sg.kernel
    def measure(self):
        for p in self.x:
            away = self.x[p] - sg.Vector(TARGET)
            self.loss[None] += away.dot(away) / self.count

    def run(self, watch=lambda step: None):
        self.begin()
        for step in range(self.steps):
            watch(step)
            self.step()
        self.measure()


def main():
    args = start(__doc__, iterations=(30, 12))
    blob = Blob(*((128, 24, 0.15) if args.quick else (1024, 48, 0.2)))
    blob.throw[None] = [2.0, 0.5]

    def evaluate():
        blob.loss[None] = 0.0
        with sg.ad.Tape(blob.loss):
            blob.run()
        return blob.loss[None]

    def paths():
        seen = []
        blob.run(lambda step: seen.append(blob.x.to_numpy()) if step % (blob.steps // 5) == 0 else None)
        return [*seen, blob.x.to_numpy()]

    before = paths()
    losses = descend(args.iterations, evaluate, [blob.throw], 0.4)
    draw(before, paths(), losses, args.save or args.out / "throw.png")


def draw(before, after, losses, path):
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(9, 3), layout="constrained")
    for axes, snapshots, title in ((left, before, "before"), (middle, after, "after")):
        for k, x in enumerate(snapshots):
            axes.scatter(*x.T, s=1, color=pyplot.get_cmap("viridis")(k / 6))
        axes.plot(*TARGET, "r+", markersize=14)
        axes.set(title=title, xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[], yticks=[])
    right.semilogy(losses)
    right.set(title="loss", xlabel="iteration")
    figure.savefig(path, dpi=80, bbox_inches="tight")
    finish(path)


main()
