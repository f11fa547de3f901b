"""Times of the main paths on every back end present: launching, compiling, memory bandwidth, a large sum, a simulation.

    python -m benchmarks [--arch cpu vulkan]

Each figure is the best of several repetitions: what else the machine does only ever adds time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import spirograd as sg
from spirograd.commands.table import table
from spirograd.demo.mpm import Fluid

N = 1 << 22
SUM = 1 << 24


def best(run: Callable[[], object], repeat: int = 7, inner: int = 1) -> float:
    """Seconds of one ``run``, waiting for the device included."""
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        for _ in range(inner):
            run()
        sg.sync()
        times.append((time.perf_counter() - begin) / inner)
    return min(times)


def measure(arch: str) -> list[tuple[str, str]]:
    """(what, figure) of one back end."""
    sg.init(arch=arch, offline_cache=False)
    one = sg.field(sg.f32, shape=1)
    x, y = sg.field(sg.f32, shape=N), sg.field(sg.f32, shape=N)
    values, total = sg.field(sg.f32, shape=SUM), sg.field(sg.f32, shape=())

    @sg.kernel
    def nothing(a: sg.f32):
        for i in range(1):
            one[i] = a

    @sg.kernel
    def saxpy(a: sg.f32):
        for i in x:
            y[i] = a * x[i] + y[i]

    @sg.kernel
    def add_up():
        for i in values:
            total[None] += values[i]

    begin = time.perf_counter()
    nothing(1.0)
    sg.sync()
    rows = [("first small kernel, compiled and run", f"{1e3 * (time.perf_counter() - begin):.1f} ms")]
    rows.append(("launch of it, in a row of 1,000", f"{1e6 * best(lambda: nothing(1.0), inner=1000):.2f} us"))
    x.fill(1)
    saxpy(2.0)
    rows.append((f"y = a x + y, {N:,} f32", f"{12e-9 * N / best(lambda: saxpy(2.0), inner=5):.1f} GB/s"))
    host = np.random.default_rng(0).random(SUM, np.float32)
    values.from_numpy(host)
    add_up()
    exact = float(host.astype(np.float64).sum())
    error = abs(total[None] - exact) / exact
    rows.append((f"sum of {SUM:,} f32", f"{1e3 * best(add_up, inner=3):.2f} ms, relative error {error:.0e}"))
    fluid = Fluid()
    fluid.reset()
    fluid.step()
    rows.append(("mpm88, 8,192 particles", f"{1e3 * best(fluid.step, inner=50):.2f} ms per step"))
    sg.reset()
    return rows


def main() -> None:
    """Print a table with a column for each back end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    present = [arch for arch in sg.available_archs() if arch != "interpreter"]
    parser.add_argument("--arch", nargs="+", default=present, help="back ends (default: all present)")
    archs = parser.parse_args().arch
    columns = [measure(arch) for arch in archs]
    rows = [(what, *(column[i][1] for column in columns)) for i, (what, _) in enumerate(columns[0])]
    print(table(("what", *archs), rows, indent=""))


if __name__ == "__main__":
    main()
