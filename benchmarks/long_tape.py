"""Gradients of long programs: `python -m benchmarks.long_tape --arch cpu` prints what checkpoints cost, for a wave on a grid.

A plain tape on 1,000 steps saves as much for each step as any longer program would need. 10,000 steps then have a small part of that.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import spirograd as sg


class Wave:
    """``n`` by ``n`` elements, two fields, of which each step overwrites one."""

    def __init__(self, n: int) -> None:
        self.fields = [sg.field(sg.f32, shape=(n, n), needs_grad=True) for _ in range(2)]
        self.loss = sg.field(sg.f32, shape=(), needs_grad=True)
        x = np.linspace(-3, 3, n, dtype=np.float32)
        self.start = np.exp(-4 * x[:, None] ** 2 - 4 * x**2)

        @sg.kernel
        def step(a: sg.Template, b: sg.Template):
            for i, j in a:
                around = a[(i + 1) % n, j] + a[(i - 1) % n, j] + a[i, (j + 1) % n] + a[i, (j - 1) % n]
                b[i, j] = 2.0 * a[i, j] - b[i, j] + 0.2 * (around - 4.0 * a[i, j]) - 0.001 * a[i, j] ** 3

        @sg.kernel
        def square(a: sg.Template):
            for i, j in a:
                self.loss[None] += a[i, j] ** 2

        self.step, self.square = step, square

    def gradient(self, steps: int, **limits: Any) -> tuple[float, float, Any, np.ndarray]:
        """Seconds by the clock and of the processor, the report, and the gradient by the first field."""
        for field in self.fields:
            field.from_numpy(self.start)
        sg.sync()
        wall, cpu = time.perf_counter(), time.process_time()
        with sg.ad.Tape(self.loss, **limits) as tape:
            for t in range(steps):
                self.step(self.fields[t % 2], self.fields[1 - t % 2])
            self.square(self.fields[steps % 2])
        sg.sync()
        found = time.perf_counter() - wall, time.process_time() - cpu
        return (*found, tape.memory_report(), self.fields[0].grad.to_numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="cpu")
    parser.add_argument("--n", type=int, default=256)
    parser.add_argument("--steps", type=int, default=1000, help="of the plain tape; ten times as many with checkpoints")
    options = parser.parse_args()
    sg.init(arch=options.arch, fast_math=False)
    wave, steps = Wave(options.n), options.steps
    wave.gradient(20)
    wall, cpu, report, wanted = wave.gradient(steps)
    print(f"plain tape: {steps:,} steps in {wall:.2f} s ({cpu:.2f} s of the processor), {report.total / 1e6:.1f} MB", flush=True)
    few = wave.gradient(steps, memory_GB=report.total / 50 / 1e9)[3]
    print("a 50th of that, as many steps: the gradient has the same bits:", np.array_equal(few, wanted), flush=True)
    for part in (10 * report.total / 50, report.total / 50):
        long_wall, long_cpu, long, _ = wave.gradient(10 * steps, memory_GB=part / 1e9)
        times = f"{long_wall:.2f} s ({long_cpu:.2f} s of the processor)"
        ratios = f"{long_wall / wall / 10:.2f} times ({long_cpu / cpu / 10:.2f} times) as long for each step"
        peak, again = long.repetitions.peak / 1e6, long.repetitions.repeated / (10 * steps)
        print(f"{part / 1e6:.1f} MB: {10 * steps:,} steps in {times}, {ratios}; at most {peak:.1f} MB, {again:.1f} reruns")


if __name__ == "__main__":
    main()
