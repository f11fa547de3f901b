"""What a GPU reaches of its limits: bandwidth, arithmetic, atomics, gradients, launches. Prints a row for each program.

    python -m benchmarks.gpu --arch cuda
    python -m benchmarks.gpu --arch vulkan

Needs 4 GiB of device memory. Bytes are those that a program must move at least; times are the best of several, waits included.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import spirograd as sg

N = 1 << 27
LARGE = 1 << 28
GRID = 8192
BODIES = 65_536
STEPS = 64
# (name, seconds of one launch, what it did in a unit, that unit)
Row = tuple[str, float, float, str]


def seconds(run: Callable[[], None], rounds: int = 8, launches: int = 5) -> float:
    """The best time of a launch among ``launches`` in a row, and a wait."""
    run()
    sg.sync()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(launches):
            run()
        sg.sync()
        times.append((time.perf_counter() - start) / launches)
    return min(times)


def bandwidth() -> Iterator[Row]:
    x, y, z = (sg.field(sg.f32, shape=N) for _ in range(3))

    @sg.kernel
    def fill():
        for i in x:
            x[i], y[i], z[i] = (i % 1000) * 0.001, 0.5, 1.0

    @sg.kernel
    def copy():
        for i in x:
            z[i] = x[i]

    @sg.kernel
    def saxpy():
        for i in x:
            y[i] = 2.0 * x[i] + y[i]

    @sg.kernel
    def triad():
        for i in x:
            z[i] = x[i] + 2.0 * y[i]

    @sg.kernel
    def functions():
        for i in x:
            y[i] = sg.sin(x[i]) * sg.exp(x[i]) + sg.log(x[i] + 2.0)

    fill()
    programs = (("copy", copy, 2), ("saxpy", saxpy, 3), ("triad", triad, 3), ("sin(x) exp(x) + log(x + 2)", functions, 2))
    for name, kernel, streams in programs:
        yield f"{name}, 128M f32", seconds(kernel), 4e-12 * streams * N, "TB/s"


def reductions() -> Iterator[Row]:
    x, total, largest = sg.field(sg.f32, shape=LARGE), sg.field(sg.f32, shape=()), sg.field(sg.f32, shape=())

    @sg.kernel
    def sums():
        for i in x:
            total[None] += x[i]

    @sg.kernel
    def maxima():
        for i in x:
            sg.atomic_max(largest[None], x[i])

    for name, kernel in (("sum", sums), ("maximum", maxima)):
        yield f"{name} of 1 GiB f32", seconds(kernel), 4e-12 * LARGE, "TB/s"


def histograms() -> Iterator[Row]:
    values, counts = sg.field(sg.i32, shape=LARGE), sg.field(sg.i32, shape=65_536)

    @sg.kernel
    def fill(bins: sg.i32):
        for i in values:
            values[i] = (i * 7919 + (i >> 5)) % bins

    @sg.kernel
    def histogram():
        for i in values:
            counts[values[i]] += 1

    for bins in (256, 65_536):
        fill(bins)
        yield f"histogram of 256M, {bins} bins", seconds(histogram, 3, 2), 1e-9 * LARGE, "G/s"


def arithmetic() -> Iterator[Row]:
    a, b = sg.field(sg.f32, shape=(GRID, GRID)), sg.field(sg.f32, shape=(GRID, GRID))
    p, force = sg.Vector.field(3, sg.f32, shape=BODIES), sg.Vector.field(3, sg.f32, shape=BODIES)

    @sg.kernel
    def stencil():
        for i, j in sg.ndrange((1, GRID - 1), (1, GRID - 1)):
            b[i, j] = 0.2 * (a[i, j] + a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1])

    @sg.kernel
    def attract():
        for i in p:
            total = sg.Vector([0.0, 0.0, 0.0])
            for j in range(BODIES):
                d = p[j] - p[i]
                inverse = sg.rsqrt(d.dot(d) + 1e-3)
                total += d * (inverse * inverse * inverse)
            force[i] = total

    yield f"5-point stencil, {GRID} x {GRID}", seconds(stencil), 8e-12 * GRID * GRID, "TB/s"
    yield f"n-body, {BODIES}, 20 operations a pair", seconds(attract, 3, 1), 2e-8 * BODIES * BODIES, "GFLOP/s"


def _chain(n: int) -> Callable[[], None]:
    """The gradient of ``n`` chains of sines."""
    x, loss = sg.field(sg.f32, shape=n, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def chain():
        for i in x:
            v = x[i]
            for _ in range(STEPS):
                v = sg.sin(v) * 0.9 + 0.1
            loss[None] += v

    x.fill(0.3)
    loss.grad[None] = 1.0
    return chain.grad


def gradients() -> Iterator[Row]:
    for n in (1 << 20, 1 << 23):
        yield f"gradient of {n >> 20}M x {STEPS} sines", seconds(_chain(n), 4, 3), 1e-9 * n * STEPS, "G/s"


def launches() -> Iterator[Row]:
    arrays = [sg.ndarray(sg.f32, 16) for _ in range(4)]

    @sg.kernel
    def add(
        a: sg.types.NDArray[sg.f32, 1], b: sg.types.NDArray[sg.f32, 1], c: sg.types.NDArray[sg.f32, 1], d: sg.types.NDArray[sg.f32, 1]
    ):
        for i in range(16):
            a[i] = b[i] + c[i] + d[i]

    def launch_and_wait():
        add(*arrays)
        sg.sync()

    yield "launch with 4 ndarrays", seconds(lambda: add(*arrays), 5, 2000), 1e-6, "M/s"
    yield "launch and wait", seconds(launch_and_wait, 5, 500), 1e-6, "M/s"


PROGRAMS = (bandwidth, reductions, histograms, arithmetic, gradients, launches)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--arch", default="gpu", help="back end (cuda, vulkan, wgpu ...); by default the first GPU that there is")
    options = parser.parse_args()
    for program in PROGRAMS:
        sg.init(arch=options.arch)
        for name, each, amount, unit in program():
            print(f"{name:34} {_time(each):>10}   {amount / each:10.3g} {unit}", flush=True)
        sg.reset()


def _time(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value >= 1e-4 else f"{value * 1e6:.3g} us"


if __name__ == "__main__":
    main()
