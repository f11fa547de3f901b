"""Two parallel loops as one and apart, whatever the cost model says: how many operations, and how many fields, a fused loop may have.

python -m benchmarks.fusing            # on the CPU
python -m benchmarks.fusing vulkan     # on another back end
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import spirograd as sg
from spirograd.transforms.tasks import fuse

OPERATIONS = (16, 32, 64, 96, 128, 200, 400)  # of both loops, about
FIELDS = (4, 8, 12, 16, 24)
_ALL = 10**6


def dependent(n: int, operations: int) -> Any:
    """Each operation needs the one before."""
    x, y = sg.field(sg.f32, n), sg.field(sg.f32, n)

    @sg.kernel
    def run():
        for i in range(n):
            v = x[i]
            for k in sg.static(range(operations // 4)):
                v = v * (1 + 0.001 * k) + y[i]
            y[i] = v * 0.5
        for i in range(n):
            v = y[i]
            for k in sg.static(range(operations // 4)):
                v = v * (1 + 0.001 * k) + x[i]
            x[i] = v * 0.5

    return run


def independent(n: int, operations: int) -> Any:
    """Many results of one value, added up in the end."""
    x, y = sg.field(sg.f32, n), sg.field(sg.f32, n)

    @sg.kernel
    def run():
        for i in range(n):
            total = 0.0
            for k in sg.static(range(operations // 6)):
                total += (x[i] + 0.001 * k) * y[i]
            y[i] = total
        for i in range(n):
            total = 0.0
            for k in sg.static(range(operations // 6)):
                total += (y[i] + 0.001 * k) * x[i]
            x[i] = total

    return run


def unshared(n: int, fields: int) -> Any:
    """Each loop has half of the fields."""
    a, b, c, d = ([sg.field(sg.f32, n) for _ in range(fields // 4)] for _ in range(4))

    @sg.kernel
    def run():
        for i in range(n):
            for k in sg.static(range(fields // 4)):
                b[k][i] = a[k][i] + 1.0
        for i in range(n):
            for k in sg.static(range(fields // 4)):
                d[k][i] = c[k][i] + 1.0

    return run


def shared(n: int, fields: int) -> Any:
    """The second loop reads what the first read and wrote."""
    a, b, c = ([sg.field(sg.f32, n) for _ in range(max(fields // 3, 1))] for _ in range(3))

    @sg.kernel
    def run():
        for i in range(n):
            for k in sg.static(range(len(a))):
                b[k][i] = a[k][i] + 1.0
        for i in range(n):
            for k in sg.static(range(len(a))):
                c[k][i] = a[k][i] + b[k][i]

    return run


def milliseconds(make: Callable[[int, int], Any], arch: str, n: int, size: int, fused: bool) -> float:
    """The best of 15 launches."""
    sg.init(arch=arch, offline_cache=False, fuse_tasks=fused)
    run = make(n, size)
    run()
    sg.sync()
    best = float("inf")
    for _ in range(15):
        start = time.perf_counter()
        run()
        sg.sync()
        best = min(best, time.perf_counter() - start)
    sg.reset()
    return best * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fusing", description=__doc__.split("\n")[0])
    parser.add_argument("arch", nargs="?", default="cpu")
    parser.add_argument("--elements", type=int, default=1 << 22)
    options = parser.parse_args()
    fuse._LONGEST, fuse._MOST_STREAMS = dict.fromkeys((False, True), _ALL), _ALL
    for make, sizes, unit in ((dependent, OPERATIONS, "operations"), (independent, OPERATIONS, "operations"),
                              (unshared, FIELDS, "fields"), (shared, FIELDS[2:], "fields")):  # fmt: skip
        for size in sizes:
            one, two = (milliseconds(make, options.arch, options.elements, size, fused) for fused in (True, False))
            print(f"{make.__name__}, {size} {unit}: {one:.2f} ms as one, {two:.2f} apart, {two / one:.2f} times as fast", flush=True)


if __name__ == "__main__":
    main()
