"""What a GPU reaches of its limits: bandwidth, arithmetic, atomics, gradients, launches. Prints a row for each program.

    python -m benchmarks.gpu --arch cuda
    python -m benchmarks.gpu --arch vulkan

Needs 4 GiB of device memory. Bytes are those that a program must move at least; times are the best of several, waits included.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np

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


def contention() -> Iterator[Row]:
    """Atomics of many iterations on few elements, of which some fit into shared memory."""
    index, x = sg.field(sg.i32, shape=N), sg.field(sg.f32, shape=N)
    counts, counts_8k = sg.field(sg.i32, shape=256), sg.field(sg.i32, shape=8000)
    sums, halves, largest = sg.field(sg.f32, shape=256), sg.field(sg.f16, shape=256), sg.field(sg.f32, shape=256)
    table, loss = sg.field(sg.f32, shape=256, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def fill():
        for i in index:
            index[i] = (i * 7919 + (i >> 5)) % 8000
            x[i] = (i % 1000) * 0.001

    @sg.kernel
    def few():
        for i in index:
            counts[index[i] & 255] += 1

    @sg.kernel
    def some():
        for i in index:
            counts_8k[index[i]] += 1

    @sg.kernel
    def weighted():
        for i in index:
            sums[index[i] & 255] += x[i]

    @sg.kernel
    def half():
        for i in index:
            halves[index[i] & 255] += sg.cast(1, sg.f16)

    @sg.kernel
    def maxima():
        for i in index:
            sg.atomic_max(largest[index[i] & 255], x[i])

    @sg.kernel
    def look_up():
        for i in index:
            loss[None] += table[index[i] & 255]

    fill()
    loss.grad[None] = 1.0
    programs = (
        ("256 counts", few), ("8,000 counts", some), ("256 sums of f32", weighted), ("256 sums of f16", half),
        ("256 maxima of f32", maxima), ("gradient of a table of 256", look_up.grad),
    )  # fmt: skip
    for name, kernel in programs:
        yield f"{name}, 128M updates", seconds(kernel, 3, 2), 1e-9 * N, "G/s"


def arithmetic() -> Iterator[Row]:
    a, b = sg.field(sg.f32, shape=(GRID, GRID)), sg.field(sg.f32, shape=(GRID, GRID))
    p, force = sg.Vector.field(3, sg.f32, shape=BODIES), sg.Vector.field(3, sg.f32, shape=BODIES)

    @sg.kernel
    def stencil():
        for i, j in sg.ndrange((1, GRID - 1), (1, GRID - 1)):
            b[i, j] = 0.2 * (a[i, j] + a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1])

    @sg.kernel
    def copy():
        for i, j in a:
            b[i, j] = a[i, j]

    @sg.kernel
    def attract():
        for i in p:
            total = sg.Vector([0.0, 0.0, 0.0])
            for j in range(BODIES):
                d = p[j] - p[i]
                inverse = sg.rsqrt(d.dot(d) + 1e-3)
                total += d * (inverse * inverse * inverse)
            force[i] = total

    yield f"copy of two axes, {GRID} x {GRID}", seconds(copy), 8e-12 * GRID * GRID, "TB/s"
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


def _guarded(n: int) -> Callable[[], None]:
    """The gradient of chains of sines in one iteration of twenty."""
    x, y = sg.field(sg.f32, shape=n, needs_grad=True), sg.field(sg.f32, shape=n, needs_grad=True)
    active = sg.field(sg.i32, shape=n)

    @sg.kernel
    def chain():
        for i in x:
            if active[i] == 0:
                a, b, c, d = x[i], 0.9 * x[i], 0.8 * x[i], 0.7 * x[i]
                for _ in range(STEPS):
                    a, b, c, d = sg.sin(a) * b + 0.1, sg.sin(b) * c + 0.1, sg.sin(c) * d + 0.1, sg.sin(d) * a + 0.1
                y[i] = a + b + c + d

    x.fill(0.3)
    y.grad.fill(1.0)
    active.from_numpy((np.random.default_rng(0).integers(0, 20, n)).astype(np.int32))
    return chain.grad


def _nest(n: int, turns: int) -> Callable[[], None]:
    """The gradient of nests of two loops whose lengths are in a field: few invocations, each of which does much."""
    x, y = sg.field(sg.f32, shape=n, needs_grad=True), sg.field(sg.f32, shape=n, needs_grad=True)
    counts = sg.field(sg.i32, shape=2)

    @sg.kernel
    def nest():
        for i in x:
            a, b = x[i], 0.5 * x[i]
            for _ in range(counts[0]):
                for _ in range(counts[1]):
                    a, b = a + 1e-4 * sg.sin(b), b - 1e-4 * sg.cos(a)
            y[i] = a + b

    x.fill(0.3)
    y.grad.fill(1.0)
    counts.fill(turns)
    return nest.grad


def gradients() -> Iterator[Row]:
    for n in (1 << 20, 1 << 23):
        yield f"gradient of {n >> 20}M x {STEPS} sines", seconds(_chain(n), 4, 3), 1e-9 * n * STEPS, "G/s"
    yield f"gradient of 1M x {STEPS} x 4 sines, 5 % of them", seconds(_guarded(1 << 20), 4, 3), 2e-10 * (1 << 20) * STEPS, "G/s"
    yield "gradient of 1,024 nests of 100 x 100", seconds(_nest(1024, 100), 4, 3), 1e-9 * 1024 * 10_000, "G/s"


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


PROGRAMS = (bandwidth, reductions, histograms, contention, arithmetic, gradients, launches)
_BY_NAME = {program.__name__: program for program in PROGRAMS}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--arch", default="gpu", help="back end (cuda, vulkan, wgpu ...); by default the first GPU that there is")
    parser.add_argument("names", nargs="*", choices=[[], *_BY_NAME], metavar="name", help=f"of {', '.join(_BY_NAME)}; by default all")
    options = parser.parse_args()
    for program in [_BY_NAME[name] for name in options.names] or PROGRAMS:
        sg.init(arch=options.arch)
        for name, each, amount, unit in program():
            print(f"{name:46} {_time(each):>10}   {amount / each:10.3g} {unit}", flush=True)
        sg.reset()


def _time(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value >= 1e-4 else f"{value * 1e6:.3g} us"


if __name__ == "__main__":
    main()
