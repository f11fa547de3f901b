"""Reconstruct the speed of waves at each point of a plate from microphones along one edge; the plate is divided among processes.

    torchrun --nproc-per-node 2 examples/distributed/wave_inversion.py
    mpirun -n 2 python examples/distributed/wave_inversion.py --arch cpu
    python examples/distributed/wave_inversion.py --arch cpu

Each step sends the cells at the edges of a block while it computes the interior. The gradient does the same in reverse.
"""

from __future__ import annotations

import argparse

import numpy as np

import spirograd as sg
from spirograd import distributed


class Plate:
    """A plate of ``n`` by ``n`` cells, simulated for ``steps`` steps. ``precision``: f32 or f64."""

    def __init__(self, n: int, steps: int, precision: str) -> None:
        real = sg.f64 if precision == "f64" else sg.f32
        self.n, self.steps = n, steps
        self.part = distributed.Partition((n, n), halo=1, corners=False)
        self.waves = [self.part.field(real, needs_grad=True) for _ in range(3)]  # at three times, in rotation
        self.speed = self.part.field(real, needs_grad=True)
        self.heard = sg.field(real, (steps, n))  # signals of the microphones above this block
        self.loss = sg.field(real, (), needs_grad=True)
        self._make_kernels()

    def _make_kernels(self) -> None:
        n, speed, heard, loss = self.n, self.speed, self.heard, self.loss

        @sg.kernel
        def step(old: sg.Template, now: sg.Template, new: sg.Template, t: int, i0: int, i1: int, j0: int, j1: int):
            for i, j in sg.ndrange((i0, i1), (j0, j1)):
                around = now[i - 1, j] + now[i + 1, j] + now[i, j - 1] + now[i, j + 1] - 4.0 * now[i, j]
                new[i, j] = 1.995 * now[i, j] - 0.995 * old[i, j] + speed[i, j] * around
                if i == n - 4 and j == n // 2:
                    new[i, j] += sg.exp(-0.1 * (t - 12.0) ** 2)

        @sg.kernel
        def listen(wave: sg.Template, t: int, i0: int, i1: int, j0: int, j1: int):
            for i, j in sg.ndrange((i0, i1), (j0, j1)):
                if i == 2:
                    heard[t, j] = wave[i, j]

        @sg.kernel
        def compare(wave: sg.Template, t: int, i0: int, i1: int, j0: int, j1: int):
            for i, j in sg.ndrange((i0, i1), (j0, j1)):
                if i == 2:
                    loss[None] += (wave[i, j] - heard[t, j]) ** 2

        self.step, self.listen, self.compare = step, listen, compare

    def run(self, at_each_step) -> None:
        """Run all steps from rest; ``at_each_step`` is one of the kernels of the microphones."""
        part = self.part
        for wave in self.waves:
            wave.fill(0.0)
        for t in range(self.steps):
            old, now, new = (self.waves[(t + k) % 3] for k in range(3))
            pending = part.start(now)
            self.step(old, now, new, t, *part.interior.flat)
            pending.finish()
            for border in part.borders:
                self.step(old, now, new, t, *border.flat)
            at_each_step(new, t, *part.owned.flat)

    def gradient(self, **tape) -> float:
        """Compute the loss, and its gradient with respect to ``speed``."""
        with sg.ad.Tape(self.loss, **tape):
            self.run(self.compare)
            distributed.total(self.loss)
        return self.loss[None]


def true_speed(n: int) -> np.ndarray:
    """Return the speeds of a plate with a slow disc."""
    i, j = np.indices((n, n)) / n
    return np.where((i - 0.45) ** 2 + (j - 0.4) ** 2 < 0.03, 0.12, 0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="gpu")
    parser.add_argument("--cells", type=int, default=96, help="along each edge")
    parser.add_argument("--steps", type=int, default=260)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--checkpoints", type=int, help="of the tape, by default none")
    parser.add_argument("--precision", choices=("f32", "f64"), default="f32")
    parser.add_argument("--save", metavar="FILE.npz", help="write speed and first gradient")
    options = parser.parse_args()
    distributed.init(arch=options.arch, device=None)
    plate = Plate(options.cells, options.steps, options.precision)
    part, tape = plate.part, {} if options.checkpoints is None else {"checkpoints": options.checkpoints}
    part.from_numpy(plate.speed, true_speed(options.cells))
    plate.run(plate.listen)
    speed = np.full(part.shape, 0.2)
    scale, first = None, None
    for iteration in range(options.iterations):
        part.from_numpy(plate.speed, speed)
        loss = plate.gradient(**tape)
        gradient = part.to_numpy(plate.speed.grad).astype(np.float64)
        first = gradient if first is None else first
        scale = 0.02 / np.abs(gradient).max() if scale is None else scale
        speed = np.clip(speed - scale * gradient, 0.05, 0.24)
        if distributed.rank() == 0 and iteration % 5 == 0:
            print(f"iteration {iteration}: loss {loss:.4g} on {distributed.size()} processes {part.processes}", flush=True)
    if options.save and distributed.rank() == 0:
        np.savez(options.save, gradient=first, speed=speed, loss=loss)


if __name__ == "__main__":
    main()
