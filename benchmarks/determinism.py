"""What `init(deterministic=True)` costs: `python -m benchmarks.determinism [ARCH]`.

Each program runs in a session without the mode and in one with it, in turn; a time is the best of all runs, of the processor with
--cpu-time. The last column says which loops the mode changed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import spirograd as sg

N, BINS, CELLS, ELEMENTS = 1 << 20, 256, 128, 1 << 18


def reductions() -> dict[str, tuple[Any, Callable[[], None]]]:
    """Sums of all iterations, and a histogram of weights."""
    x, s, bins = sg.field(sg.f32, shape=N), sg.field(sg.f32, shape=()), sg.field(sg.f32, shape=BINS)
    x.from_numpy(np.random.default_rng(0).random(N, dtype=np.float32))

    @sg.kernel
    def total():
        for i in x:
            s[None] += x[i]

    @sg.kernel
    def energy():
        for i in x:
            s[None] += x[i] * x[i] + sg.sin(x[i])

    @sg.kernel
    def histogram():
        for i in x:
            bins[sg.cast(x[i] * BINS, sg.i32)] += x[i]

    return {"sum": (total, total), "sum of sines": (energy, energy), "histogram": (histogram, histogram)}


def scatters() -> dict[str, tuple[Any, Callable[[], None]]]:
    """Sums into random elements: alone, and as the gradient of reads of random elements."""
    x, at = sg.field(sg.f32, shape=N), sg.field(sg.i32, shape=N)
    y, few = sg.field(sg.f32, shape=N), sg.field(sg.f32, shape=ELEMENTS, needs_grad=True)
    loss = sg.field(sg.f32, shape=(), needs_grad=True)
    x.from_numpy(np.random.default_rng(0).random(N, dtype=np.float32))
    at.from_numpy(np.random.default_rng(1).integers(0, N, N).astype(np.int32))

    @sg.kernel
    def scatter():
        for i in at:
            y[at[i]] += x[i]

    @sg.kernel
    def gather():
        for i in at:
            loss[None] += few[at[i] % ELEMENTS] * x[i]

    loss.grad[None] = 1.0
    return {"scatter": (scatter, scatter), "gradient of a gather": (gather.grad, lambda: gather.grad())}


def particles() -> dict[str, tuple[Any, Callable[[], None]]]:
    """Particles that add to a grid and read from it, as in the material point method, and the gradient of adding."""
    points = 8192
    x, v = sg.Vector.field(2, sg.f32, shape=points, needs_grad=True), sg.Vector.field(2, sg.f32, shape=points, needs_grad=True)
    momentum = sg.Vector.field(2, sg.f32, shape=(CELLS, CELLS), needs_grad=True)
    mass = sg.field(sg.f32, shape=(CELLS, CELLS), needs_grad=True)
    x.from_numpy((np.random.default_rng(2).random((points, 2)) * 0.4 + 0.2).astype(np.float32))

    @sg.kernel
    def to_grid():
        for p in x:
            base = sg.cast(x[p] * CELLS - 0.5, sg.i32)
            d = x[p] * CELLS - sg.cast(base, sg.f32)
            w = [0.5 * (1.5 - d) ** 2, 0.75 - (d - 1) ** 2, 0.5 * (d - 0.5) ** 2]
            for a in sg.static(range(3)):
                for b in sg.static(range(3)):
                    weight = w[a].x * w[b].y
                    momentum[base + sg.Vector([a, b])] += weight * v[p]
                    mass[base + sg.Vector([a, b])] += weight

    @sg.kernel
    def from_grid():
        for p in x:
            base = sg.cast(x[p] * CELLS - 0.5, sg.i32)
            d = x[p] * CELLS - sg.cast(base, sg.f32)
            w = [0.5 * (1.5 - d) ** 2, 0.75 - (d - 1) ** 2, 0.5 * (d - 0.5) ** 2]
            velocity = sg.Vector([0.0, 0.0])
            for a in sg.static(range(3)):
                for b in sg.static(range(3)):
                    velocity += w[a].x * w[b].y * momentum[base + sg.Vector([a, b])]
            v[p] = velocity

    def step() -> None:
        momentum.fill(0.0)
        mass.fill(0.0)
        to_grid()
        from_grid()

    return {"particles and grid": (to_grid, step), "gradient of reading a grid": (from_grid.grad, lambda: from_grid.grad())}


PROGRAMS = (reductions, scatters, particles)


def measured(arch: str, deterministic: bool, clock: Callable[[], float], rounds: int) -> dict[str, tuple[float, str]]:
    """Return the best time of each program in milliseconds, and what the mode changed."""
    sg.init(arch=arch, deterministic=deterministic)
    found = {}
    for make in PROGRAMS:
        for name, (kernel, run) in make().items():
            run()
            sg.sync()
            times = []
            for _ in range(rounds):
                begin = clock()
                run()
                sg.sync()
                times.append(clock() - begin)
            lines = [line.split("deterministic, ")[1] for line in kernel.explain().splitlines() if "deterministic, " in line]
            found[name] = min(times) * 1e3, "; ".join(dict.fromkeys(lines))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.determinism", description=__doc__)
    parser.add_argument("arch", nargs="?", default="cpu")
    parser.add_argument("--cpu-time", action="store_true", help="seconds of the processor, all threads: for machines that are busy")
    parser.add_argument("--rounds", type=int, default=15)
    chosen = parser.parse_args()
    clock = time.process_time if chosen.cpu_time else time.perf_counter
    runs = [measured(chosen.arch, mode, clock, chosen.rounds) for _ in range(2) for mode in (False, True)]
    print("| program | ms | ms, deterministic | ratio | changes |\n|---|---|---|---|---|")
    for name in runs[0]:
        normal, mode = (min(run[name][0] for run in runs[k::2]) for k in (0, 1))
        print(f"| {name} | {normal:.3f} | {mode:.3f} | {mode / normal:.2f} | {runs[1][name][1]} |")


if __name__ == "__main__":
    main()
