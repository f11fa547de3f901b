"""Time stencils and their gradients in variants of what the compiler decides, and print a Markdown table: `python -m
benchmarks.gpu.stencil_variants --arch cuda vulkan`.

Each variant replaces a constant or a decision of the compiler. Results are compared with NumPy, at the borders and at samples. Times are in
ms, for one launch of those that follow one another; beside them are the bytes that a launch must move, and those that it moves in a second
in the best variant. `--rows`, `--variants`: only those whose names contain one of the words. On an H200 a cell takes about a second.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import spirograd as sg
from spirograd.analysis import workgroups
from spirograd.base.targets import TARGETS
from spirograd.runtime.devices import grid_size
from spirograd.transforms.lowering import lower_tasks
from spirograd.transforms.tasks import gather

_MEASURED = "measured choices"
# A launch, and whether its result is right.
Case = tuple[Callable[[], None], Callable[[], bool]]


@functools.lru_cache(2)
def _random(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(1).random(shape, dtype=np.float32)


def _samples(n: int) -> np.ndarray:
    """Indices of the first and last rows, and of some in between."""
    return np.unique(np.r_[0, 1, 2, n - 3, n - 2, n - 1, np.random.default_rng(2).integers(0, n, 20)])


def _five(a: np.ndarray, i: np.ndarray) -> np.ndarray:
    """Sums of five points in the rows ``i`` of a matrix that is zero outside."""
    n = len(a)
    padded = np.pad(a[np.clip(i[:, None] + [-1, 0, 1], 0, n - 1)], ((0, 0), (0, 0), (1, 1)))
    padded[i == 0, 0], padded[i == n - 1, 2] = 0, 0
    return padded[:, 0, 1:-1] + padded[:, 2, 1:-1] + padded[:, 1, :-2] + padded[:, 1, 2:] + padded[:, 1, 1:-1]


def _border_cleared(a: np.ndarray) -> np.ndarray:
    a = a.copy()
    for axis in range(a.ndim):
        np.moveaxis(a, axis, 0)[[0, -1]] = 0
    return a


def _stencil(n: int, gradient: bool, arrays: bool) -> Case:
    if arrays:
        a, b = (sg.ndarray(sg.f32, (n, n), needs_grad=gradient) for _ in range(2))
    else:
        a, b = (sg.field(sg.f32, (n, n), needs_grad=gradient) for _ in range(2))

    @sg.kernel
    def of_fields() -> None:
        for i, j in sg.ndrange((1, n - 1), (1, n - 1)):
            b[i, j] = 0.2 * (a[i, j] + a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1])

    @sg.kernel
    def of_arrays(a: sg.types.ndarray(sg.f32, 2), b: sg.types.ndarray(sg.f32, 2)) -> None:  # type: ignore[valid-type]
        for i, j in sg.ndrange((1, a.shape[0] - 1), (1, a.shape[1] - 1)):
            b[i, j] = 0.2 * (a[i, j] + a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1])

    kernel, args = (of_arrays, (a, b)) if arrays else (of_fields, ())
    x, rows = _random((n, n)), _samples(n)
    a.from_numpy(x)

    def right() -> bool:
        if not gradient:
            return bool(np.allclose(b.to_numpy()[rows], (_border_cleared(np.ones((n, n), "f4"))[rows] * 0.2) * _five(x, rows), atol=1e-5))
        a.grad.fill(1.0)
        b.grad.from_numpy(x)
        kernel.grad(*args)
        return bool(np.allclose(a.grad.to_numpy()[rows], 1 + 0.2 * _five(_border_cleared(x), rows), atol=1e-5))

    return (lambda: kernel.grad(*args) if gradient else kernel(*args)), right


def _wave(n: int, gradient: bool) -> Case:
    """A step of a wave, whose guard leaves the border alone."""
    old, now, new = (sg.field(sg.f32, (n, n), needs_grad=gradient) for _ in range(3))

    @sg.kernel
    def step() -> None:
        for i, j in now:
            if i > 0 and i < n - 1 and j > 0 and j < n - 1:
                laplacian = now[i - 1, j] + now[i + 1, j] + now[i, j - 1] + now[i, j + 1] - 4.0 * now[i, j]
                new[i, j] = 2.0 * now[i, j] - old[i, j] + 0.1 * laplacian

    x, y, rows = _random((n, n)), _random((n, n))[::-1], _samples(n)
    now.from_numpy(x)
    old.from_numpy(np.ascontiguousarray(y))

    def right() -> bool:
        if not gradient:
            wanted = _border_cleared(np.ones((n, n), "f4"))[rows] * (1.5 * x[rows] - y[rows] + 0.1 * _five(x, rows))
            return bool(np.allclose(new.to_numpy()[rows], wanted, atol=1e-5))
        now.grad.fill(0.0)
        old.grad.fill(0.0)
        new.grad.from_numpy(x)
        step.grad()
        inner = _border_cleared(x)
        found = np.allclose(now.grad.to_numpy()[rows], 1.5 * inner[rows] + 0.1 * _five(inner, rows), atol=1e-5)
        return bool(found and np.allclose(old.grad.to_numpy()[rows], -inner[rows], atol=1e-5))

    return (step.grad if gradient else step), right


def _heat(n: int, gradient: bool) -> Case:
    a, b = (sg.field(sg.f32, (n, n, n), needs_grad=gradient) for _ in range(2))

    @sg.kernel
    def heat() -> None:
        for i, j, k in sg.ndrange((1, n - 1), (1, n - 1), (1, n - 1)):
            around = a[i - 1, j, k] + a[i + 1, j, k] + a[i, j - 1, k] + a[i, j + 1, k] + a[i, j, k - 1] + a[i, j, k + 1]
            b[i, j, k] = a[i, j, k] + 0.1 * (around - 6.0 * a[i, j, k])

    x, planes = _random((n, n, n)), _samples(n)[:12]
    a.from_numpy(x)

    def seven(v: np.ndarray) -> np.ndarray:
        wide = np.pad(v, 1)
        i = planes[:, None] + 1
        around = wide[planes, 1:-1, 1:-1] + wide[planes + 2, 1:-1, 1:-1] + wide[i[:, 0], :-2, 1:-1] + wide[i[:, 0], 2:, 1:-1]
        return 0.4 * v[planes] + 0.1 * (around + wide[i[:, 0], 1:-1, :-2] + wide[i[:, 0], 1:-1, 2:])

    def right() -> bool:
        if not gradient:
            return bool(np.allclose(b.to_numpy()[planes], _border_cleared(np.ones_like(x))[planes] * seven(x), atol=1e-5))
        a.grad.fill(0.0)
        b.grad.from_numpy(x)
        heat.grad()
        return bool(np.allclose(a.grad.to_numpy()[planes], seven(_border_cleared(x)), atol=1e-5))

    return (heat.grad if gradient else heat), right


# The case, and the least bytes that a launch reads and writes for each element.
ROWS: dict[str, tuple[Callable[[int], Case], int]] = {
    "stencil, fields, gradient": (lambda n: _stencil(n, True, False), 16),
    "stencil, fields": (lambda n: _stencil(n, False, False), 8),
    "stencil, arrays": (lambda n: _stencil(n, False, True), 8),
    "stencil, arrays, gradient": (lambda n: _stencil(n, True, True), 16),
    "wave": (lambda n: _wave(n // 2, False), 12),
    "wave, gradient": (lambda n: _wave(n // 2, True), 24),
    "heat in 3-D": (lambda n: _heat(n // 16, False), 8),
    "heat in 3-D, gradient": (lambda n: _heat(n // 16, True), 16),
}


@contextlib.contextmanager
def _wide(arch: str, nbytes: int) -> Iterator[None]:
    with mock.patch.dict(TARGETS, {arch: replace(TARGETS[arch], access_bytes=nbytes)}):
        yield


def _variants(arch: str) -> dict[str, Callable[[], Any]]:
    merged = bool(TARGETS[arch].access_bytes)
    widths = {"accesses of 32 bytes": 32, "of 16": 16, "of 8": 8, "of 4, one iteration": 4}
    return {
        "as decided": contextlib.nullcontext,
        _MEASURED: contextlib.nullcontext,
        "guards in branches": lambda: mock.patch.object(lower_tasks, "assume_guards", lambda body: None),
        "atomics": lambda: mock.patch.object(gather, "_WORTH", {False: 0, True: 0}),
        **{f"groups of {n}": (lambda n=n: mock.patch.object(workgroups, "_DEFAULT", n)) for n in (64, 128, 512, 1024)},
        **{name: (lambda nbytes=nbytes: _wide(arch, nbytes)) for name, nbytes in widths.items() if (nbytes != 16) == merged},
        **{f"at most {n} groups": (lambda n=n: mock.patch.object(grid_size, "_GPU_GROUPS", n)) for n in (132 * 8, 132 * 32, 1 << 20)},
    }


_FIRST_VARIANTS = ["measured", "branches", "of 128", "of 512", "accesses", "of 8", "at most 1056 groups", "1048576"]


def _time(run: Callable[[], None], rounds: int = 9, launches: int = 20) -> float:
    """Return the milliseconds of a launch."""
    best = float("inf")
    for _ in range(rounds):
        sg.sync()
        begin = time.perf_counter()
        for _ in range(launches):
            run()
        sg.sync()
        best = min(best, (time.perf_counter() - begin) / launches)
    return best * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", nargs="+", default=["cuda"])
    parser.add_argument("--size", type=int, default=8192, help="rows and columns of the matrices; 3-D fields have the same in all")
    parser.add_argument("--rows", nargs="+", default=[""])
    parser.add_argument("--variants", nargs="+", default=_FIRST_VARIANTS, help='"" for all')
    parser.add_argument("--out", type=Path, help="a file for the tables, too")
    options = parser.parse_args()
    text: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        text.append(line)

    for arch in options.arch:
        names = [name for name in _variants(arch) if name == "as decided" or any(word in name for word in options.variants)]
        say(f"\n| {arch}, {options.size} | bytes | {' | '.join(names)} | best | GB/s |\n|{'---|' * (len(names) + 4)}")
        for row, (make, nbytes) in ROWS.items():
            if not any(word in row for word in options.rows):
                continue
            times = {}
            for name in names:
                with _variants(arch)[name]():
                    sg.init(arch=getattr(sg, arch), offline_cache=False, tune_gpu=name == _MEASURED)
                    run, right = make(options.size)
                    for _ in range(400 if name == _MEASURED else 1):
                        run()
                    sg.wait_for_tuning()
                    for _ in range(400 if name == _MEASURED else 1):
                        run()
                    times[name] = _time(run) if right() else float("nan")
                sg.reset()
            elements = (options.size // 16) ** 3 if row.startswith("heat") else (options.size // (2 if row.startswith("wave") else 1)) ** 2
            best = min(times, key=lambda name: times[name])
            cells = " | ".join(f"{times[name]:.4f}" for name in names)
            say(f"| {row} | {nbytes * elements / 1e6:.0f} M | {cells} | {best} | {nbytes * elements / times[best] / 1e6:.0f} |")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
