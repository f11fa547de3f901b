"""Runs on any number of processes: random programs of stencils, deposits, sums and copies on a random partition. Process 0 writes the loss,
values and gradients of each to a file; checkpoints must give those of the plain tape, and the same bits on the CPU.

Arguments: the first seed, the number of programs, the folder of the files, the number of processes that blocks must be wide enough for."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np

import spirograd as sg

dist = sg.distributed


class Program:
    """What all processes do in the same way, whatever their number."""

    def __init__(self, seed: int, most: int) -> None:
        r = self.r = random.Random(seed)
        halo = tuple(r.choice((1, 1, 2)) for _ in range(2))
        corners = r.random() < 0.6
        shape = tuple(r.randrange(most * h, most * h + 7) for h in halo)
        self.part = dist.Partition(shape, halo=halo, periodic=tuple(r.random() < 0.5 for _ in range(2)), corners=corners)
        every = [(i, j) for i in range(-halo[0], halo[0] + 1) for j in range(-halo[1], halo[1] + 1) if corners or not (i and j)]
        self.u, self.v, self.d = (self.part.field(sg.f64, True) for _ in range(3))
        self.w, self.norm, self.loss = (sg.field(sg.f64, n, needs_grad=True) for n in (3, (), ()))
        self.kernels = self._kernels(r.sample(every, 3), r.sample(every, 2))
        choices = ("stencil", "stencil", "overlapping", "deposit", "in_place", "normalize", "copy", "again")
        self.steps = [r.choice(choices) for _ in range(r.randrange(1, 9))]
        self.limits = [{"checkpoints": r.randrange(1, 4)}, {"memory_GB": r.randrange(60, 90) * 1e-6}]
        rng = np.random.default_rng(seed)
        self.first, self.other, self.weights = rng.normal(size=shape), rng.normal(size=shape), rng.normal(size=3)

    def _kernels(self, near, targets):
        w, norm, loss, d = self.w, self.norm, self.loss, self.d

        @sg.kernel
        def stencil(a: sg.template(), b: sg.template(), i0: int, i1: int, j0: int, j1: int):
            for i, j in sg.ndrange((i0, i1), (j0, j1)):
                around = 0.2 * b[i, j]
                for k in sg.static(range(3)):
                    around += w[k] * a[i + near[k][0], j + near[k][1]]
                b[i, j] = sg.sin(a[i, j] + 0.3 * around)

        @sg.kernel
        def deposit(a: sg.template(), i0: int, i1: int, j0: int, j1: int):
            for i, j in sg.ndrange((i0, i1), (j0, j1)):
                for k in sg.static(range(2)):
                    d[i + targets[k][0], j + targets[k][1]] += 0.2 * (k + 1) * a[i, j] ** 2

        @sg.kernel
        def collect(a: sg.template(), i0: int, i1: int, j0: int, j1: int):
            for i, j in sg.ndrange((i0, i1), (j0, j1)):
                a[i, j] = 0.5 * a[i, j] + sg.tanh(d[i, j])

        @sg.kernel
        def in_place(a: sg.template(), i0: int, i1: int, j0: int, j1: int):
            for i, j in sg.ndrange((i0, i1), (j0, j1)):
                for _ in range((i + j) % 3):
                    a[i, j] = sg.cos(a[i, j]) + 0.01 * i

        @sg.kernel
        def square(a: sg.template(), i0: int, i1: int, j0: int, j1: int):
            for i, j in sg.ndrange((i0, i1), (j0, j1)):
                norm[None] += a[i, j] ** 2

        @sg.kernel
        def divide(a: sg.template(), i0: int, i1: int, j0: int, j1: int):
            for i, j in sg.ndrange((i0, i1), (j0, j1)):
                a[i, j] = 3.0 * a[i, j] / (1.0 + norm[None])

        @sg.kernel
        def cubes(a: sg.template(), i0: int, i1: int, j0: int, j1: int):
            for i, j in sg.ndrange((i0, i1), (j0, j1)):
                loss[None] += a[i, j] ** 3 * (1.0 + 0.1 * j)

        return {f.__name__: f for f in (stencil, deposit, collect, in_place, square, divide, cubes)}

    def step(self, name: str, a, b) -> None:
        part, kernels, owned = self.part, self.kernels, self.part.owned.flat
        if name in ("stencil", "again"):
            for _ in range(1 + (name == "again")):
                part.exchange(a)
                kernels["stencil"](a, b, *owned)
        elif name == "overlapping":
            pending = part.start(a)
            kernels["stencil"](a, b, *part.interior.flat)
            pending.finish()
            for border in part.borders:
                kernels["stencil"](a, b, *border.flat)
        elif name == "deposit":
            self.d.fill(0.0)
            kernels["deposit"](a, *owned)
            part.add_halos(self.d)
            kernels["collect"](b, *owned)
        elif name == "in_place":
            kernels["in_place"](b, *owned)
        elif name == "normalize":
            self.norm.fill(0.0)
            kernels["square"](a, *owned)
            dist.all_reduce(self.norm)
            kernels["divide"](a, *owned)
        else:
            b.copy_from(a)

    def run(self, **limits) -> list[np.ndarray]:
        """The loss, values and gradients of the whole domain."""
        part = self.part
        for field in (self.u, self.v, self.d):
            field.fill(0.0)  # also in halos at the ends of the domain
        part.from_numpy(self.u, self.first)
        part.from_numpy(self.v, self.other)
        self.w.from_numpy(self.weights if dist.rank() == 0 else np.full(3, 99.0))
        sg.ad.clear_all_gradients()
        with sg.ad.Tape(self.loss, **limits):
            dist.replicate(self.w)
            a, b = self.u, self.v
            for name in self.steps:
                self.step(name, a, b)
                a, b = b, a
            self.kernels["cubes"](a, *part.owned.flat)
            dist.total(self.loss)
        gradients = [part.to_numpy(field.grad) for field in (self.u, self.v)]
        return [self.loss.to_numpy(), self.w.grad.to_numpy(), part.to_numpy(a), *gradients]


def main(seed: int, count: int, folder: Path, most: int) -> None:
    for number in range(seed, seed + count):
        program = Program(number, most)
        found = program.run()
        for limits in program.limits:
            try:
                other = program.run(**limits)
            except sg.SpirogradRuntimeError as error:
                assert "too little memory" in str(error), (number, limits, error)
                break  # maybe on one process only, whose error reaches the others: nothing goes on
            for x, y in zip(found, other):
                assert dist.world.context.session().arch != "cpu" or (x == y).all(), (number, limits, program.steps)
                assert np.allclose(x, y, rtol=1e-11, atol=1e-11), (number, limits, program.steps)
        if dist.rank() == 0:
            np.savez(folder / f"{number}-{dist.size()}.npz", *found, steps=np.array(program.steps))


if __name__ == "__main__":
    dist.init(arch="cpu", timeout=60, cpu_max_num_threads=1)  # several threads add in any order
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
