"""A jelly of particles that is thrown: how its landing depends on the throw. Its grid is divided into slabs, one for each process.

    torchrun --nproc-per-node 2 examples/distributed/mpm_slabs.py
    python examples/distributed/mpm_slabs.py --arch cpu

The material point method. A particle always belongs to the process whose slab it begins in. In cells of another process, it adds to the
halo, and `add_halos` sends the sums to the owner. The halo therefore limits how far particles may move; a particle that moves farther is an
error, not a wrong number.
"""

from __future__ import annotations

import argparse

import numpy as np

import spirograd as sg
from spirograd import distributed


class Jelly:
    """``count`` particles in a ``box`` (two corners), on a grid of ``n`` by ``n`` cells. ``reach``: the number of cells that a particle may
    move beyond its slab; ``sends``: whether halos are exchanged (`benchmarks.many_processes` omits the exchange to measure its cost)."""

    def __init__(self, n: int, count: int, reach: int, precision: str, box: tuple = ((0.25, 0.3), (0.75, 0.5)), sends: bool = True) -> None:
        real = sg.f64 if precision == "f64" else sg.f32
        self.n, self.reach, self.sends = n, reach, sends
        self.part = distributed.Partition((n, n), (distributed.size(), 1), halo=(reach + 2 if distributed.size() > 1 else 0, 0))
        places = np.random.default_rng(0).uniform(*box, (count, 2))
        (first, end), _ = self.part.owned
        self.count = count
        self.begin = places[(places[:, 0] * n >= first) & (places[:, 0] * n < end)]
        mine = max(len(self.begin), 1)  # a process without particles has one of mass 0
        vec, mat = sg.types.vector(2, real), sg.types.matrix(2, 2, real)
        self.x, self.v = sg.field(vec, mine, needs_grad=True), sg.field(vec, mine, needs_grad=True)
        self.C, self.J = sg.field(mat, mine, needs_grad=True), sg.field(real, mine, needs_grad=True)
        self.momentum, self.mass = self.part.field(vec, needs_grad=True), self.part.field(real, needs_grad=True)
        self.throw = sg.field(vec, (), needs_grad=True)
        self.loss, self.lost = sg.field(real, (), needs_grad=True), sg.field(sg.i32, ())
        self._make_kernels()

    def _make_kernels(self) -> None:
        n, x, v, C, J, momentum, mass = self.n, self.x, self.v, self.C, self.J, self.momentum, self.mass
        throw, loss, lost, count, is_real = self.throw, self.loss, self.lost, self.count, float(len(self.begin) > 0)
        low, high = max(self.part.origin[0], 0), min(self.part.origin[0] + self.part.local_shape[0], n) - 3
        dx, dt, volume, stiffness = 1.0 / n, min(1e-4, 6.4e-3 / n), (0.5 / n) ** 2, 400.0  # sound crosses a fraction of a cell in a step

        @sg.kernel
        def prepare():
            for p in x:
                v[p] = throw[None]
                C[p] = sg.Matrix([[0.0, 0.0], [0.0, 0.0]])
                J[p] = 1.0

        @sg.kernel
        def to_grid():
            for p in x:
                base = sg.cast(x[p] / dx - 0.5, sg.i32)
                fx = x[p] / dx - sg.cast(base, x.dtype)
                w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
                stress = -4.0 * dt * stiffness * volume * (J[p] - 1.0) / dx**2
                affine = sg.Matrix([[stress, 0.0], [0.0, stress]]) + volume * C[p]
                if low <= base[0] and base[0] <= high and base[1] >= 0 and base[1] < n - 2:
                    for i, j in sg.static(sg.ndrange(3, 3)):
                        offset = sg.Vector([i, j])
                        weight = is_real * w[i][0] * w[j][1]
                        momentum[base + offset] += weight * (volume * v[p] + affine @ ((sg.cast(offset, x.dtype) - fx) * dx))
                        mass[base + offset] += weight * volume
                else:
                    lost[None] += 1

        @sg.kernel
        def on_grid(i0: int, i1: int, j0: int, j1: int):
            for i, j in sg.ndrange((i0, i1), (j0, j1)):
                if mass[i, j] > 0.0:
                    u = momentum[i, j] / mass[i, j]
                    u[1] -= dt * 9.8
                    if (i < 3 and u[0] < 0.0) or (i > n - 3 and u[0] > 0.0):
                        u[0] = 0.0
                    if (j < 3 and u[1] < 0.0) or (j > n - 3 and u[1] > 0.0):
                        u[1] = 0.0
                    momentum[i, j] = u

        @sg.kernel
        def to_particles():
            for p in x:
                base = sg.cast(x[p] / dx - 0.5, sg.i32)
                fx = x[p] / dx - sg.cast(base, x.dtype)
                w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
                new_v, new_C = sg.zero(v[p]), sg.zero(C[p])
                if low <= base[0] and base[0] <= high and base[1] >= 0 and base[1] < n - 2:
                    for i, j in sg.static(sg.ndrange(3, 3)):
                        offset = sg.Vector([i, j])
                        weight = w[i][0] * w[j][1]
                        u = momentum[base + offset]
                        new_v += weight * u
                        new_C += 4.0 * weight * u.outer_product((sg.cast(offset, x.dtype) - fx) * dx) / dx**2
                v[p] = new_v
                C[p] = new_C
                J[p] = J[p] * (1.0 + dt * new_C.trace())
                x[p] += dt * new_v

        @sg.kernel
        def score():
            for p in x:
                loss[None] += is_real * (x[p] - sg.Vector([0.6, 0.35])).norm_sqr() / count

        self.kernels = prepare, to_grid, on_grid, to_particles, score

    def run(self, steps: int) -> None:
        """Simulate the throw, and compute the loss from the distance to the target."""
        prepare, to_grid, on_grid, to_particles, score = self.kernels
        distributed.replicate(self.throw)
        prepare()
        for _ in range(steps):
            self.momentum.fill(0.0)
            self.mass.fill(0.0)
            to_grid()
            if self.sends:
                self.part.add_halos(self.momentum, self.mass)
            on_grid(*self.part.owned.flat)
            if self.sends:
                self.part.exchange(self.momentum)
            to_particles()
        score()
        distributed.total(self.loss)

    def gradient(self, throw: np.ndarray, steps: int) -> tuple[float, np.ndarray]:
        """Return loss and gradient. Raises RuntimeError on all processes if a particle left the reach of its process."""
        self.x.from_numpy(self.begin if len(self.begin) else np.full((1, 2), (self.part.owned[0][0] + 1.0) / self.n))
        self.throw.from_numpy(throw)
        self.lost.fill(0)
        with sg.ad.Tape(self.loss):
            self.run(steps)
        distributed.all_reduce(self.lost)
        if self.lost[None]:
            raise RuntimeError(f"particles went more than {self.reach} cells beyond the slab of their process: raise `--reach`")
        return self.loss[None], self.throw.grad.to_numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="gpu")
    parser.add_argument("--cells", type=int, default=64, help="along each edge")
    parser.add_argument("--particles", type=int, default=4000)
    parser.add_argument("--reach", type=int, default=6, help="cells that a particle may go beyond the slab of its process")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--precision", choices=("f32", "f64"), default="f32")
    parser.add_argument("--save", metavar="FILE.npz", help="write the first loss and gradient")
    options = parser.parse_args()
    distributed.init(arch=options.arch)
    jelly = Jelly(options.cells, options.particles, options.reach, options.precision)
    throw = np.array([1.0, 0.5])
    first = None
    for iteration in range(options.iterations):
        loss, gradient = jelly.gradient(throw, options.steps)
        first = (loss, gradient) if first is None else first
        if distributed.rank() == 0:
            print(f"iteration {iteration}: loss {loss:.5f}, throw {throw}, gradient {gradient}", flush=True)
        throw = throw - 200.0 * gradient
    if options.save and distributed.rank() == 0:
        np.savez(options.save, loss=first[0], gradient=first[1])


if __name__ == "__main__":
    main()
