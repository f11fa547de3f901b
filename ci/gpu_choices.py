"""Show the choices that launches make by their times on a GPU: each candidate, its time, what was chosen, and what the program gains.

    ci/gpu_choices.py                                  all back ends of GPUs that this machine has
    ci/gpu_choices.py --archs cuda --most 1e7 --out out/gpu/choices.md

Each program runs with numbers of iterations from 10,000 on, in a session that does not measure and in one with `tune_gpu=True`
(docs/tuning.md). Their results must have the same bits (they are read up to a million iterations); times of a program are the best of
several series of launches, waits included. Sums of floats and float atomics are in the list, too: nothing is exchanged there, and the table
says so. Exits with status 1 if results differ, and with 77 if there is no GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import spirograd as sg
from benchmarks.choices import Row, decided_at_once, rows, summary, table

_NOT_RUN = 77  # the status of a step of `ci/gpu` that this machine cannot run
_SERIES, _SECONDS = 5, 0.02
_COMPARED = 10**6  # The most iterations whose results are read.
_INEXACT = ("sum of floats", "MPM")  # Float atomics come in another order in each launch.
F1, F2, I1 = sg.types.ndarray(sg.f32, 1), sg.types.ndarray(sg.f32, 2), sg.types.ndarray(sg.i32, 1)
V3 = sg.types.ndarray(sg.math.vec3, 1)
# A program: a kernel, its arguments for a number of iterations, and the most iterations that are worth the time.
Program = tuple[Any, Callable[[int], Sequence[Any]], float]


@sg.kernel
def fill(x: F1):
    for i in x:
        x[i] = (i % 1000) * 0.001 + 0.1


@sg.kernel
def fill_rows(x: F2):
    for i, j in x:
        x[i, j] = ((i * x.shape[1] + j) % 1000) * 0.001 + 0.1


@sg.kernel
def scatter_indices(x: I1):
    for i in x:
        x[i] = sg.cast((sg.cast(i, sg.i64) * 7919) % x.shape[0], sg.i32)


def floats(*shape: int) -> Any:
    made = sg.ndarray(sg.f32, shape)
    (fill if len(shape) == 1 else fill_rows)(made)
    return made


def programs() -> dict[str, Program]:
    """The kernels, compiled anew for each session."""

    @sg.kernel
    def small(x: F1, y: F1):
        for i in x:
            y[i] = 2.0 * x[i] + 1.0

    @sg.kernel
    def elementary(x: F1, y: F1):
        for i in x:
            y[i] = sg.log(sg.exp(sg.sin(x[i])) + 1.0)

    @sg.kernel
    def stencil(a: F2, b: F2):
        for i, j in sg.ndrange((1, a.shape[0] - 1), (1, a.shape[1] - 1)):
            b[i, j] = a[i, j] + 0.2 * (a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1] - 4 * a[i, j])

    @sg.kernel
    def sum_of_integers(x: I1) -> sg.i32:
        total = 0
        for i in x:
            total += x[i] & 7
        return total

    @sg.kernel
    def sum_of_floats(x: F1) -> sg.f32:
        total = 0.0
        for i in x:
            total += x[i]
        return total

    @sg.kernel
    def bodies(x: V3, a: V3):
        for i in x:
            force = sg.math.vec3(0.0)
            for k in range(x.shape[0]):
                d = x[k] - x[i]
                force += d * (d.dot(d) + 1e-4) ** -1.5
            a[i] = force

    @sg.kernel
    def gather(index: I1, x: F1, y: F1):
        for i in x:
            y[i] = x[index[i]] + 0.5 * x[index[x.shape[0] - 1 - i]]

    @sg.kernel
    def march(x: F1, y: F1):
        for i in x:
            z, steps = x[i] * 4 - 2, 0
            while z * z < 4.0 and steps < 200:
                z = z * z - 0.75 + 0.1 * x[i]
                steps += 1
            y[i] = z + steps

    def integers(n: int) -> Any:
        made = sg.ndarray(sg.i32, n)
        scatter_indices(made)
        return made

    def vectors(n: int) -> list[Any]:
        x, a = sg.Vector.ndarray(3, sg.f32, n), sg.Vector.ndarray(3, sg.f32, n)
        x.from_numpy(np.random.default_rng(0).random((n, 3), np.float32))
        return [x, a]

    def square(n: int) -> list[Any]:
        return [floats(int(n**0.5), int(n**0.5)) for _ in range(2)]

    pair = lambda n: [floats(n), floats(n)]  # noqa: E731
    return {
        "small kernel": (small, pair, 1e8),
        "elementary functions": (elementary, pair, 1e8),
        "stencil": (stencil, square, 1e8),
        "sum of integers": (sum_of_integers, lambda n: [integers(n)], 1e8),
        "sum of floats": (sum_of_floats, lambda n: [floats(n)], 1e8),
        "gather": (gather, lambda n: [integers(n), *pair(n)], 1e8),
        "search of different lengths": (march, pair, 1e7),
        "n-body": (bodies, vectors, 1e5),
        "MPM": mpm(),
    }


def mpm() -> Program:
    """A step of the material point method in two dimensions: a grid is cleared, filled by atomics of floats, updated, and gathered."""

    @sg.kernel
    def step(x: F2, v: F2, c: F1, mass: F2, flow: F2):
        for i, j in mass:
            mass[i, j] = 0.0
            flow[i, j] = 0.0
        for p in range(x.shape[0]):
            u, w = x[p, 0] * mass.shape[0], x[p, 1] * mass.shape[1]
            i, j = sg.cast(u - 0.5, sg.i32), sg.cast(w - 0.5, sg.i32)
            fu, fw = u - i, w - j
            for a, b in sg.static(sg.ndrange(2, 2)):
                weight = abs(1 - a - fu * 0.5) * abs(1 - b - fw * 0.5)
                mass[i + a, j + b] += weight
                flow[i + a, j + b] += weight * (v[p, 0] + c[p] * (fu - a))
        for i, j in mass:
            if mass[i, j] > 0:
                flow[i, j] /= mass[i, j]
        for p in range(x.shape[0]):
            u, w = x[p, 0] * mass.shape[0], x[p, 1] * mass.shape[1]
            i, j = sg.cast(u - 0.5, sg.i32), sg.cast(w - 0.5, sg.i32)
            fu, fw = u - i, w - j
            total = 0.0
            for a, b in sg.static(sg.ndrange(2, 2)):
                total += abs(1 - a - fu * 0.5) * abs(1 - b - fw * 0.5) * flow[i + a, j + b]
            v[p, 1] = total
            c[p] = 0.5 * c[p] + 0.1 * total

    def arguments(n: int) -> list[Any]:
        grid, x = max(int((n / 4) ** 0.5), 8), sg.ndarray(sg.f32, (n, 2))
        x.from_numpy(np.random.default_rng(0).random((n, 2), np.float32) * 0.8 + 0.1)
        return [x, floats(n, 2), floats(n), floats(grid, grid), floats(grid, grid)]

    return step, arguments, 1e7


def measured(kernel: Any, arguments: Sequence[Any]) -> float:
    """The milliseconds of a launch: the best of several series."""
    best = 0.0
    count = 1
    for _ in range(_SERIES):
        while True:
            begin = time.perf_counter()
            for _ in range(count):
                kernel(*arguments)
            sg.sync()
            took = time.perf_counter() - begin
            if took > _SECONDS:
                break
            count *= 2
        best = min(best or took / count, took / count)
    return best * 1e3


@dataclass
class Run:
    """A program with one number of iterations: milliseconds of a launch, a digest of its results, the seconds until choices were made."""

    milliseconds: float
    digest: bytes
    trial: float


def run(arch: str, name: str, sizes: Sequence[int], tune: bool) -> tuple[list[Run], list[Row]]:
    """Run a program in a session of its own. Return what was measured for each size, and the choices."""
    sg.init(arch=arch, tune_gpu=tune, offline_cache=False)
    kernel, make, _ = programs()[name]
    runs = []
    for n in sizes:
        arguments = make(n)
        sg.sync()
        begin = time.perf_counter()
        with decided_at_once():
            kernel(*arguments)
        sg.sync()
        trial = time.perf_counter() - begin
        milliseconds = measured(kernel, arguments)
        arguments = make(n)
        returned = kernel(*arguments)
        digest = hashlib.blake2b(repr(returned).encode())
        for argument in arguments if n <= _COMPARED else ():
            digest.update(argument.to_numpy().data)
        runs.append(Run(milliseconds, digest.digest(), trial))
    return runs, rows(name)


def report(arch: str, most: float, seconds: float, names: Sequence[str], out: Callable[[str], None]) -> bool:
    """Write the tables of a back end. Return whether all results are equal."""
    sg.init(arch=arch)
    equal, found = True, list[Row]()
    out(f"## {arch}: {sg.lang.context.session().device.info.name}\n")
    begin = time.perf_counter()
    out("| program | iterations | cost model, ms | choices, ms | ratio | same bits | seconds of the trial |\n" + "|---" * 7 + "|")
    for name, (_, _, largest) in programs().items():
        sizes = [10**exponent for exponent in range(4, 9) if 10**exponent <= min(most, largest)]
        if (names and not any(part in name for part in names)) or time.perf_counter() - begin > seconds:
            continue
        without, _ = run(arch, name, sizes, tune=False)
        tuned, choices = run(arch, name, sizes, tune=True)
        for n, model, chosen in zip(sizes, without, tuned):
            same = model.digest == chosen.digest
            exact = name not in _INEXACT
            equal &= same or not exact
            what = ("yes" if same else "NO") if exact else "some tasks are not exchanged" if choices else "not exchanged"
            ratio = model.milliseconds / chosen.milliseconds
            out(f"| {name} | {n:,} | {model.milliseconds:.4f} | {chosen.milliseconds:.4f} | {ratio:.2f} | {what} | {chosen.trial:.1f} |")
        found += choices
    out(f"\n{table(found)}\n\n{summary(found)}\n")
    return equal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names of programs; by default all")
    parser.add_argument("--archs", nargs="*", default=["cuda", "vulkan"], help="back ends (default: cuda vulkan)")
    parser.add_argument("--most", type=float, default=1e8, help="the most iterations (default: 1e8)")
    parser.add_argument("--seconds", type=float, default=120, help="begin no program of a back end after this time (default: 120)")
    parser.add_argument("--out", type=Path, default=None, help="a file for the tables")
    chosen = parser.parse_args()
    equal, ran = True, False
    lines: list[str] = []

    def out(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if chosen.out is not None:
            chosen.out.parent.mkdir(parents=True, exist_ok=True)
            chosen.out.write_text("\n".join(lines) + "\n")

    for arch in chosen.archs:
        try:
            sg.init(arch=arch)
        except sg.SpirogradRuntimeError as error:
            print(f"{arch}: {error}", file=sys.stderr)
            continue
        ran = True
        equal &= report(arch, chosen.most, chosen.seconds, chosen.names, out)
    sg.reset()
    return (0 if equal else 1) if ran else _NOT_RUN


if __name__ == "__main__":
    sys.exit(main())
